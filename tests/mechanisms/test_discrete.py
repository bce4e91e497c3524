"""Discrete noise is exact, the grid moves no row by more than is booked, and a game agrees."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedtranscribe.errors import ConfigError
from fedtranscribe.noise import masked as sampler
from fedtranscribe.noise.masked import Grid, discrete_gaussian, residues
from fedtranscribe.noise.sources import OsBits, SeededBits
from fedtranscribe.privacy.calibrate import DIAMETERS, EnsembleLayout
from fedtranscribe.privacy.calibrate import noise_std as central_std
from fedtranscribe.privacy.closed_forms import gaussian_epsilon
from fedtranscribe.privacy.units import Adjacency, NoiseMode, RowAnswer, Unit
from fedtranscribe.privacy.zcdp import ZeroConcentrated
from fedtranscribe.questions.rows import RowBound, mean_rows
from tests.mechanisms_for import masked_mean_rows, masked_std

# A false alarm once in a million runs of an unseeded source.
LIKELY = 1e-6
DELTA = 1e-5
MANY = settings(max_examples=120, deadline=None)
EXTREMES = [0.0, 1.0, -1.0, 0.5, 1e38, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf]
NUMBERS = st.one_of(st.sampled_from(EXTREMES), st.floats(width=64), st.floats(-1, 1))


def fit(drawn: np.ndarray, variance: float) -> float:
    """p-value of draws under the probabilities of N_Z(0, variance), rare values pooled."""
    reach = math.floor(3 * math.sqrt(variance))
    support = np.arange(-40 * reach, 40 * reach + 1)
    p = np.exp(-(support.astype(float) ** 2) / (2 * variance))
    p /= p.sum()
    inside = np.abs(support) <= reach
    expected = np.array([*p[inside], p[support < -reach].sum(), p[support > reach].sum()])
    seen = np.bincount(drawn[np.abs(drawn) <= reach] + reach, minlength=2 * reach + 1)
    observed = np.array([*seen, (drawn < -reach).sum(), (drawn > reach).sum()])
    assert (expected * len(drawn) > 5).all()
    return stats.chisquare(observed, expected * len(drawn)).pvalue


# ---------------------------------------------------------------- the sampler


@pytest.mark.parametrize("variance", [1, 2, 3, 4, 5, 9, 17, 100, 2500])
def test_draws_follow_the_discrete_gaussian(variance):
    assert fit(discrete_gaussian(200_000, variance, OsBits()), variance) > LIKELY


@pytest.mark.parametrize("variance", [2**34 + 1, 2**60 - 3, 2**96])
def test_wide_draws_follow_the_gaussian_and_fill_the_lattice(variance):
    drawn = discrete_gaussian(100_000, variance, OsBits())
    assert stats.kstest(drawn / math.sqrt(variance), "norm").pvalue > LIKELY
    for residue in (2, 7, 256):
        counts = np.bincount(drawn % residue, minlength=residue)
        assert stats.chisquare(counts).pvalue > LIKELY


def test_draws_are_independent_of_each_other():
    drawn = discrete_gaussian(200_000, 9, OsBits()).astype(float)
    for lag in (1, 2, 10):
        assert abs(np.corrcoef(drawn[lag:], drawn[:-lag])[0, 1]) < 5 / math.sqrt(len(drawn))


@pytest.mark.parametrize("variance", [1, 7, 10**9])
def test_exact_comparisons_decide_as_doubles_do(variance, monkeypatch):
    fast = discrete_gaussian(300, variance, SeededBits(5))
    monkeypatch.setattr(sampler, "_CLOSE", 2.0)
    assert (discrete_gaussian(300, variance, SeededBits(5)) == fast).all()


class Words:
    """The given words, and then no more."""

    private = False

    def __init__(self, *words: int) -> None:
        self.left = list(words)

    def for_query(self, query_id: str) -> "Words":
        return self

    def words(self, count: int):
        taken, self.left = self.left[:count], self.left[count:]
        assert len(taken) == count, "more bits than expected"
        return np.array(taken, dtype=np.uint64)


def test_a_comparison_takes_as_many_bits_as_it_needs():
    # Zero is accepted with probability 4/5, in binary 0.110011001100…: follow it to any depth.
    word = 0xCCCCCCCCCCCCCCCC
    for depth in (0, 1, 5):
        alike = [word] * depth
        assert sampler._is_below(word, 0, 0, 9, Words(*alike, word - 1))
        assert not sampler._is_below(word, 0, 0, 9, Words(*alike, word + 1))
    assert sampler._is_below(word - 1, 0, 0, 9, Words())
    assert not sampler._is_below(word + 1, 0, 0, 9, Words())


def test_probabilities_are_exact_to_the_last_of_64_bits():
    # Against the same number by a series in integers: e^{−x²/2σ²} 2^v 4/5 for x = 5, σ² = 8, v = 1.
    y, term, series = Fraction(25, 16), Fraction(1), Fraction(0)
    for i in range(1, 80):
        series += term
        term *= -y / i
    word = int(2 * series * Fraction(4, 5) * 2**64)
    assert sampler._is_below(word - 1, 1, 5, 8, Words())
    assert not sampler._is_below(word + 1, 1, 5, 8, Words())


def test_zeros_run_on_beyond_one_word():
    zeros = sampler._trailing_zeros(np.array([1, 8, 0, 2**62], dtype=np.uint64), Words(0, 2 << 1))
    assert zeros.tolist() == [0, 3, 63 + 63 + 1, 62]


def test_every_integer_has_one_way_to_come_up():
    # −0 is refused; otherwise zero would be twice as likely as it should be.
    width_of_one = dict.fromkeys((0, 1))
    for sign in width_of_one:
        # 64 + 2 proposals: words say v = 0 and the sign, steps u = 0, uniforms accept.
        words = [0b10 | sign] * 66 + [0] * 66 + [0] * 66
        width_of_one[sign] = len(sampler._accepted(66, 4, Words(*words)))
    assert width_of_one == {0: 66, 1: 0}


def test_os_bits_never_repeat_and_seeded_ones_do():
    source = OsBits()
    assert source.private
    assert source.for_query("q") is source
    assert (source.words(16) != source.words(16)).any()
    first, second = SeededBits(1, "a"), SeededBits(1, "a")
    assert not first.private
    second.for_query("other").words(8)
    one = first.for_query("q").words(8)
    assert (one == second.for_query("q").words(8)).all()
    for other in (SeededBits(2, "a"), SeededBits(1, "b")):
        assert (one != other.for_query("q").words(8)).any()
    assert (one != first.for_query("r").words(8)).any()


@pytest.mark.parametrize("variance", [0, -1, 2**96 + 1])
def test_variances_out_of_range_are_refused(variance):
    with pytest.raises(ConfigError, match="variance="):
        discrete_gaussian(1, variance, OsBits())
    assert len(discrete_gaussian(0, 1, OsBits())) == 0


# ---------------------------------------------------------------- the grid


@given(
    s=st.floats(1e-9, 1e6),
    holders=st.integers(1, 1000),
    data=st.data(),
)
@MANY
def test_a_whole_sum_fits_on_the_grid_with_sixteen_deviations(s, holders, data):
    tolerated = data.draw(st.integers(0, holders - 1))
    mechanism = masked_mean_rows(
        EnsembleLayout(holders, holders), s, RowAnswer.GRADIENT, 10, tolerated
    )
    grid = mechanism.grid
    deviation = math.sqrt(holders * mechanism.own_variance)
    room = 2**31 if grid.word == 32 else 2**52
    assert holders * grid.scale + 16 * deviation < room
    # Never finer than useful, never coarser than it has to be.
    assert grid.bits == 24 or holders * 2 * grid.scale + 32.1 * deviation > room * 0.98
    assert grid.word == 64 or grid.bits >= 20
    assert mechanism.own_variance <= 2**96


def test_noise_without_a_grid_is_refused():
    with pytest.raises(ConfigError, match="leaves a grid"):
        Grid.choose(1e14, 5, 1)


@pytest.mark.parametrize("grid", [Grid(20, 32), Grid(24, 32), Grid(24, 64), Grid(1, 64)])
def test_residues_and_back(grid):
    values = torch.tensor([[0, 1, -1], [grid.scale, -grid.scale, 7]])
    first = residues(values, grid.word)
    assert first.dtype == (np.uint32 if grid.word == 32 else np.uint64)
    torch.testing.assert_close(grid.decode(first), (values / grid.scale).double())
    total = first + residues(-3 * values, grid.word)
    torch.testing.assert_close(grid.decode(total), (-2 * values / grid.scale).double())


# ---------------------------------------------------------------- sensitivity


@st.composite
def neighbouring_blocks(draw):
    """Two worlds of p shards' rows that share all but shard 0, and a third with none shared."""
    shards, holders = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    n, c = draw(st.integers(1, 2)), draw(st.integers(2, 5))

    def rows():
        numbers = draw(st.lists(NUMBERS, min_size=n * c, max_size=n * c))
        return torch.tensor(numbers, dtype=torch.float64).view(1, n, c)

    before = [rows() for _ in range(shards)]
    sets = torch.arange(c).repeat(n, 1)
    return before, [rows(), *before[1:]], [rows() for _ in range(shards)], sets, holders


class Zeros(SeededBits):
    """Words with which the sampler draws zero only: what is left is the quantised row."""

    def __init__(self) -> None:
        super().__init__(0)

    def words(self, count: int):
        # v = 0 and plus for odd places of two; steps 0; uniforms 0: all accepted as +0.
        self.calls = getattr(self, "calls", -1) + 1
        value = 0b10 if self.calls % 3 == 0 else 0
        return np.full(count, value, dtype=np.uint64)


@pytest.mark.parametrize("std", [1e-7, 0.3, 3e5])
@pytest.mark.parametrize("answer", list(RowAnswer))
@given(case=neighbouring_blocks())
@MANY
def test_no_unit_moves_an_integer_row_by_more_than_is_booked(answer, std, case):
    before, one_record, whole_holder, sets, holders = case
    shards, k = len(before), sets.shape[1]
    mechanism = masked_mean_rows(EnsembleLayout(shards * holders, holders), std, answer, k, 0)
    bounds = [RowBound.SIMPLEX] if answer is RowAnswer.VOTE else [RowBound.UNIT, RowBound.CLIP]
    for bound in bounds:
        old = mechanism.privatise(mean_rows(before, sets, shards, bound), Zeros())
        for unit, after in ((Unit.RECORD, one_record), (Unit.HOLDER, whole_holder)):
            new = mechanism.privatise(mean_rows(after, sets, shards, bound), Zeros())
            squares = ((new - old) ** 2).sum(-1)
            # In integers: no rounding in the yardstick.
            assert int(squares.max()) <= Fraction(mechanism.sensitivity(unit)) ** 2
        assert int(old.abs().max()) <= mechanism.grid.scale


@given(
    first=st.lists(st.floats(-1, 1), min_size=4, max_size=4),
    second=st.lists(st.floats(-1, 1), min_size=4, max_size=4),
    bits=st.integers(1, 24),
)
@MANY
def test_rounding_moves_two_rows_apart_by_at_most_the_root_of_k(first, second, bits):
    grid = Grid(bits, 32)
    moved = (grid.quantise(torch.tensor(first)) - grid.quantise(torch.tensor(second))).tolist()
    exact = [
        grid.scale * (Fraction(a) - Fraction(b))
        for a, b in zip(torch.tensor(first).tolist(), torch.tensor(second).tolist(), strict=True)
    ]
    grown = math.sqrt(sum(d * d for d in moved))
    assert grown <= math.sqrt(sum(d * d for d in exact)) + 2.0 + 1e-9


def test_the_root_of_k_is_reached():
    # Otherwise the term could be spare.
    grid, k = Grid(4, 32), 9
    first = torch.full((1, k), 0.5 + 1e-9, dtype=torch.float64) / grid.scale
    second = torch.full((1, k), -0.5 - 1e-9, dtype=torch.float64) / grid.scale
    moved = (grid.quantise(first) - grid.quantise(second)).double().norm()
    exact = float((first - second).norm()) * grid.scale
    assert float(moved) - exact == pytest.approx(math.sqrt(k), abs=1e-6)


def test_one_shard_uses_the_room_for_rounding_on_a_coarse_grid():
    # Nine coordinates, each just past half a unit, one way and the other.
    mechanism = masked_mean_rows(EnsembleLayout(2), 4e13, RowAnswer.GRADIENT, 9, 0)
    scale, sets = mechanism.grid.scale, torch.arange(9).view(1, 9)
    row = torch.full((1, 1, 9), 1.0 / scale + 1e-9, dtype=torch.float64)
    told = [
        mechanism.privatise(mean_rows([r, 0 * r], sets, 2, RowBound.CLIP), Zeros())
        for r in (row, -row)
    ]
    moved = float((told[0] - told[1]).double().norm())
    assert scale * DIAMETERS[RowAnswer.GRADIENT] / 2 < moved
    assert moved <= mechanism.sensitivity(Unit.RECORD)


def test_rows_that_are_no_numbers_become_zero_rows():
    mechanism = masked_mean_rows(EnsembleLayout(4, 2), 0.3, RowAnswer.GRADIENT, 3, 0)
    rows = torch.tensor([[math.nan, 1, 0], [math.inf, 0, 0], [1e308, 1e308, 0], [0, 0, -1]])
    told = mechanism.privatise(rows, Zeros())
    scale = mechanism.grid.scale
    assert told[:2].abs().max() == 0
    assert told[3].tolist() == [0, 0, -scale]
    with pytest.raises(ConfigError, match="3 numbers"):
        mechanism.privatise(rows[:, :2], Zeros())


# ---------------------------------------------------------------- cost


@given(
    s=st.floats(1e-8, 1e3),
    m=st.integers(1, 40),
    data=st.data(),
)
@MANY
def test_honest_shares_add_up_to_the_planned_variance_or_more(s, m, data):
    tolerated = data.draw(st.integers(0, m - 1))
    mechanism = masked_mean_rows(EnsembleLayout(m, m), s, RowAnswer.VOTE, 5, tolerated)
    planned = (Fraction(s) * m * mechanism.grid.scale) ** 2
    assert mechanism.shares == m - tolerated
    assert mechanism.shares * mechanism.own_variance >= planned
    assert mechanism.own_variance <= planned / mechanism.shares + 1


@pytest.mark.parametrize("answer", list(RowAnswer))
@pytest.mark.parametrize("unit", list(Unit))
def test_the_booked_rho_is_that_of_the_central_gaussian_and_the_rounding(answer, unit):
    layout, s, k = EnsembleLayout(250, 5), 0.253, 10
    mechanism = masked_mean_rows(layout, s, answer, k, 1)
    moved = DIAMETERS[answer] / (50 if unit is Unit.RECORD else 1)
    central = (moved / (5 * s)) ** 2 / 2
    assert central < mechanism.rho(unit) < central * (1 + 1e-4)
    release = mechanism.release(4000, positional_ids=False)
    for adjacency in Adjacency:
        event = release.event(unit, adjacency)
        assert isinstance(event, ZeroConcentrated)
        assert event.zcdp_rho == pytest.approx(4000 * central, rel=1e-4)


def test_positional_ids_know_no_adding_and_removing_of_records():
    mechanism = masked_mean_rows(EnsembleLayout(4, 2), 0.3, RowAnswer.VOTE, 3, 0)
    costs = mechanism.release(5, positional_ids=True).costs
    assert Adjacency.ADD_REMOVE not in costs[Unit.RECORD]
    assert Adjacency.ADD_REMOVE in costs[Unit.HOLDER]


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
@pytest.mark.parametrize(("m", "tolerated"), [(5, 1), (5, 0), (100, 33)])
def test_noise_for_an_epsilon_costs_it_and_little_more_than_central_noise(epsilon, m, tolerated):
    layout, target = EnsembleLayout(50 * m, m), (epsilon, DELTA, 4000)
    s = masked_std(*target, layout, Unit.RECORD, RowAnswer.GRADIENT, 10, tolerated)
    mechanism = masked_mean_rows(layout, s, RowAnswer.GRADIENT, 10, tolerated)
    event = mechanism.release(4000, positional_ids=False).event(Unit.RECORD, Adjacency.ZERO_OUT)
    assert isinstance(event, ZeroConcentrated)
    assert epsilon * (1 - 1e-6) < event.epsilon(DELTA) <= epsilon
    central = central_std(*target, layout, Unit.RECORD, RowAnswer.GRADIENT, NoiseMode.CENTRAL)
    assert 1 < s / central < 1.1
    # All of that is the price of zCDP: the same ρ in a Gaussian is the smaller ε.
    assert gaussian_epsilon(math.sqrt(2 * event.zcdp_rho), DELTA) < epsilon


@pytest.mark.parametrize(
    "changed",
    [
        {"noise_std": 0.0},
        {"noise_std": math.nan},
        {"tolerated": -1},
        {"tolerated": 4},
        {"k": 0},
    ],
)
def test_mechanisms_out_of_range_are_refused(changed):
    good = {"noise_std": 0.3, "answer": RowAnswer.VOTE, "k": 3, "tolerated": 1}
    assert masked_mean_rows(EnsembleLayout(8, 4), **good).bound.name == "mean-votes"
    with pytest.raises(ConfigError, match="Expected"):
        masked_mean_rows(EnsembleLayout(8, 4), **(good | changed))
    with pytest.raises(ConfigError, match="rows=0"):
        masked_std(1.0, DELTA, 0, EnsembleLayout(4, 4), Unit.RECORD, RowAnswer.VOTE, 3, 1)


# ---------------------------------------------------------------- a game


@pytest.mark.parametrize("sabotage", [1.0, 0.5])
def test_a_distinguishing_game_on_the_sum_finds_no_more_than_is_booked(sabotage):
    # Three holders, one silent and one whose noise the adversary knows left out: only the
    # noise of m − t = 2 is in the sum. The record's shard points one way or the other.
    layout, trials, k = EnsembleLayout(3, 3), 200_000, 2
    s = masked_std(1.0, DELTA, 1, layout, Unit.RECORD, RowAnswer.GRADIENT, k, 1)
    used = masked_mean_rows(layout, s * sabotage, RowAnswer.GRADIENT, k, 1)
    sums = []
    for world, sign in enumerate((1.0, -1.0)):
        target = torch.tensor([[sign, 0.0]], dtype=torch.float64).expand(trials, k)
        other = torch.zeros(trials, k, dtype=torch.float64)
        told = [
            residues(used.privatise(rows, SeededBits(7, f"{world}/{i}")), used.grid.word)
            for i, rows in enumerate((target, other))
        ]
        sums.append(used.grid.decode(told[0] + told[1])[:, 0].numpy())
    found = lower_bound(sums[0], sums[1])
    if sabotage == 1.0:
        assert 0.4 < found < 1.0
    else:
        assert found > 1.0


def lower_bound(first: np.ndarray, second: np.ndarray, confidence: float = 1e-3) -> float:
    """ε that is certified at δ by one threshold, chosen on one half and judged on the other."""
    half = len(first) // 2
    best = max(
        np.quantile(first[:half], np.linspace(0.5, 0.999, 100)),
        key=lambda t: clopper(first[:half] >= t, second[:half] >= t, confidence),
    )
    return clopper(first[half:] >= best, second[half:] >= best, confidence)


def clopper(hits: np.ndarray, falses: np.ndarray, confidence: float) -> float:
    n, hit, false = len(hits), int(hits.sum()), int(falses.sum())
    low = stats.beta.ppf(confidence / 2, hit, n - hit + 1)
    high = stats.beta.ppf(1 - confidence / 2, false + 1, n - false)
    return math.log(max(low - DELTA, 1e-300) / high)


def test_the_grid_is_the_exact_one_at_the_edge_of_a_power_of_two():
    """Two holders must never find two grids: no logarithm of a library decides."""
    for bits in range(2, 24):
        for step in range(-3, 4):
            # Strengths at which the room left is a power of two, but for a few units.
            room = 2.0**bits * (1 + step * 2.0**-52)
            std = ((2**31 - 16 * math.sqrt(5)) / room - 5) * math.sqrt(3) / (16 * math.sqrt(5) * 5)
            if std > 0:
                grid = Grid.choose(std, 5, 2)
                reach = Fraction(5 + 16 * math.sqrt(5) * 5 * std / math.sqrt(3))
                if grid.word == 32 and grid.bits < 24:
                    assert Fraction(2) ** grid.bits * reach <= 2**31
