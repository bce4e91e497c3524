"""Several releases of one run, booked as one."""

import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import pld_privacy_accountant

from fedtranscribe.errors import ConfigError, UnsupportedAdjacencyError
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.diffusion import DpSgdPlan
from fedtranscribe.privacy.events import Gaussian, PoissonGaussian
from fedtranscribe.privacy.release_plan import MechanismRelease, together
from fedtranscribe.privacy.units import Adjacency, Unit

DELTA = 1e-5
ZERO_OUT, REPLACE, ADD_REMOVE = Adjacency.ZERO_OUT, Adjacency.REPLACE, Adjacency.ADD_REMOVE
SUMS = MechanismRelease(
    "sums", 1, {Unit.RECORD: {ZERO_OUT: Gaussian(0.5), REPLACE: Gaussian(0.5 * 2**0.5)}}
)
PLAN = DpSgdPlan(1_000, 100, 50, 1.5, 1.0)
TRAINING = MechanismRelease(
    "training", 1, {Unit.RECORD: {a: PLAN.event(a) for a in (ZERO_OUT, REPLACE, ADD_REMOVE)}}
)


@pytest.mark.parametrize("adjacency", [ZERO_OUT, REPLACE])
def test_together_costs_what_all_parts_cost(adjacency: Adjacency):
    whole = together("both", [SUMS, TRAINING]).event(Unit.RECORD, adjacency)
    parts = [each.event(Unit.RECORD, adjacency) for each in (SUMS, TRAINING)]
    assert (
        epsilon([whole], DELTA) == epsilon(parts, DELTA) > max(epsilon([e], DELTA) for e in parts)
    )


def test_a_second_accountant_says_the_same():
    """Zero-out of both is the pair that dp-accounting calls add-or-remove-one."""
    accountant = pld_privacy_accountant.PLDAccountant()
    sampled = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.5))
    accountant.compose(ComposedDpEvent([GaussianDpEvent(2.0)]))
    accountant.compose(sampled, 50)
    event = together("both", [SUMS, TRAINING]).event(Unit.RECORD, ZERO_OUT)
    assert epsilon([event], DELTA) == pytest.approx(accountant.get_epsilon(DELTA), rel=2e-3)


def test_only_what_every_part_protects_is_protected():
    whole = together("both", [TRAINING, SUMS])
    assert set(whole.costs[Unit.RECORD]) == {ZERO_OUT, REPLACE}
    with pytest.raises(UnsupportedAdjacencyError, match="'both' gives no guarantee"):
        whole.event(Unit.RECORD, ADD_REMOVE)
    holder = MechanismRelease("other", 1, {Unit.HOLDER: {ZERO_OUT: Gaussian(1.0)}})
    with pytest.raises(ConfigError, match="guarantee for one unit"):
        together("neither", [SUMS, holder])


def test_the_ledger_reads_back_what_it_writes():
    whole = together("both", [SUMS, TRAINING])
    assert MechanismRelease.from_json(whole.to_json()) == whole
    parts = whole.to_json()["costs"]["record"]["zero-out"]["parts"]
    assert [part["kind"] for part in parts] == [Gaussian.kind, PoissonGaussian.kind]
