"""How large a run may still be: the ε that a refusal and `holder status` name."""

import math
from pathlib import Path

import pytest

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.errors import BudgetExhaustedError, ConfigError
from fedtranscribe.privacy.budget import Budget, room_words, two_digits_below
from fedtranscribe.privacy.closed_forms import gaussian_mu
from fedtranscribe.privacy.events import Event, Gaussian, PoissonGaussian
from fedtranscribe.privacy.label_events import RandomizedResponse
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe

DELTA = 1e-5
RECORD, ZERO_OUT = Unit.RECORD, Adjacency.ZERO_OUT


def release(*events: Event) -> tuple[MechanismRelease, ...]:
    return tuple(
        MechanismRelease("noisy-votes", 1, {RECORD: {ZERO_OUT: event}}) for event in events
    )


def gaussians(epsilon: float, delta: float = DELTA, parts: int = 5) -> tuple[MechanismRelease, ...]:
    """A plan of that ε, as several questions."""
    mu = gaussian_mu(epsilon, delta) / math.sqrt(parts)
    return release(*[Gaussian(mu)] * parts)


@pytest.fixture
def ledger(tmp_path: Path):
    budget = Budget(12.0, DELTA, RECORD, ZERO_OUT)
    with Ledger.open(tmp_path / "ledger.sqlite", "data", budget) as opened:
        yield opened


def book(ledger: Ledger, *releases: MechanismRelease) -> None:
    for number, one in enumerate(releases):
        ledger.reserve(f"q-{number}", "hash", one, "run")


@pytest.mark.parametrize("delta", [DELTA, 1e-6, 1e-3])
@pytest.mark.parametrize(
    "booked",
    [
        (),
        gaussians(10.11),
        gaussians(11.99),
        release(RandomizedResponse(0.1, 10, 500)),
        release(RandomizedResponse(0.1, 10, 100), Gaussian(0.5), PoissonGaussian(0.01, 1.0, 500)),
        release(PoissonGaussian(0.02, 0.8, 1_000)),
    ],
    ids=["nothing", "gaussians", "nearly all", "labels", "mixed", "a training"],
)
def test_the_largest_run_fits_and_one_a_little_larger_does_not(ledger, booked, delta):
    book(ledger, *booked)
    room = ledger.room(delta)
    assert room > 0
    ledger.check(*gaussians(room * (1 - 1e-6), delta))
    ledger.check(*gaussians(two_digits_below(room), delta))
    with pytest.raises(BudgetExhaustedError):
        ledger.check(*gaussians(1.02 * room, delta))
    assert len(ledger.releases()) == len(booked), "a question about room books nothing"


def test_what_is_left_is_less_than_what_fits(ledger):
    """With 12 as limit and 10.11 spent 1.89 is left, and a run of 5 fits."""
    book(ledger, *gaussians(10.11))
    assert two_digits_below(ledger.room(DELTA)) == 5.0
    ledger.check(*gaussians(5.0))
    with pytest.raises(
        BudgetExhaustedError, match=r"with epsilon up to 5 at delta=1e-05; or raise"
    ):
        ledger.check(*gaussians(1.02 * 5.0))


def test_without_room_nothing_is_named(ledger):
    book(ledger, *gaussians(10))
    ledger.set_budget(Budget(1.0, DELTA, RECORD, ZERO_OUT))
    assert ledger.room(DELTA) == 0
    with pytest.raises(BudgetExhaustedError, match="Nothing fits any more"):
        ledger.check(*gaussians(0.01))


def test_a_ledger_without_a_limit_allows_nothing(tmp_path):
    with Ledger.open(tmp_path / "none.sqlite", "data") as ledger:
        assert ledger.room(DELTA) == 0


@pytest.mark.parametrize(
    ("value", "shown"),
    [(5.194, 5.1), (0.09999, 0.099), (123.9, 120), (11.9999999999, 12), (12.0, 12), (0.0, 0.0)],
)
def test_figures_are_rounded_down(value, shown):
    assert two_digits_below(value) == shown
    assert two_digits_below(math.inf) == math.inf
    assert ("Nothing" in room_words(value, DELTA)) is (value == 0)


def test_a_run_of_the_epsilon_that_a_refusal_names_goes_through(
    tiny_settings: TranscribeSettings, tmp_path: Path
):
    moments = {"teacher": None, "student": None, "shards": None, "rows": None}
    moments |= {"with_generator": False, "descent_rounds": 0, "budget": 12.0}
    settings = tiny_settings.model_copy(update={**moments, "epsilon": 10.11})
    transcribe(prepare(settings), tmp_path / "first", force=True)
    again = settings.model_copy(update={"epsilon": 8.0})
    with pytest.raises(BudgetExhaustedError, match="with epsilon up to 5 at"):
        transcribe(prepare(again), tmp_path / "second", force=True)
    fitting = settings.model_copy(update={"epsilon": 5.0})
    result = transcribe(prepare(fitting), tmp_path / "second", force=True).result
    assert result.guarantee.epsilon == pytest.approx(5.0, rel=1e-6)
    assert result.ledger is not None
    assert result.ledger.booked is not None
    assert result.ledger.booked <= 12.0


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_a_delta_that_is_none_is_refused_and_nothing_booked(ledger, delta):
    head = ledger.head
    with pytest.raises(ConfigError, match="delta"):
        ledger.room(delta)
    with pytest.raises(ConfigError, match="delta"):
        ledger.check(*gaussians(1.0), delta=delta)
    assert ledger.head == head


@pytest.mark.parametrize("epsilon", [1.1e23, 1e160, 1e300])
def test_a_limit_that_doubles_cannot_be_calculated_with_is_refused(ledger, epsilon):
    before = ledger.budget
    with pytest.raises(ConfigError, match=r"<= 1e\+23"):
        ledger.set_budget(Budget(epsilon, DELTA, RECORD, ZERO_OUT))
    assert ledger.budget == before
    ledger.set_budget(Budget(1e23, DELTA, RECORD, ZERO_OUT))
    assert ledger.room(DELTA) == pytest.approx(1e23, rel=1e-3)
