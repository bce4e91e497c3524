import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.accountant import epsilon, epsilon_filter
from fedtranscribe.privacy.calibrate import (
    DIAMETERS,
    RAW_ROUNDING,
    EnsembleLayout,
    label_epsilon0,
    mean_sensitivity,
    noise_std,
    row_mu,
    vote_eta,
)
from fedtranscribe.privacy.events import Gaussian
from fedtranscribe.privacy.label_events import ExponentialVotes, RandomizedResponse
from fedtranscribe.privacy.units import NoiseMode, RowAnswer, Unit

DELTA = 1e-5
CENTRAL, LOCAL, SECAGG = NoiseMode.CENTRAL, NoiseMode.LOCAL, NoiseMode.SECAGG
FIVE = EnsembleLayout(250, 5)


@pytest.mark.parametrize(
    ("target", "rows", "layout", "unit", "noise", "expected"),
    [
        (10, 50_000, EnsembleLayout(250), Unit.RECORD, CENTRAL, 0.894),
        (10, 50_000, FIVE, Unit.RECORD, CENTRAL, 0.894),
        (10, 50_000, FIVE, Unit.HOLDER, CENTRAL, 44.7),
        (1, 10_000, EnsembleLayout(1000), Unit.RECORD, CENTRAL, 0.746),
        (10, 50_000, FIVE, Unit.RECORD, LOCAL, 2.00),
        (10, 50_000, FIVE, Unit.HOLDER, LOCAL, 100.0),
    ],
)
def test_noise_of_the_contract(
    target: float,
    rows: int,
    layout: EnsembleLayout,
    unit: Unit,
    noise: NoiseMode,
    expected: float,
) -> None:
    assert noise_std(target, DELTA, rows, layout, unit, "gradient", noise) == pytest.approx(
        expected, rel=1e-3
    )


@given(
    target=st.floats(0.1, 20.0),
    rows=st.integers(1, 10**5),
    shards=st.integers(1, 100),
    holders=st.integers(1, 20),
    unit=st.sampled_from(Unit),
    answer=st.sampled_from(RowAnswer),
    noise=st.sampled_from([CENTRAL, LOCAL]),
)
@settings(deadline=None, max_examples=60)
def test_calibrated_noise_costs_the_target(
    target: float,
    rows: int,
    shards: int,
    holders: int,
    unit: Unit,
    answer: RowAnswer,
    noise: NoiseMode,
) -> None:
    layout = EnsembleLayout(shards * holders, holders)
    std = noise_std(target, DELTA, rows, layout, unit, answer, noise)
    event = Gaussian(row_mu(std, layout, unit, answer, noise), rows)
    assert epsilon([event], DELTA) == pytest.approx(target, rel=1e-9)
    # A ledger that books row by row must admit the last row as well.
    assert epsilon_filter([event] * 3, DELTA / 3) > 0
    one_by_one = [Gaussian(event.mu)] * min(rows, 50) + [Gaussian(event.mu, max(1, rows - 50))]
    if rows > 50:
        assert epsilon_filter(one_by_one, DELTA) <= target * (1 + 1e-9)


@pytest.mark.parametrize("noise", [CENTRAL, LOCAL])
@pytest.mark.parametrize("unit", list(Unit))
def test_sensitivity_by_first_principles(unit: Unit, noise: NoiseMode) -> None:
    # One shard's row moves by a diameter; follow it to what is seen, and divide by its noise.
    shards, holders, std = 50, 5, 0.37
    own = 2.0 / (shards if unit is Unit.RECORD else 1)
    if noise is CENTRAL:
        own += RAW_ROUNDING  # raw rows travel as float32
    if noise is LOCAL:
        seen, noise_seen = own, math.sqrt(holders) * std
    else:
        seen, noise_seen = own / holders, std
    layout = EnsembleLayout(shards * holders, holders)
    assert row_mu(std, layout, unit, "gradient", noise) == pytest.approx(
        seen / noise_seen, rel=2e-6
    )
    assert mean_sensitivity(layout, unit, "gradient", noise) / std > seen / noise_seen


def test_masked_sums_are_no_single_gaussian() -> None:
    """Their std under this formula would cost 10.73 where it says 10."""
    with pytest.raises(ConfigError, match="dropouts and colluders"):
        noise_std(10, DELTA, 50_000, FIVE, noise=SECAGG)
    with pytest.raises(ConfigError, match="dropouts and colluders"):
        row_mu(1.0, FIVE, noise=SECAGG)


def test_votes_need_a_root_of_two_less() -> None:
    assert DIAMETERS[RowAnswer.VOTE] == pytest.approx(math.dist([1, 0, 0], [0, 1, 0]))
    ratio = noise_std(10, DELTA, 100, FIVE) / noise_std(10, DELTA, 100, FIVE, answer="vote")
    assert ratio == pytest.approx(math.sqrt(2), rel=1e-5)


@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize("accountant", [epsilon, epsilon_filter])
def test_label_strength_costs_the_target(classes: int, accountant) -> None:
    strength = label_epsilon0(10, DELTA, 1000, classes, accountant)
    cost = accountant([RandomizedResponse(strength, classes, 1000)], DELTA)
    assert cost == pytest.approx(10, rel=1e-6)
    assert cost <= 10


def test_label_strength_of_the_contract() -> None:
    assert label_epsilon0(6.745, DELTA, 1000, 10) == pytest.approx(0.1, rel=1e-3)
    assert label_epsilon0(13.87, DELTA, 1000, 3) == pytest.approx(0.1, rel=1e-3)
    # One label: all of ε, and a trifle more for δ.
    assert 1.0 <= label_epsilon0(1.0, DELTA, 1, 10) < 1.001


def test_a_filter_allows_less_strength_than_a_fixed_plan() -> None:
    assert label_epsilon0(10, DELTA, 1000, 10, epsilon_filter) < label_epsilon0(10, DELTA, 1000, 10)


def test_vote_strength_costs_the_target() -> None:
    eta = vote_eta(10, DELTA, 1000)
    assert epsilon([ExponentialVotes(eta, 5, 1000)], DELTA) == pytest.approx(10, rel=1e-6)
    assert vote_eta(1.0, DELTA, 1) == pytest.approx(0.5, rel=1e-6)


def test_an_enormous_target_needs_no_noise_to_speak_of() -> None:
    assert label_epsilon0(1e6, DELTA, 10, 3) == 100.0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: EnsembleLayout(0), "teachers=0 >= 1"),
        (lambda: EnsembleLayout(5, 0), "holders=0 >= 1"),
        (lambda: EnsembleLayout(7, 2), "teachers=7 to be a multiple of holders=2"),
        (lambda: noise_std(0, DELTA, 10, FIVE), "epsilon=0 > 0"),
        (lambda: noise_std(1, 2.0, 10, FIVE), "delta=2.0 < 1"),
        (lambda: noise_std(1, DELTA, 0, FIVE), "rows=0 >= 1"),
        (lambda: noise_std(1, DELTA, 10, FIVE, answer="label"), "answer='label'"),
        (lambda: row_mu(0.0, FIVE), "noise_std=0.0 > 0"),
        (lambda: row_mu(math.nan, FIVE), "noise_std=nan"),
        (lambda: label_epsilon0(1, DELTA, 10, 1), "classes=1 >= 2"),
        (lambda: label_epsilon0(-1, DELTA, 10, 3), "epsilon=-1 > 0"),
        (lambda: vote_eta(1, 0.0, 10), "delta=0.0"),
        (lambda: vote_eta(1, DELTA, -1), "rows=-1 >= 1"),
    ],
)
def test_values_out_of_range(build, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()
