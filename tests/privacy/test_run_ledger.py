"""What a run does about the place and the limit of its ledger."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.data import load
from fedtranscribe.data.registry import ledger_of
from fedtranscribe.errors import BudgetExhaustedError, SecondLedgerError
from fedtranscribe.privacy.budget import DEFAULT_LIMIT, OWN, Budget
from fedtranscribe.privacy.chain import EntryKind, canonical
from fedtranscribe.privacy.closed_forms import gaussian_mu
from fedtranscribe.privacy.events import Gaussian
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.run_ledger import open_for_run
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.results.parts import LedgerFacts
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe

DELTA = 1e-5
KIND = (Unit.RECORD, Adjacency.ZERO_OUT)
USUAL = Budget(DEFAULT_LIMIT, DELTA, *KIND)
Begin = Callable[..., tuple[Ledger, str]]


def planned(epsilon: float) -> MechanismRelease:
    """One question of that ε."""
    event = Gaussian(gaussian_mu(epsilon, DELTA))
    return MechanismRelease("noisy-moments", 1, {Unit.RECORD: {Adjacency.ZERO_OUT: event}})


@pytest.fixture
def begin(tiny_data: Path) -> Begin:
    """Starts a run as `transcribe` does and books its plan; the ledger, and what was said."""
    records = load(str(tiny_data)).train

    def start(run: str, epsilon: float, asked: float | None = None) -> tuple[Ledger, str]:
        said: list[str] = []
        place, release = ledger_of(records, str(tiny_data), None), planned(epsilon)
        ledger = open_for_run(place, OWN, run, asked, USUAL, [release], said.append)
        ledger.reserve(f"{run}/q", "h", release, run)
        return ledger, "\n".join(said)

    return start


def facts_of(ledger: Ledger) -> tuple[float, float | None]:
    """What a result says: booked, and the limit."""
    facts = LedgerFacts.of(ledger, DELTA, *KIND)
    return facts.booked, facts.limit and facts.limit.epsilon


def test_a_new_ledger_has_a_limit_and_says_so(begin: Begin) -> None:
    ledger, said = begin("first", 5)
    assert "limited to 20 (record, zero-out, δ = 1e-05); --budget sets another one" in said
    assert facts_of(ledger) == (pytest.approx(5, rel=1e-3), 20)
    ledger, said = begin("second", 5)
    assert said == ""
    booked, limit = facts_of(ledger)
    assert 5 < booked < 10
    assert limit == 20


def test_a_named_limit_is_the_first_one(begin: Begin) -> None:
    ledger, said = begin("first", 30, asked=31)
    assert "limited to 31" in said
    assert "--budget" not in said
    assert [limit.epsilon for _, limit in ledger.limits] == [31]


def test_a_run_that_does_not_fit_notes_no_ids(begin: Begin, tiny_data: Path) -> None:
    with pytest.raises(BudgetExhaustedError):
        begin("first", 5, asked=1)
    assert not list(tiny_data.parent.glob("*.record"))
    begin("second", 5, asked=6)
    (note,) = tiny_data.parent.glob("*.record")
    assert json.loads(note.read_text()) == [OWN]


def test_a_raise_is_asked_for_said_and_reported(begin: Begin) -> None:
    begin("first", 5, asked=6)
    with pytest.raises(BudgetExhaustedError):
        begin("second", 5)
    ledger, said = begin("second", 5, asked=12)
    assert "changed from 6 to 12" in said
    assert "only if no answer was the reason" in said
    assert facts_of(ledger)[1] == 12
    ledger, said = begin("third", 1, asked=9)
    assert "changed from 12 to 9" in said
    assert ledger.budget is not None
    assert ledger.budget.epsilon == 9
    assert facts_of(ledger)[1] == 12, "what was answered under 12 was bounded by 12"


def test_a_run_that_goes_on_leaves_the_limit_alone(begin: Begin) -> None:
    """Its own --budget was obeyed when it began; what was changed since was changed later."""
    ledger, _ = begin("run", 5, asked=15)
    ledger.set_budget(Budget(8, DELTA, *KIND))
    ledger, said = begin("run", 5, asked=15)
    assert said == ""
    assert ledger.budget is not None
    assert ledger.budget.epsilon == 8
    assert len(ledger.releases()) == 1


@pytest.mark.parametrize(
    "attempt",
    [
        Budget(7, 1e-3, Unit.RECORD, Adjacency.REPLACE),
        Budget(7, DELTA, Unit.HOLDER, Adjacency.ZERO_OUT),
    ],
)
def test_an_attempt_that_was_refused_does_not_fix_the_kind_of_the_limit(
    begin: Begin, tiny_data: Path, attempt: Budget
) -> None:
    place = ledger_of(load(str(tiny_data)).train, str(tiny_data), None)
    every = {
        unit: {adjacency: Gaussian(50.0) for adjacency in Adjacency}
        for unit in (Unit.RECORD, Unit.HOLDER)
    }
    with pytest.raises(BudgetExhaustedError):
        open_for_run(
            place, OWN, "no", None, attempt, [MechanismRelease("m", 1, every)], lambda _: None
        )
    ledger, said = begin("first", 5)
    assert "under which nothing was booked, is 7 (record, zero-out, δ = 1e-05)" in said
    assert ledger.budget == Budget(7, DELTA, *KIND), "ε was named, and stays"
    assert facts_of(ledger)[1] == 7
    assert begin("second", 1)[1] == ""


def test_a_ledger_of_an_early_version_gets_a_limit_and_no_epsilon(
    begin: Begin, tiny_data: Path
) -> None:
    place = ledger_of(load(str(tiny_data)).train, str(tiny_data), None)
    with Ledger.open(place.path, place.data_id) as ledger:
        unlimited = {**USUAL.to_json(), "epsilon": None}
        with ledger._book.writing():
            ledger._book.append(EntryKind.BUDGET, canonical(unlimited).decode())
        ledger.reserve("old/q", "h", planned(15), "old")
    ledger, said = begin("first", 5)
    assert "answered without a limit; from now on it has one, 20" in said
    assert facts_of(ledger) == (pytest.approx(17, abs=0.5), None)
    with pytest.raises(BudgetExhaustedError):
        begin("second", 15)


# ---------------------------------------------------------------- whole runs


def test_a_run_says_its_own_epsilon_the_limit_and_what_is_booked(
    tiny_settings: TranscribeSettings, tmp_path: Path
) -> None:
    result = transcribe(prepare(tiny_settings), tmp_path / "run", force=True).to_json()
    assert result["epsilon"] == pytest.approx(10, rel=1e-3), "the plan was fixed beforehand"
    assert result["ledger"]["booked"] == pytest.approx(10, rel=1e-3)
    assert result["ledger"]["limit"] == USUAL.to_json()
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["ledger"] == result["ledger"]


def test_a_run_planned_for_more_is_refused_before_anything_is_spent(
    tiny_settings: TranscribeSettings, tmp_path: Path, tiny_data: Path
) -> None:
    settings = tiny_settings.model_copy(update={"epsilon": 30.0})
    with pytest.raises(BudgetExhaustedError, match=r"<= 20 .*raise the limit: --budget"):
        transcribe(prepare(settings), tmp_path / "run", force=True)
    assert list((tmp_path / "run").iterdir()) == [], "the folder is free for a run with the fix"
    path = next(tiny_data.parent.glob("*.ledger.sqlite"))
    with Ledger.open_read_only(path) as ledger:
        assert ledger.releases() == []


def test_a_second_ledger_of_own_data_is_refused(
    tiny_settings: TranscribeSettings, tmp_path: Path, begin: Begin
) -> None:
    begin("first", 5)
    settings = tiny_settings.model_copy(update={"ledger": tmp_path / "book.sqlite"})
    with pytest.raises(SecondLedgerError, match="would not count what is booked there"):
        transcribe(prepare(settings), tmp_path / "run", force=True)
    assert not (tmp_path / "book.sqlite").exists()
    assert list((tmp_path / "run").iterdir()) == []
