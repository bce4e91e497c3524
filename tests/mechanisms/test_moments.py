import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtranscribe.errors import ConfigError
from fedtranscribe.noise.gaussian import CentralNoise, LocalNoise
from fedtranscribe.noise.masked import MaskedShare
from fedtranscribe.noise.sources import SeededBits, SeededNoise
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.closed_forms import gaussian_mu
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions.moments import (
    SUM_BITS,
    MomentSums,
    lattice_rows,
    moment_sums,
    moments_bound,
)
from fedtranscribe.questions.records import FULL_WEIGHT, count_ids, id_weights
from tests.mechanisms_for import apart, moved, noisy_moments, noisy_moments_of_mu

CLASSES = 3
UNIT = 2.0**-SUM_BITS
# Truncation shortens a row by less than that.
SHORT = 2.0**-11


def unit_row(seed: int, width: int = 4) -> torch.Tensor:
    row = torch.randn(width, generator=torch.Generator().manual_seed(seed)).double()
    return row / row.norm()


def full(records: int) -> torch.Tensor:
    return torch.full((records,), FULL_WEIGHT)


def contribution(row: torch.Tensor, label: int, by_class: bool = True) -> torch.Tensor:
    """What one record adds, as one vector in units."""
    block = row[None], torch.tensor([label]), full(1)
    return moment_sums([block], len(row), CLASSES if by_class else None)


def between(first: torch.Tensor, second: torch.Tensor, width: int, by_class: bool = True) -> float:
    return apart(first, second, moments_bound(width, CLASSES if by_class else None)) * UNIT


@pytest.mark.parametrize("by_class", [True, False])
def test_no_pair_of_records_lies_further_apart_than_the_sensitivity(by_class: bool):
    classes = CLASSES if by_class else None
    most = moved(4, classes, Adjacency.REPLACE)
    alone = moved(4, classes, Adjacency.ZERO_OUT)
    nothing = torch.zeros(moments_bound(4, classes).width)
    for seed in range(200):
        # Longer rows are cut to the ball, and a row that is not finite becomes zero.
        scale = [0.0, 0.5, 1.0, 7.0, math.nan][seed % 5]
        first = contribution(scale * unit_row(seed), seed % CLASSES, by_class)
        second = contribution(unit_row(seed + 1_000), seed % 2, by_class)
        assert between(first, second, 4, by_class) <= most
        assert between(first, nothing, 4, by_class) <= alone


def test_the_worst_pair_of_the_proof_is_as_bad_as_it_says():
    here = torch.tensor([1.0, 0.0]).double()
    there = torch.tensor([-0.5, math.sqrt(0.75)]).double()
    first, second = contribution(here, 1), contribution(there, 1)
    assert between(first, second, 2) == pytest.approx(math.sqrt(4.5), abs=SHORT)
    assert between(first, 0 * first, 2) == pytest.approx(math.sqrt(2), abs=SHORT)
    across = contribution(here, 1, False), contribution(torch.tensor([0.0, 1.0]), 1, False)
    assert between(*across, 2, False) == pytest.approx(math.sqrt(2), abs=SHORT)


# ---------------------------------------------------------------- exact sums

NUMBERS = st.one_of(
    st.floats(width=64),
    st.sampled_from([0.0, 1.0, -1.0, 1e308, -1e308, 5e-324, 1e-160, math.nan, math.inf]),
)


@given(st.lists(NUMBERS, min_size=1, max_size=12))
@settings(max_examples=300, deadline=None)
def test_no_row_on_the_lattice_is_longer_than_one_in_exact_arithmetic(numbers: list[float]):
    row = lattice_rows(torch.tensor([numbers], dtype=torch.float64))[0]
    assert bool((row == row.trunc()).all())
    assert sum(int(entry) ** 2 for entry in row.tolist()) <= 2**26


@pytest.mark.parametrize("width", [1, 2, 37, 501, 4_097])
def test_nor_are_rows_of_norm_one_of_any_length(width: int):
    for seed in range(20):
        for row in (unit_row(seed, width), torch.ones(width).double() / math.sqrt(width)):
            whole = [int(entry) for entry in lattice_rows(row[None])[0].tolist()]
            assert sum(entry**2 for entry in whole) <= 2**26
            # What is lost is what truncation takes, and not more.
            lost = (row - torch.tensor(whole).double() * 2.0**-13).abs()
            assert float(lost.max()) <= 2.0**-13 + 2.0**-39


def some_records(n: int, width: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = torch.stack([unit_row(i, width) for i in range(n)])
    return rows, torch.arange(n) % CLASSES, id_weights([str(i % (n - 3)) for i in range(n)])


def test_sums_are_exact_whatever_the_order_and_the_blocks():
    rows, labels, weights = some_records(50)
    whole = moment_sums([(rows, labels, weights)], 5, CLASSES)
    assert whole.dtype is torch.int64
    order = torch.randperm(50, generator=torch.Generator().manual_seed(3))
    for size in (1, 7, 50):
        blocks = [(rows[part], labels[part], weights[part]) for part in order.split(size)]
        assert torch.equal(moment_sums(blocks, 5, CLASSES), whole)
    # Over any split among holders, too.
    of_each = [
        moment_sums([(rows[part], labels[part], weights[part])], 5, CLASSES)
        for part in order.split(17)
    ]
    assert torch.equal(torch.stack(of_each).sum(0), whole)


def test_sums_are_those_of_exact_fractions():
    rows, labels, weights = some_records(9)
    told = moment_sums([(rows, labels, weights)], 5, CLASSES)
    lattice = [[Fraction(int(x), 2**13) for x in row] for row in lattice_rows(rows).tolist()]
    shares = [Fraction(int(w), FULL_WEIGHT) for w in weights]
    records = list(zip(shares, lattice, labels.tolist(), strict=True))
    triangle = [sum(w * u[i] * u[j] for w, u, _ in records) for i in range(5) for j in range(i, 5)]
    by_class = [
        sum(w * u[i] for w, u, label in records if label == c)
        for i in range(5)
        for c in range(CLASSES)
    ]
    assert [Fraction(x, 2**SUM_BITS) for x in told.tolist()] == triangle + by_class


def test_the_records_of_a_person_weigh_as_one_at_most():
    ids = ["a"] * 3 + ["b"] + ["c"] * 1_500 + ["a"]
    assert (count_ids(ids), count_ids(["a"])) == (3, 1)
    weights = id_weights(ids)
    total = {name: int(weights[[i == name for i in ids]].sum()) for name in "abc"}
    assert total == {"a": FULL_WEIGHT, "b": FULL_WEIGHT, "c": FULL_WEIGHT}
    assert weights[:3].tolist() == [FULL_WEIGHT // 4] * 3
    assert int(id_weights(["a"] * 3).sum()) == 3 * (FULL_WEIGHT // 3) < FULL_WEIGHT
    # Nobody else's records change a weight.
    assert torch.equal(id_weights(ids + ["d"] * 7)[: len(ids)], weights)


def test_the_records_of_a_person_move_the_sums_no_further_than_one():
    most, alone = (moved(4, CLASSES, a) for a in (Adjacency.REPLACE, Adjacency.ZERO_OUT))
    for seed in range(100):
        n = 1 + seed % 7
        sums = []
        for world in (0, 1):
            sign = -1 if world else 1
            rows = torch.stack([sign * unit_row(seed + i // 3) for i in range(n)])
            labels = torch.full((n,), (seed * world) % CLASSES)
            sums.append(moment_sums([(rows, labels, id_weights(["a"] * n))], 4, CLASSES))
        assert between(*sums, 4) <= most
        assert between(sums[0], 0 * sums[0], 4) <= alone


def test_sums_that_are_no_whole_numbers_are_refused():
    for mechanism in (noisy_moments(1.0, 2, None), MaskedShare(moments_bound(2, None), 1.0, 3, 1)):
        source = SeededNoise(0) if not isinstance(mechanism, MaskedShare) else SeededBits(0)
        with pytest.raises(ConfigError, match="whole numbers"):
            mechanism.privatise(torch.zeros(1, 3).double(), source)
        with pytest.raises(ConfigError, match="vectors of 3 numbers"):
            mechanism.privatise(torch.zeros(1, 4).long(), source)


def test_masked_sums_cost_what_their_closed_form_says():
    bound, tau, holders, tolerated = moments_bound(4, CLASSES), 1.7, 5, 2
    share = MaskedShare(bound, tau / holders, holders, tolerated)
    # Nothing is rounded, so no √D: Δ²/2τ², whatever m and t are.
    moved_by = bound.moves[Unit.RECORD][Adjacency.ZERO_OUT]
    assert share.rho(Unit.RECORD, Adjacency.ZERO_OUT) == pytest.approx(
        moved_by**2 / (2 * tau**2), rel=1e-5
    )
    assert (share.grid.bits, share.grid.word) == (SUM_BITS, 64)
    assert 2 * share.variance_of(2) >= share.own_variance >= share.variance_of(2)


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


def test_a_vector_keeps_distances_and_gives_the_sums_back():
    rows, labels, weights = some_records(12, 4)
    bounded = lattice_rows(rows) / 2**13
    weighted = bounded * (weights.double() / FULL_WEIGHT)[:, None]
    one_hot = torch.eye(CLASSES).double()[labels]
    for classes in (CLASSES, None):
        vector = moment_sums([(rows, labels, weights)], 4, classes)
        again = MomentSums.from_vector(vector * UNIT, 4, classes)
        assert torch.allclose(again.second, weighted.T @ bounded)
        assert torch.equal(again.second, again.second.T)
        parts = [again.second]
        if again.by_class is not None:
            assert torch.allclose(again.by_class, weighted.T @ one_hot)
            parts.append(again.by_class)
        whole = torch.cat([part.flatten() for part in parts])
        assert apart(vector, 0 * vector, moments_bound(4, classes)) * UNIT == pytest.approx(
            float(whole.norm())
        )
    with pytest.raises(ConfigError, match="22 numbers"):
        MomentSums.from_vector(torch.zeros(21), 4, CLASSES)


def test_noise_is_isotropic_among_symmetric_matrices():
    mechanism, n = noisy_moments(3.0, 2, CLASSES), 20_000
    noisy = mechanism.privatise(torch.zeros(n, mechanism.width).long(), SeededNoise(0))
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


def test_noise_is_added_in_whole_units_and_nothing_is_rounded_but_the_sum_of_both():
    mechanism = noisy_moments(1.0, 2, None)
    sums = torch.tensor([[2**40 + 1, 7, -3]])
    told = mechanism.privatise(sums, SeededNoise(0))
    again = mechanism.privatise(torch.zeros_like(sums), SeededNoise(0))
    assert told.dtype is torch.float64
    # By the noise beside the diagonal, which is the smallest.
    assert mechanism.grid == 2.0**-9
    cells = (told - again) / mechanism.grid
    assert torch.equal(cells, cells.round())
    off = ((told - again) / UNIT - sums.double()).abs()
    assert float(off.max()) <= mechanism.grid / UNIT


def test_no_holder_can_round_away_another_ones_record():
    # A server that adds floats would lose the second vector beside the first, and its noise too.
    central = CentralNoise(moments_bound(1, None), 1.0, 2)
    told = [
        central.noisy_sum([torch.tensor([[loud]]), torch.tensor([[own]])], SeededNoise(0))
        for loud, own in ((2**62, 5 << SUM_BITS), (2**62, 6 << SUM_BITS))
    ]
    assert float((told[1] - told[0])[0, 0]) == pytest.approx(1.0, abs=2.0**-20)
    # Modulo 2⁶⁴, without an error.
    huge = torch.tensor([[2**63 - 1]])
    assert bool(torch.isfinite(central.noisy_sum([huge, huge], SeededNoise(0))).all())


def test_noise_that_whole_numbers_cannot_carry_is_refused_before_anything_is_charged():
    bound = moments_bound(2, None)
    for make in (
        lambda: LocalNoise(bound, 1e9),
        lambda: CentralNoise(bound, 1e9),
        lambda: MaskedShare(bound, 1e4, 3, 1),
    ):
        with pytest.raises(ConfigError, match="larger epsilon"):
            make()


@pytest.mark.parametrize("std", [0.0, -1.0, math.inf, math.nan])
def test_no_noise_is_refused(std: float):
    with pytest.raises(ConfigError, match="noise_std"):
        noisy_moments(std, 2, None)
