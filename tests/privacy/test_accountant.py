import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from fedtranscribe.errors import ConfigError, UnsupportedAdjacencyError
from fedtranscribe.privacy.accountant import (
    CLOSED_FORM,
    DOMINATED,
    ON_GRID,
    PURE_BESIDE,
    ZCDP,
    _most_joined,
    delta_of,
    epsilon,
    epsilon_filter,
    epsilon_rdp,
    guarantee,
    quote,
    sound_table,
)
from fedtranscribe.privacy.closed_forms import gaussian_epsilon, zcdp_epsilon
from fedtranscribe.privacy.events import MOST_COUNT, Event, Gaussian, PoissonGaussian
from fedtranscribe.privacy.label_events import ExponentialVotes, RandomizedResponse
from fedtranscribe.privacy.release_plan import MechanismRelease, PrivacyPlan
from fedtranscribe.privacy.released_images import ReleasedImages
from fedtranscribe.privacy.units import Adjacency, Guarantee, Unit
from fedtranscribe.privacy.zcdp import ZeroConcentrated

DELTA = 1e-5
MNIST = 128 / 60_000
STEPS = 46_875

EXAMPLES: list[Event] = [
    Gaussian(0.1, 40),
    RandomizedResponse(0.1, 3, 400),
    RandomizedResponse(0.25, 10, 150),
    ExponentialVotes(0.1, 3, 100),
    PoissonGaussian(0.02, 1.1, 500),
    PoissonGaussian(0.02, 1.1, 500, Adjacency.REPLACE),
    PoissonGaussian(0.02, 1.1, 500, Adjacency.ADD_REMOVE),
    ReleasedImages(1.5, 1_000, 100, 20),
    ReleasedImages(1.5, 1_000, 100, 20, Adjacency.REPLACE),
]
EXAMPLE = pytest.mark.parametrize("event", EXAMPLES, ids=lambda e: f"{e.kind}-{e.count}")

CHEAP = st.one_of(
    st.builds(Gaussian, st.floats(1e-3, 1.0), st.integers(1, 100)),
    st.builds(RandomizedResponse, st.floats(1e-3, 1.0), st.integers(2, 20), st.integers(1, 2000)),
    st.builds(ExponentialVotes, st.floats(1e-3, 1.0), st.integers(2, 20), st.integers(1, 2000)),
)
DELTAS = st.floats(1e-9, 0.1)


@pytest.mark.parametrize(("classes", "expected"), [(10, 6.74), (3, 13.87)])
def test_labels_of_the_privacy_law(classes: int, expected: float) -> None:
    value, accountant = quote([RandomizedResponse(0.1, classes, 1000)], DELTA)
    assert value == pytest.approx(expected, rel=0.005)
    assert accountant == ON_GRID


@pytest.mark.parametrize(
    ("sigma", "adjacency", "expected"),
    [
        (1.9, Adjacency.ADD_REMOVE, 0.977),
        (1.9, Adjacency.ZERO_OUT, 0.977),
        (0.6, Adjacency.ADD_REMOVE, 9.48),
    ],
)
def test_dp_sgd_of_the_privacy_law(sigma: float, adjacency: Adjacency, expected: float) -> None:
    event = PoissonGaussian(MNIST, sigma, STEPS, adjacency)
    assert epsilon([event], DELTA) == pytest.approx(expected, rel=0.002)


def test_phase_two_of_dp_promise_under_replace() -> None:
    # The privacy law's 18.97 at σ = 1.13, batch 4,096, 50 epochs.
    event = PoissonGaussian(4096 / 60_000, 1.13, 733, Adjacency.REPLACE)
    assert epsilon([event], DELTA) == pytest.approx(18.97, rel=0.002)


def test_noise_divided_by_500_costs_millions() -> None:
    value, accountant = quote([PoissonGaussian(MNIST, 1.9 / 500, STEPS)], DELTA)
    assert value == pytest.approx(5e6, rel=0.05)
    assert accountant == DOMINATED


def test_the_grid_is_used_where_the_dominating_gaussian_is_loose() -> None:
    event = PoissonGaussian(0.01, 0.5, 300)
    value, accountant = quote([event], DELTA)
    assert accountant == ON_GRID
    assert 1 < value <= epsilon_rdp([event], DELTA) <= 1.3 * value


@pytest.mark.parametrize("coin", [0.5, 1 - 1e-9])
@pytest.mark.parametrize("count", [3_000_000, 10**9, MOST_COUNT])
def test_more_steps_than_the_librarys_quantile_can_count(count: int, coin: float) -> None:
    """It is not a number there; what stands for it bounds the coins, and not by much."""
    value, accountant = quote([PoissonGaussian(coin, 1.0, count)], DELTA)
    assert accountant == DOMINATED
    mean, spread = count * coin, math.sqrt(count * coin * (1 - coin))
    lowest = gaussian_epsilon(math.sqrt(mean), DELTA)
    highest = gaussian_epsilon(math.sqrt(min(count, mean + 8 * spread + 20)), DELTA / 2)
    assert lowest <= value <= highest


@pytest.mark.parametrize("share", [5e-6, 5e-12])
@pytest.mark.parametrize(("count", "coin"), [(10, 0.3), (10**5, 1e-4), (10**6, 0.5), (10**6, 1.0)])
def test_bernstein_lies_above_the_quantile(
    monkeypatch: pytest.MonkeyPatch, count: int, coin: float, share: float
) -> None:
    exact = _most_joined(count, coin, share)
    monkeypatch.setattr("scipy.stats.binom.isf", lambda *_: math.nan)
    bound = _most_joined(count, coin, share)
    assert exact <= bound <= count
    assert binom.sf(bound, count, coin) <= share


def test_sampling_everybody_is_the_plain_gaussian() -> None:
    for adjacency, distance in ((Adjacency.ZERO_OUT, 1.0), (Adjacency.REPLACE, 2.0)):
        sampled = PoissonGaussian(1.0, 10.0, 25, adjacency)
        plain = Gaussian(distance / 10, 25)
        assert epsilon([sampled], DELTA) == pytest.approx(epsilon([plain], DELTA), rel=1e-3)
        assert epsilon_rdp([sampled], DELTA) == pytest.approx(epsilon_rdp([plain], DELTA), rel=1e-6)


def test_no_events_cost_nothing() -> None:
    for count in (epsilon, epsilon_rdp, epsilon_filter):
        assert count([], DELTA) == 0.0
    assert delta_of([], 0.0) == 0.0


def test_exactly_free_events_cost_exactly_nothing() -> None:
    free = [Gaussian(0.0), RandomizedResponse(0.0, 3), RandomizedResponse(1.0, 1)]
    assert epsilon(free, DELTA) == epsilon_filter(free, DELTA) == epsilon_rdp(free, DELTA) == 0.0
    # Total variation below δ: (0, δ)-DP.
    assert epsilon([Gaussian(1e-5)], DELTA) == 0.0
    assert epsilon([RandomizedResponse(1e-5, 2)], DELTA) == 0.0


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_delta_out_of_range(delta: float) -> None:
    for count in (epsilon, epsilon_rdp, epsilon_filter):
        with pytest.raises(ConfigError, match="delta="):
            count([Gaussian(1.0)], delta)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_epsilon_out_of_range(value: float) -> None:
    with pytest.raises(ConfigError, match="epsilon="):
        delta_of([Gaussian(1.0)], value)


@EXAMPLE
def test_delta_is_the_inverse_of_epsilon(event: Event) -> None:
    value = epsilon([event], DELTA)
    assert delta_of([event], value) == pytest.approx(DELTA, rel=1e-2)
    assert delta_of([event], 1.1 * value) < DELTA < delta_of([event], 0.9 * value)


@EXAMPLE
def test_the_second_opinion_is_never_below(event: Event) -> None:
    value, second = epsilon([event], DELTA), epsilon_rdp([event], DELTA)
    assert value <= second <= 1.2 * value


@EXAMPLE
def test_the_filter_is_never_below(event: Event) -> None:
    assert epsilon_filter([event], DELTA) >= epsilon([event], DELTA) * (1 - 1e-9)


@EXAMPLE
def test_a_list_equals_a_count(event: Event) -> None:
    one = replace(event, count=event.count // 10)
    # To the filter one training run is more than ten of a tenth, each chosen after the last.
    run = isinstance(event, PoissonGaussian | ReleasedImages)
    for count in (epsilon, epsilon_rdp) if run else (epsilon, epsilon_rdp, epsilon_filter):
        assert count([one] * 10, DELTA) == pytest.approx(count([event], DELTA), rel=1e-9)
    if run:
        assert epsilon_filter([one] * 10, DELTA) > epsilon_filter([event], DELTA)


@given(event=CHEAP, delta=DELTAS, times=st.integers(2, 5))
@settings(deadline=None, max_examples=60)
def test_more_queries_cost_more(event: Event, delta: float, times: int) -> None:
    more = replace(event, count=event.count * times)
    for count in (epsilon, epsilon_rdp, epsilon_filter):
        assert count([more], delta) >= count([event], delta) * (1 - 1e-9)


@given(event=CHEAP, delta=DELTAS, factor=st.floats(2.0, 10.0))
@settings(deadline=None, max_examples=60)
def test_a_smaller_delta_costs_more(event: Event, delta: float, factor: float) -> None:
    for count in (epsilon, epsilon_rdp, epsilon_filter):
        assert count([event], delta / factor) >= count([event], delta) * (1 - 1e-9)


@given(
    rows=st.integers(1, 1000),
    weaker=st.floats(1e-3, 1.0),
    factor=st.floats(1.01, 3.0),
    classes=st.integers(2, 20),
)
@settings(deadline=None, max_examples=60)
def test_less_noise_costs_more(rows: int, weaker: float, factor: float, classes: int) -> None:
    pairs: list[tuple[Event, Event]] = [
        (Gaussian(weaker, rows), Gaussian(weaker * factor, rows)),
        (
            RandomizedResponse(weaker, classes, rows),
            RandomizedResponse(weaker * factor, classes, rows),
        ),
        (
            ExponentialVotes(weaker, classes, rows),
            ExponentialVotes(weaker * factor, classes, rows),
        ),
    ]
    for weak, strong in pairs:
        for count in (epsilon, epsilon_rdp, epsilon_filter):
            assert count([strong], DELTA) >= count([weak], DELTA) * (1 - 1e-9)


@pytest.mark.long
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_dp_sgd_is_monotone(adjacency: Adjacency) -> None:
    middle = PoissonGaussian(0.02, 1.0, 400, adjacency)
    value = epsilon([middle], DELTA)
    assert epsilon([replace(middle, count=800)], DELTA) > value
    assert epsilon([replace(middle, noise_multiplier=1.2)], DELTA) < value
    assert epsilon([replace(middle, sampling_probability=0.03)], DELTA) > value
    assert epsilon([middle], DELTA / 10) > value


def test_replace_lies_between_add_remove_and_a_doubled_row() -> None:
    whole = {a: epsilon([PoissonGaussian(0.02, 1.0, 400, a)], DELTA) for a in Adjacency}
    doubled = epsilon([PoissonGaussian(0.02, 0.5, 400)], DELTA)
    assert whole[Adjacency.ZERO_OUT] == whole[Adjacency.ADD_REMOVE]
    assert whole[Adjacency.ZERO_OUT] < whole[Adjacency.REPLACE] < doubled


@pytest.mark.long
@given(events=st.lists(CHEAP, min_size=2, max_size=4), delta=st.floats(1e-7, 1e-3))
@example(events=[Gaussian(1.0, 1), ExponentialVotes(1.0, 2, 1)], delta=9.9e-4)
@settings(deadline=None, max_examples=6)
def test_mixed_plans_cost_at_least_their_parts_and_at_most_the_sum(
    events: list[Event], delta: float
) -> None:
    whole = epsilon(events, delta)
    parts = [epsilon([event], delta) for event in events]
    assert whole >= max(parts) * (1 - 1e-9) - 1e-3
    # Labels at their pure ε beside the rest are a bound without any loss of δ.
    labels = [event for event in events if not isinstance(event, Gaussian)]
    rest = [event for event in events if isinstance(event, Gaussian)]
    pure = sum(e.pure if isinstance(e, ExponentialVotes) else e.epsilon0 * e.count for e in labels)
    assert whole <= (pure + epsilon(rest, delta)) * (1 + 1e-3) + 1e-2


def test_labels_beside_noisy_rows_cost_no_more_than_their_pure_epsilon() -> None:
    plan = [Gaussian(1.0, 1), ExponentialVotes(1.0, 2, 1)]
    alone = epsilon(plan[:1], 1e-3)
    value, accountant = quote(plan, 1e-3)
    assert (value, accountant) == (pytest.approx(alone + 2), PURE_BESIDE)
    assert delta_of(plan, value) == pytest.approx(1e-3, rel=1e-3)
    assert value < epsilon_rdp(plan, 1e-3)
    # Whatever else there is beside them: more events never cost less.
    more = [*plan, ZeroConcentrated(1e-12)]
    assert value <= epsilon(more, 1e-3) < value * 1.1
    assert delta_of(more, epsilon(more, 1e-3)) == pytest.approx(1e-3, rel=1e-2)


def test_votes_beside_noisy_rows() -> None:
    plan = [ExponentialVotes(0.1, 3, 100), Gaussian(1.0)]
    parts = [epsilon([event], DELTA / 2) for event in plan]
    assert max(parts) < epsilon(plan, DELTA) < sum(parts)


def test_votes_alone_are_accounted_as_zcdp_and_never_above_pure() -> None:
    assert quote([ExponentialVotes(0.1, 3, 250)], DELTA)[1] == ZCDP
    assert epsilon([ExponentialVotes(0.1, 3)], DELTA) == pytest.approx(0.2)
    assert delta_of([ExponentialVotes(0.1, 3)], 0.2) == 0.0


@given(mus=st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=20))
@settings(deadline=None, max_examples=40)
def test_gaussians_compose_exactly_whoever_chose_them(mus: list[float]) -> None:
    events = [Gaussian(mu) for mu in mus]
    total = gaussian_epsilon(math.sqrt(math.fsum(mu**2 for mu in mus)), DELTA)
    assert epsilon(events, DELTA) == pytest.approx(total, rel=1e-9)
    assert epsilon_filter(events, DELTA) == pytest.approx(total, rel=1e-9)
    assert quote(events, DELTA)[1] == CLOSED_FORM


def test_the_first_event_decides_the_filter() -> None:
    rows, labels = Gaussian(0.1, 100), RandomizedResponse(0.1, 10, 100)
    squares = rows.gdp_mu**2 + labels.gdp_mu**2
    rhos = rows.zcdp_rho + labels.zcdp_rho
    assert epsilon_filter([rows, labels], DELTA) == pytest.approx(
        gaussian_epsilon(math.sqrt(squares), DELTA)
    )
    assert epsilon_filter([labels, rows], DELTA) == pytest.approx(zcdp_epsilon(rhos, DELTA))
    for order in ([rows, labels], [labels, rows]):
        assert epsilon_filter(order, DELTA) > epsilon(order, DELTA)


def make_release(event: Event, *adjacencies: Adjacency) -> MechanismRelease:
    return MechanismRelease("test", 1, {Unit.RECORD: dict.fromkeys(adjacencies, event)})


def test_guarantee_and_table_name_everything() -> None:
    everywhere = make_release(Gaussian(0.5), *Adjacency)
    positional = make_release(Gaussian(1.0), Adjacency.ZERO_OUT, Adjacency.REPLACE)
    releases = (everywhere, positional)
    plan = PrivacyPlan(releases, Unit.RECORD, Adjacency.REPLACE, DELTA)
    value = gaussian_epsilon(math.sqrt(1.25), DELTA)
    assert guarantee(plan) == Guarantee(
        Unit.RECORD, Adjacency.REPLACE, pytest.approx(value), DELTA, CLOSED_FORM
    )
    table = sound_table(releases, Unit.RECORD, DELTA)
    assert list(table) == [Adjacency.ZERO_OUT, Adjacency.REPLACE]
    assert list(table.values()) == pytest.approx([value, value])
    assert sound_table(releases, Unit.HOLDER, DELTA) == {}
    with pytest.raises(UnsupportedAdjacencyError):
        guarantee(replace(plan, adjacency=Adjacency.ADD_REMOVE))
