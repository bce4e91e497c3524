"""Rounds of gradients after the moments, on one machine, through ledger and audit."""

from pathlib import Path

import pytest

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.config.evaluation import AuditSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.evaluation.audit import audit
from fedtranscribe.holder.answering import Holder
from fedtranscribe.privacy.forecasts import in_short
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions.question import Kind
from fedtranscribe.releases import make_release, verify
from fedtranscribe.results.run_directory import STUDENT
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from tests.conftest import TINY_DPSD

ROUNDS = 3

pytestmark = pytest.mark.usefixtures("without_onnx")


@pytest.fixture
def settings(tiny_data: Path) -> TranscribeSettings:
    dpsd = TINY_DPSD.model_copy(update={"moments_steps": 1})
    return TranscribeSettings(
        data=str(tiny_data), epsilon=50, budget=51, dpsd=dpsd, descent_rounds=ROUNDS
    )


def ledger_of(settings: TranscribeSettings) -> Ledger:
    path = next(Path(str(settings.data)).parent.glob("*.ledger.sqlite"))
    return Ledger.open_read_only(path)


def test_one_budget_pays_for_moments_gradients_and_mixture(
    settings: TranscribeSettings, tmp_path: Path
):
    plan = prepare(settings).plan
    kinds = [Kind.MOMENTS] * 2 + [Kind.DESCENT] * ROUNDS + [Kind.MIXTURE] * 3
    assert [part.kind for part in plan.parts] == kinds
    assert "3 rounds of gradients get 70% of the student's budget (a class that" in plan.words
    noise = plan.descent[0].noise.strength * plan.descent[0].width ** 0.5
    each = plan.facts.records / plan.facts.classes
    assert f" is {in_short(each / noise)} times as strong as the noise of each)" in plan.words
    plain = prepare(settings.model_copy(update={"descent_rounds": 0})).plan
    for one, other in zip(plan.parts[:2], plain.parts[:2], strict=True):
        assert (one.noise.strength / other.noise.strength) ** 2 == pytest.approx(1 / 0.3)
    said: list[str] = []
    result = transcribe(prepare(settings), tmp_path / "run", say=said.append).to_json()
    assert result["epsilon"] == pytest.approx(50, rel=1e-6)
    assert (result["rows"], len(result["sums_stds"])) == (8, 8)
    assert result["noise_std"] == pytest.approx(plan.descent[-1].noise.strength)
    with ledger_of(settings) as ledger:
        total = ledger.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT).epsilon
        assert total == pytest.approx(50, rel=1e-6)
        booked = [release.mechanism for release in ledger.releases(result["run"])]
    assert booked[2:5] == ["noisy-loss-gradients"] * ROUNDS
    assert any("3 rounds of gradients" in line for line in said)


@pytest.mark.long
def test_its_books_and_its_noise_stand_up_to_an_audit(settings: TranscribeSettings, tmp_path: Path):
    transcribe(prepare(settings), tmp_path / "run")
    run = FinishedRun.open(tmp_path / "run")
    found = audit(run, AuditSettings(attacks=("game",), trials=5_000))
    assert {check.name: check.ok for check in found.checks}["noise"] is True
    [finding] = found.findings
    assert "all 8 sums over records, together" in finding.words
    assert not finding.contradicts
    assert verify(make_release(tmp_path / "run").folder).ok


@pytest.mark.long
def test_the_card_says_how_far_probabilities_may_be_trusted(
    settings: TranscribeSettings, tmp_path: Path
):
    scale = transcribe(prepare(settings), tmp_path / "run").to_json()["logit_scale"]
    folder = make_release(tmp_path / "run").folder
    assert f"(times {scale:.2f})" in (folder / "card.md").read_text(encoding="utf-8")
    plain = settings.model_copy(update={"descent_rounds": 0, "budget": 150})
    told = transcribe(prepare(plain), tmp_path / "plain").to_json()
    assert told.get("logit_scale") is None
    folder = make_release(tmp_path / "plain").folder
    assert "Probabilities: not calibrated" in (folder / "card.md").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.parametrize("crash_after", [2, 3, 4, 5])
def test_an_interrupted_run_comes_to_the_same_end_and_pays_once(
    settings: TranscribeSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    crash_after: int,
):
    answered: list[str] = []
    whole = Holder.answer

    def crashing(self, query, plan):
        if len(answered) == crash_after:
            raise KeyboardInterrupt
        answered.append(query.id)
        return whole(self, query, plan)

    with monkeypatch.context() as patched:
        patched.setattr(Holder, "answer", crashing)
        with pytest.raises(KeyboardInterrupt):
            transcribe(prepare(settings), tmp_path / "run")
    result = transcribe(prepare(settings), tmp_path / "run", resume=True).result
    assert result.guarantee.epsilon == pytest.approx(50, rel=1e-6)
    with ledger_of(settings) as ledger:
        assert len(ledger.releases(result.run)) == 5 + ROUNDS
    made = (tmp_path / "run" / STUDENT).read_bytes()
    transcribe(prepare(settings), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / STUDENT).read_bytes() == made


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"teacher": "cnn-small"}, "without sums over the records first"),
        (
            {"teacher": "cnn-small", "start": "moments", "teachers_share": 0.5},
            "where teachers are asked after sums",
        ),
    ],
)
def test_rounds_that_nothing_would_come_of_are_refused(
    settings: TranscribeSettings, options: dict[str, object], words: str
):
    with pytest.raises(ConfigError, match=words):
        prepare(settings.model_copy(update=options))
