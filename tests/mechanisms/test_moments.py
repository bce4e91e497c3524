import math

import pytest
import torch

from fedtranscribe.errors import ConfigError
from fedtranscribe.mechanisms import MomentSums, NoisyMoments, SeededNoise, moment_sums
from fedtranscribe.mechanisms.moments import sensitivity
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.closed_forms import gaussian_mu
from fedtranscribe.privacy.units import Adjacency, Unit

CLASSES = 3


def unit_row(seed: int, width: int = 4) -> torch.Tensor:
    row = torch.randn(width, generator=torch.Generator().manual_seed(seed)).double()
    return row / row.norm()


def contribution(row: torch.Tensor, label: int, by_class: bool = True) -> torch.Tensor:
    """What one record adds, as one vector."""
    block = row[None], torch.tensor([label]), torch.ones(1)
    sums = moment_sums([block], len(row), CLASSES if by_class else None)
    parts = [sums.second] if sums.by_class is None else [sums.second, sums.by_class]
    return torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("by_class", [True, False])
def test_no_pair_of_records_lies_further_apart_than_the_sensitivity(by_class: bool):
    most = sensitivity(Adjacency.REPLACE, by_class=by_class)
    alone = sensitivity(Adjacency.ZERO_OUT, by_class=by_class)
    for seed in range(200):
        # Longer rows are cut to the ball, and a row that is not finite becomes zero.
        scale = [0.0, 0.5, 1.0, 7.0, math.nan][seed % 5]
        first = contribution(scale * unit_row(seed), seed % CLASSES, by_class)
        second = contribution(unit_row(seed + 1_000), seed % 2, by_class)
        assert float((first - second).norm()) <= most
        assert float(first.norm()) <= alone


def test_the_worst_pair_of_the_proof_is_as_bad_as_it_says():
    here = torch.tensor([1.0, 0.0]).double()
    there = torch.tensor([-0.5, math.sqrt(0.75)]).double()
    apart = contribution(here, 1) - contribution(there, 1)
    assert float(apart.norm()) == pytest.approx(math.sqrt(4.5))
    assert float(contribution(here, 1).norm()) == pytest.approx(math.sqrt(2))
    across = contribution(here, 1, False) - contribution(torch.tensor([0.0, 1.0]), 1, False)
    assert float(across.norm()) == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("target", [0.1, 1.0, 10.0])
def test_the_noise_costs_what_it_was_calibrated_to(target: float):
    made = NoisyMoments.of_mu(gaussian_mu(target, 1e-5), by_class=True)
    made = made.release(positional_ids=False)
    for adjacency in (Adjacency.ZERO_OUT, Adjacency.ADD_REMOVE):
        assert epsilon([made.event(Unit.RECORD, adjacency)], 1e-5) == pytest.approx(target)
    worse = epsilon([made.event(Unit.RECORD, Adjacency.REPLACE)], 1e-5)
    assert worse > target
    # Replace is 3/2 as far: that of noise which is 3/2 as small.
    closer = NoisyMoments.of_mu(1.5 * gaussian_mu(target, 1e-5), by_class=True)
    closer = closer.release(positional_ids=True)
    assert Adjacency.ADD_REMOVE not in closer.costs[Unit.RECORD], "the split goes by row number"
    same = epsilon([closer.event(Unit.RECORD, Adjacency.ZERO_OUT)], 1e-5)
    assert worse == pytest.approx(same, rel=1e-4)
    assert Unit.HOLDER not in made.costs


def test_sums_are_those_of_all_records_and_weights_count():
    rows = torch.stack([unit_row(i) for i in range(6)])
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    weights = torch.tensor([1.0, 0.5, 0.5, 1.0, 1.0, 1.0]).double()
    blocks = [(rows[:4], labels[:4], weights[:4]), (rows[4:], labels[4:], weights[4:])]
    sums = moment_sums(blocks, 4, CLASSES)
    assert torch.allclose(sums.second, torch.einsum("n,ni,nj->ij", weights, rows, rows))
    one_hot = torch.eye(CLASSES).double()[labels]
    assert sums.by_class is not None
    assert torch.allclose(sums.by_class, torch.einsum("n,ni,nc->ic", weights, rows, one_hot))


def test_noise_is_isotropic_among_symmetric_matrices():
    mechanism = NoisyMoments(3.0, by_class=True)
    n = 20_000
    sums = MomentSums(torch.zeros(n, 2, 2).double(), torch.zeros(n, 2, CLASSES).double())
    told = mechanism.privatise(sums, SeededNoise(0))
    assert told.by_class is not None
    assert torch.equal(told.second, told.second.mT)
    assert float(told.second[:, 0, 0].std()) == pytest.approx(3, rel=0.03)
    assert float(told.second[:, 0, 1].std()) == pytest.approx(3 / math.sqrt(2), rel=0.03)
    assert float(told.by_class.std()) == pytest.approx(3, rel=0.03)
    # Along any direction of norm one, for instance a slanted one, the noise is as large.
    slanted = torch.tensor([[0.6, 0.4], [0.4, math.sqrt(1 - 0.36 - 0.32)]]).double()
    assert float((told.second * slanted).sum((1, 2)).std()) == pytest.approx(3, rel=0.03)


def test_answers_lie_on_a_public_grid():
    sums = MomentSums(torch.eye(2).double() / 3, None)
    told = NoisyMoments(1.0, by_class=False).privatise(sums, SeededNoise(0))
    assert torch.equal(told.second * 512, (told.second * 512).round())


def test_sums_that_were_not_asked_for_are_refused():
    sums = MomentSums(torch.eye(2).double(), torch.zeros(2, CLASSES).double())
    with pytest.raises(ConfigError, match="by_class=False"):
        NoisyMoments(1.0, by_class=False).privatise(sums, SeededNoise(0))
    for std in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="noise_std"):
            NoisyMoments(std, by_class=False)
