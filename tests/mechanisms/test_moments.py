import math

import pytest
import torch

from fedtranscribe.errors import ConfigError
from fedtranscribe.mechanisms import MomentSums, SeededNoise, moment_sums, moments_bound
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.closed_forms import gaussian_mu
from fedtranscribe.privacy.units import Adjacency, Unit
from tests.mechanisms_for import moved, noisy_moments, noisy_moments_of_mu

CLASSES = 3


def unit_row(seed: int, width: int = 4) -> torch.Tensor:
    row = torch.randn(width, generator=torch.Generator().manual_seed(seed)).double()
    return row / row.norm()


def contribution(row: torch.Tensor, label: int, by_class: bool = True) -> torch.Tensor:
    """What one record adds, as one vector."""
    block = row[None], torch.tensor([label]), torch.ones(1)
    return moment_sums([block], len(row), CLASSES if by_class else None).to_vector()


@pytest.mark.parametrize("by_class", [True, False])
def test_no_pair_of_records_lies_further_apart_than_the_sensitivity(by_class: bool):
    classes = CLASSES if by_class else None
    most = moved(4, classes, Adjacency.REPLACE)
    alone = moved(4, classes, Adjacency.ZERO_OUT)
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
    made = noisy_moments_of_mu(gaussian_mu(target, 1e-5), 4, CLASSES)
    made = made.release(1, positional_ids=False)
    for adjacency in (Adjacency.ZERO_OUT, Adjacency.ADD_REMOVE):
        assert epsilon([made.event(Unit.RECORD, adjacency)], 1e-5) == pytest.approx(target)
    worse = epsilon([made.event(Unit.RECORD, Adjacency.REPLACE)], 1e-5)
    assert worse > target
    # Replace is 3/2 as far: that of noise which is 3/2 as small.
    closer = noisy_moments_of_mu(1.5 * gaussian_mu(target, 1e-5), 4, CLASSES)
    closer = closer.release(1, positional_ids=True)
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


def test_a_vector_keeps_distances_and_gives_the_sums_back():
    blocks = [(torch.randn(5, 4).double(), torch.tensor([0, 1, 2, 0, 1]), torch.ones(5))]
    for classes in (CLASSES, None):
        sums = moment_sums(blocks, 4, classes)
        vector = sums.to_vector()
        assert vector.shape == (moments_bound(4, classes).width,)
        parts = [sums.second] if sums.by_class is None else [sums.second, sums.by_class]
        whole = torch.cat([part.flatten() for part in parts])
        assert float(vector.norm()) == pytest.approx(float(whole.norm()))
        again = MomentSums.from_vector(vector, 4, classes)
        assert torch.allclose(again.second, sums.second)
        assert torch.equal(again.second, again.second.T)
        if sums.by_class is not None:
            assert again.by_class is not None
            assert torch.equal(again.by_class, sums.by_class)
    with pytest.raises(ConfigError, match="22 numbers"):
        MomentSums.from_vector(torch.zeros(21), 4, CLASSES)


def test_noise_is_isotropic_among_symmetric_matrices():
    mechanism, n = noisy_moments(3.0, 2, CLASSES), 20_000
    noisy = mechanism.privatise(torch.zeros(n, mechanism.width).double(), SeededNoise(0))
    told = [MomentSums.from_vector(vector, 2, CLASSES) for vector in noisy]
    second = torch.stack([sums.second for sums in told])
    by_class = torch.stack([sums.by_class for sums in told if sums.by_class is not None])
    assert torch.equal(second, second.mT)
    assert float(second[:, 0, 0].std()) == pytest.approx(3, rel=0.03)
    assert float(second[:, 0, 1].std()) == pytest.approx(3 / math.sqrt(2), rel=0.03)
    assert float(by_class.std()) == pytest.approx(3, rel=0.03)
    # Along any direction of norm one, for instance a slanted one, the noise is as large.
    slanted = torch.tensor([[0.6, 0.4], [0.4, math.sqrt(1 - 0.36 - 0.32)]]).double()
    assert float((second * slanted).sum((1, 2)).std()) == pytest.approx(3, rel=0.03)


def test_answers_lie_on_a_public_grid_and_keep_every_bit():
    sums = MomentSums(torch.eye(2).double() / 3, None).to_vector()
    told = noisy_moments(1.0, 2, None).privatise(1e6 * sums[None], SeededNoise(0))
    assert told.dtype == torch.float64
    assert torch.equal(told * 512, (told * 512).round())


@pytest.mark.parametrize("std", [0.0, -1.0, math.inf, math.nan])
def test_no_noise_is_refused(std: float):
    with pytest.raises(ConfigError, match="noise_std"):
        noisy_moments(std, 2, None)
