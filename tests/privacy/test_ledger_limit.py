"""Why only a limit is called ε, and what counts as the limit."""

import math
from pathlib import Path

import numpy as np
import pytest
from ledger_cases import BUDGET, DATA, DELTA, RECORD, ZERO_OUT, open_ledger
from ledger_cases import release as make_release

from fedtranscribe.errors import BudgetExhaustedError, ConfigError, UnsupportedAdjacencyError
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.chain import EntryKind, canonical
from fedtranscribe.privacy.closed_forms import gaussian_epsilon
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "ledger.sqlite"


def limit(epsilon: float, delta: float = DELTA) -> Budget:
    return Budget(epsilon, delta, RECORD, ZERO_OUT)


# ---------------------------------------------------------------- stopping on bad luck


def real_delta(mu: float, claims: list[float], margin: float, points: int = 401) -> float:
    """δ of an analyst who looks after every answer and stops once the loss is past the claim.

    The loss after k answers is the sum of k normals of mean μ²/2 and variance μ²; its density among
    the analysts who still go on is carried from answer to answer. Whoever stops at loss L under the
    claim ε adds (1 − e^(ε − L))₊: the δ at which "(claim, δ)-DP" holds is no smaller.

    Args:
        mu: of each answer.
        claims: ε that is claimed after each answer.
        margin: how far past the claim the loss has to be before the last answer.
        points: of the grid.
    """
    found, before, going_on, width = 0.0, None, np.ones(1), 1.0
    for k, claim in enumerate(claims, start=1):
        loss = k * mu**2 / 2 + math.sqrt(k) * mu * np.linspace(-8, 8, points)
        jump = loss[:, None] - (0.0 if before is None else before) - mu**2 / 2
        density = np.exp(-(jump**2) / (2 * mu**2)) / math.sqrt(2 * math.pi * mu**2)
        here = density @ going_on * width
        stops = loss > claim + margin if k < len(claims) else np.ones(points, bool)
        width = loss[1] - loss[0]
        gain = np.maximum(0, 1 - np.exp(np.minimum(0, claim - loss)))
        found += float((gain * here)[stops].sum() * width)
        before, going_on = loss, np.where(stops, 0, here)
    return found


def test_who_may_stop_on_bad_luck_breaks_the_booked_total_and_not_the_limit(path: Path) -> None:
    """50 equal answers, each asked for after seeing the last, up to the limit."""
    delta, answers = 0.01, 50
    mu = math.sqrt(8 / answers)
    most = gaussian_epsilon(math.sqrt(8), delta) * 1.0001
    booked = []
    with open_ledger(path, limit(most, delta)) as ledger:
        for i in range(answers):
            ledger.reserve(f"q{i}", "h", make_release(mu), "run")
            booked.append(ledger.total(delta, RECORD, ZERO_OUT).epsilon)
        with pytest.raises(BudgetExhaustedError):
            ledger.reserve("one more", "h", make_release(mu), "run")
        assert ledger.highest is not None
        fixed = [ledger.highest.epsilon] * answers
    assert booked[0] < booked[-1] <= most
    # A plan fixed beforehand is what it says: nobody stops before its last answer.
    assert real_delta(mu, booked, math.inf) == pytest.approx(delta, rel=0.01)
    assert real_delta(mu, booked, 0.3) > 4 * delta, "what was booked is no ε for who may stop"
    for margin in (0.0, 0.3, 1.0):
        assert real_delta(mu, fixed, margin) <= delta, "the limit is"


# ---------------------------------------------------------------- which limit counts


def test_the_highest_limit_counts_and_every_change_is_an_entry(path: Path) -> None:
    with open_ledger(path, limit(5)) as ledger:
        assert ledger.highest == limit(5)
        ledger.reserve("q1", "h", make_release(), "run")
        ledger.set_budget(limit(12))
        ledger.set_budget(limit(7))
        ledger.set_budget(limit(7))
        assert ledger.budget == limit(7)
        assert ledger.highest == limit(12)
        assert [budget.epsilon for _, budget in ledger.limits] == [5, 12, 7]
        assert sum(entry.kind == EntryKind.BUDGET for entry in ledger.entries()) == 3
        assert ledger.verify() == ledger.head
    with Ledger.open_read_only(path) as reader:
        assert reader.highest == limit(12)
        assert all(since.endswith("+00:00") for since, _ in reader.limits)


def test_a_limit_that_was_replaced_before_anything_was_booked_counts_for_nothing(
    path: Path,
) -> None:
    with open_ledger(path, limit(50)) as ledger:
        ledger.set_budget(limit(3))
        assert ledger.highest == limit(3)
        ledger.reserve("q1", "h", make_release(), "run")
        assert ledger.highest == limit(3)
    with open_ledger(path, None) as ledger:
        assert [budget for _, budget in ledger.limits] == [limit(3)]


def test_a_ledger_without_a_limit_has_none(path: Path) -> None:
    with open_ledger(path, None) as ledger:
        assert (ledger.highest, ledger.limits) == (None, [])


def test_an_infinite_limit_is_refused(path: Path) -> None:
    with open_ledger(path) as ledger:
        with pytest.raises(ConfigError, match="finite limit"):
            ledger.set_budget(limit(math.inf))
        assert ledger.budget == BUDGET


def test_a_ledger_of_an_early_version_opens_and_is_bounded_by_nothing(path: Path) -> None:
    """Early versions wrote an infinite limit where none was named."""
    with open_ledger(path, None) as ledger:
        with ledger._book.writing():
            ledger._book.append(EntryKind.BUDGET, canonical(limit(math.inf).to_json()).decode())
        ledger.reserve("q1", "h", make_release(5.0, rows=100), "run")
    with open_ledger(path, limit(1e6)) as ledger:
        assert ledger.budget == limit(1e6)
        assert ledger.highest is not None
        assert not ledger.highest.fixed, "what was answered before has no bound"
        ledger.reserve("q2", "h", make_release(), "run")
        assert len(ledger.releases()) == 2


@pytest.mark.parametrize(
    "other",
    [
        Budget(10.0, 1e-6, RECORD, ZERO_OUT),
        Budget(10.0, DELTA, RECORD, Adjacency.REPLACE),
    ],
)
def test_delta_unit_and_adjacency_are_fixed_by_the_first_booking(path: Path, other: Budget) -> None:
    """Else a limit per holder could take the place of the one per record, and no figure hold."""
    with open_ledger(path) as ledger:
        ledger.set_budget(other)
        ledger.set_budget(BUDGET)
        ledger.reserve("q1", "h", make_release(), "run")
        head = ledger.head
        with pytest.raises(ConfigError, match="only its epsilon can be changed"):
            ledger.set_budget(other)
        with pytest.raises(UnsupportedAdjacencyError):
            ledger.set_budget(Budget(10.0, DELTA, Unit.HOLDER, ZERO_OUT))
        assert (ledger.head, ledger.budget) == (head, BUDGET)
    with pytest.raises(ConfigError):
        Ledger.open(path, DATA, other)
