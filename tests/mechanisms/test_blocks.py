import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtranscribe.errors import ConfigError
from fedtranscribe.noise.gaussian import CentralNoise, LocalNoise
from fedtranscribe.noise.sources import SeededNoise
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.closed_forms import gaussian_mu
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions.mixture import (
    band_energies,
    block_matrices,
    block_products,
    energies_bound,
    mixture_bound,
    products_bound,
)
from fedtranscribe.questions.moments import SUM_BITS, moment_sums
from fedtranscribe.questions.question import triangle_length
from fedtranscribe.questions.records import FULL_WEIGHT, id_weights
from tests.mechanisms_for import apart

UNIT = 2.0**-SUM_BITS
WIDTH, BLOCKS = 4, 3
# Truncation shortens a row by less than that.
SHORT = 2.0**-11
NUMBERS = st.one_of(
    st.floats(width=64),
    st.sampled_from([0.0, 1.0, -1.0, 1e308, -1e308, 5e-324, 1e-160, math.nan, math.inf]),
)
ROWS = st.lists(NUMBERS, min_size=WIDTH, max_size=WIDTH)


def full(records: int) -> torch.Tensor:
    return torch.full((records,), FULL_WEIGHT)


def products(row: list[float], block: int) -> torch.Tensor:
    rows = torch.tensor([row], dtype=torch.float64)
    return block_products([(rows, torch.tensor([block]), full(1))], WIDTH, BLOCKS)


def energies(row: list[float], where: list[int]) -> torch.Tensor:
    rows = torch.tensor([row], dtype=torch.float64)
    return band_energies([(rows, full(1))], torch.tensor(where), WIDTH)


BANDS = st.lists(st.integers(0, WIDTH - 1), min_size=WIDTH, max_size=WIDTH)


@given(first=ROWS, second=ROWS, here=st.integers(0, 2), there=st.integers(0, 2), bands=BANDS)
@settings(max_examples=300, deadline=None)
def test_no_pair_of_records_lies_further_apart_than_the_sensitivity(
    first, second, here, there, bands
):
    pairs = [
        (products(first, here), products(second, there), products_bound(WIDTH, BLOCKS)),
        (energies(first, bands), energies(second, bands), energies_bound(WIDTH)),
    ]
    for one, other, bound in pairs:
        moves = bound.moves[Unit.RECORD]
        assert apart(one, other, bound) * UNIT <= moves[Adjacency.REPLACE]
        assert apart(one, 0 * one, bound) * UNIT <= moves[Adjacency.ZERO_OUT] == 1


def test_the_worst_pairs_of_the_proof_are_as_bad_as_it_says():
    along, across = [1.0, 0, 0, 0], [0, 1.0, 0, 0]
    bound = products_bound(WIDTH, BLOCKS)
    for other in (products(across, 0), products(along, 1)):
        far = apart(products(along, 0), other, bound) * UNIT
        assert far == pytest.approx(math.sqrt(2), abs=SHORT)
    assert apart(products(along, 0), 0 * products(along, 0), bound) * UNIT == pytest.approx(
        1, abs=SHORT
    )
    apart_bands = list(range(WIDTH))
    far = (
        apart(energies(along, apart_bands), energies(across, apart_bands), energies_bound(WIDTH))
        * UNIT
    )
    assert far == pytest.approx(math.sqrt(2), abs=SHORT)


def test_blocks_cost_what_a_single_sum_costs():
    one = LocalNoise(products_bound(WIDTH, 1), 2.0).release(1, positional_ids=False)
    many = LocalNoise(products_bound(WIDTH, 640), 2.0).release(1, positional_ids=False)
    assert one.costs == many.costs
    assert set(one.costs) == {Unit.RECORD}, "a whole holder has no guarantee"


@pytest.mark.parametrize("target", [0.5, 1.0, 10.0])
@pytest.mark.parametrize("bound", [products_bound(5, 7), energies_bound(9)], ids=lambda b: b.name)
def test_the_cost_is_that_of_a_gaussian_with_this_sensitivity(bound, target: float):
    delta = 1e-5
    noise = LocalNoise(bound, 1 / gaussian_mu(target, delta))
    event = noise.release(1, positional_ids=False).event(Unit.RECORD, Adjacency.ZERO_OUT)
    assert epsilon([event], delta) == pytest.approx(target, rel=1e-4)


# ---------------------------------------------------------------- exact sums


def some_records(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(n)).double()
    return rows, torch.arange(n) % BLOCKS, id_weights([str(i % (n - 3)) for i in range(n)])


def test_sums_are_exact_whatever_the_order_and_the_parts():
    rows, blocks, weights = some_records(50)
    whole = block_products([(rows, blocks, weights)], WIDTH, BLOCKS)
    where = torch.tensor([0, 1, 1, 2])
    alone = band_energies([(rows, weights)], where, 3)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(3))
    for size in (1, 7, 50):
        picks = order.split(size)
        parts = [(rows[p], blocks[p], weights[p]) for p in picks]
        assert torch.equal(block_products(parts, WIDTH, BLOCKS), whole)
        assert torch.equal(band_energies([(r, w) for r, _, w in parts], where, 3), alone)
        # Over any split among holders, too.
        of_each = [block_products([part], WIDTH, BLOCKS) for part in parts]
        assert torch.equal(torch.stack(of_each).sum(0), whole)


def test_blocks_add_up_to_the_moments_of_all_records():
    rows, blocks, weights = some_records(50)
    by_block = block_products([(rows, blocks, weights)], WIDTH, BLOCKS)
    total = moment_sums([(rows, blocks, weights)], WIDTH, None)
    assert torch.equal(by_block.reshape(BLOCKS, -1).sum(0), total)


def test_a_person_of_many_records_moves_a_sum_as_one_record():
    rows = torch.eye(WIDTH).double()[[0, 0, 1, 2]]
    weights = id_weights(["a"] * 4)
    spread = block_products([(rows, torch.tensor([0, 1, 2, 0]), weights)], WIDTH, BLOCKS)
    bound = products_bound(WIDTH, BLOCKS)
    assert apart(spread, 0 * spread, bound) * UNIT <= 1
    assert float(spread.sum()) * UNIT == pytest.approx(1, abs=4 * SHORT)


@pytest.mark.parametrize("block", [-1, BLOCKS])
def test_a_block_that_there_is_not_is_refused(block: int):
    with pytest.raises(ConfigError, match="blocks from 0 to 2"):
        products([1.0, 0, 0, 0], block)


# ---------------------------------------------------------------- vectors and noise


def test_matrices_come_back_out_of_a_vector():
    rows, blocks, weights = some_records(30)
    vector = block_products([(rows, blocks, weights)], WIDTH, BLOCKS) * UNIT
    found = block_matrices(vector, WIDTH, BLOCKS)
    bounded = rows / rows.norm(dim=1, keepdim=True).clamp_min(1)
    shares = weights.double() / FULL_WEIGHT
    for block in range(BLOCKS):
        here = blocks == block
        expected = (bounded[here].T * shares[here]) @ bounded[here]
        torch.testing.assert_close(found[block], expected, atol=30 * SHORT, rtol=0)
    with pytest.raises(ConfigError, match="30 numbers, got"):
        block_matrices(vector[1:], WIDTH, BLOCKS)


def test_noise_is_that_of_symmetric_matrices():
    bound = products_bound(WIDTH, BLOCKS)
    zeros = torch.zeros(4_000, bound.width, dtype=torch.int64)
    drawn = LocalNoise(bound, 3.0).privatise(zeros, SeededNoise(5)).double()
    found = drawn.std(0).reshape(BLOCKS, triangle_length(WIDTH))
    rows, columns = torch.triu_indices(WIDTH, WIDTH)
    expected = torch.where(rows == columns, 3.0, 3.0 / math.sqrt(2)).double()
    assert float((found / expected - 1).abs().max()) < 0.06
    plain = LocalNoise(energies_bound(5), 3.0).privatise(
        torch.zeros(4_000, 5, dtype=torch.int64), SeededNoise(6)
    )
    assert float((plain.double().std(0) / 3 - 1).abs().max()) < 0.06


def test_a_part_of_a_plan_names_the_bound():
    assert mixture_bound(5, 7) == products_bound(5, 7)
    assert mixture_bound(5, None) == energies_bound(5)


# ---------------------------------------------------------------- the grid under exact sums


@pytest.mark.parametrize("std", [1e-9, 0.3, 4.0, 2.0**14, 2.0**20])
@pytest.mark.parametrize("place", [LocalNoise, CentralNoise])
def test_noisy_sums_lie_on_a_grid_that_hides_how_finely_noise_is_drawn(place, std: float):
    bound = products_bound(WIDTH, BLOCKS)
    # A sum whose last bits say much: without a grid they would show where noise has gaps.
    values = torch.full((200, bound.width), 123_456_789_012_345, dtype=torch.int64)
    mechanism = place(bound, std)
    noisy = (
        mechanism.privatise(values, SeededNoise(7))
        if place is LocalNoise
        else mechanism.noisy_sum([values], SeededNoise(7))
    )
    cell = LocalNoise(bound, std).grid
    # The quietest numbers are those beside the diagonal.
    assert cell == UNIT or std / math.sqrt(2) / 512 < cell <= std / math.sqrt(2) / 256
    assert torch.equal(noisy / cell, (noisy / cell).round())
    off = (noisy - values.double() * UNIT) * bound.counts.double().sqrt()
    assert abs(float(off.mean())) < 5 * std / math.sqrt(off.numel()) + UNIT
    assert float(off.std()) == pytest.approx(std, rel=0.05, abs=UNIT)


def test_no_answer_tells_which_whole_numbers_the_noise_can_reach():
    # At this std the float64 numbers behind the noise are 2³ units apart or more around zero: an
    # answer to the unit would name the sum by what could have been drawn.
    std, bound = 2.0**20, energies_bound(64)
    values = torch.arange(64, dtype=torch.int64)[None]
    noisy = LocalNoise(bound, std).privatise(values, SeededNoise(8))
    cell = int(LocalNoise(bound, std).grid * 2**SUM_BITS)
    assert cell >= 2**44
    assert bool(((noisy * 2.0**SUM_BITS).long() % cell == 0).all())


def test_the_grid_is_kept_where_sums_wrap_around():
    bound = energies_bound(3)
    edge = torch.tensor([[2**63 - 1, -(2**63), 0]])
    noisy = LocalNoise(bound, 4.0).privatise(edge, SeededNoise(9))
    cell = LocalNoise(bound, 4.0).grid
    assert torch.equal(noisy / cell, (noisy / cell).round())
    near = torch.minimum((noisy - edge * UNIT).abs(), 2.0**28 - (noisy - edge * UNIT).abs())
    assert float(near.max()) < 30
