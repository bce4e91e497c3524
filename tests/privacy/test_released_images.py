"""The cost of noised images against the mechanism itself, integrated, and against libraries."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as library
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.stats import binom, norm

from fedtranscribe.errors import ConfigError, UnsupportedAdjacencyError
from fedtranscribe.privacy import loss
from fedtranscribe.privacy.accountant import delta_of, epsilon, epsilon_filter, epsilon_rdp, quote
from fedtranscribe.privacy.closed_forms import gaussian_delta, gaussian_epsilon
from fedtranscribe.privacy.events import Gaussian, PoissonGaussian, Together
from fedtranscribe.privacy.published import diffusion_signal
from fedtranscribe.privacy.released_images import ReleasedImages, _log_for_size
from fedtranscribe.privacy.units import Adjacency

DELTA = 1e-5
ZERO_OUT, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE
BOTH = pytest.mark.parametrize("adjacency", [ZERO_OUT, REPLACE])

PARTIAL_SUM = diffusion_signal(900)
MU = 2 * math.sqrt(784 * PARTIAL_SUM / (1 - PARTIAL_SUM))
MNIST = ReleasedImages(MU, 60_000, 32, 5_625)


def profile(event: ReleasedImages, e: float, reverse: bool = False) -> float:
    return math.exp(float(event.log_profile(np.array([e]), reverse)[0]))


@pytest.mark.parametrize(("adjacency", "expected"), [(ZERO_OUT, 0.106), (REPLACE, 0.201)])
def test_phase_one_of_the_privacy_law(adjacency: Adjacency, expected: float) -> None:
    value, accountant = quote([replace(MNIST, adjacency=adjacency)], DELTA)
    assert value == pytest.approx(expected, rel=0.005)
    assert accountant == "PLD"


def test_halving_the_distance_alone_is_not_what_zero_out_costs() -> None:
    halved = epsilon([replace(MNIST, mu=MU / 2, adjacency=REPLACE)], DELTA)
    assert halved == pytest.approx(0.0695, rel=0.01)
    assert epsilon([MNIST], DELTA) > 1.5 * halved


# One step against the release itself: images on a line, three records, density by density.

GRID = np.linspace(-10, 10, 801)


def release(images: list[float], size: int) -> np.ndarray:
    """The density of the unordered release of `size` of the images, on GRID or GRID x GRID."""
    density = [norm.pdf(GRID, image) for image in images]
    subsets = list(combinations(range(len(images)), size))
    if size == 1:
        return np.asarray(density).mean(axis=0)
    pairs = [np.outer(density[i], density[j]) for i, j in subsets]
    return np.array([(pair + pair.T) / 2 for pair in pairs]).mean(axis=0)


def hockey_stick(one: list[float], other: list[float], size: int, e: float) -> float:
    gaps = np.maximum(release(one, size) - math.exp(e) * release(other, size), 0)
    return float(gaps.sum()) * (GRID[1] - GRID[0]) ** gaps.ndim


def true_step(one: list[float], other: list[float], event: ReleasedImages, e: float) -> float:
    """H of one step: the size of the set is seen; all three join with the cube of the coin."""
    chances = binom.pmf([1, 2], 3, event.sampling_probability)
    known = [hockey_stick(one, other, size, e) for size in (1, 2)]
    everybody = binom.pmf(3, 3, event.sampling_probability)
    changed = abs(one[0] - other[0])
    return float(chances @ known + everybody * gaussian_delta(changed, e))


@given(
    mu=st.floats(0.2, 4.0),
    places=st.tuples(*[st.sampled_from([-1.0, -0.3, 0.0, 1.0])] * 4),
    e=st.floats(0.0, 3.0),
    adjacency=st.sampled_from([ZERO_OUT, REPLACE]),
    batch=st.integers(1, 3),
)
@settings(deadline=None, max_examples=20)
def test_no_three_records_are_told_apart_better_than_is_booked(
    mu: float, places: tuple[float, ...], e: float, adjacency: Adjacency, batch: int
) -> None:
    event = ReleasedImages(mu, 3, batch, 1, adjacency)
    real, changed, *others = (mu / 2 * place for place in places)
    if adjacency is ZERO_OUT:
        changed = 0.0
    one, other = [real, *others], [changed, *others]
    room = 1e-6
    assert true_step(one, other, event, e) <= profile(event, e) + room
    assert true_step(other, one, event, e) <= profile(event, e, reverse=True) + room


@pytest.mark.parametrize("e", [0.0, 0.3, 1.0, 2.5])
def test_the_bound_of_one_image_is_attained(e: float) -> None:
    # The record at one end, the crowd at the other: the displaced image is the whole μ away.
    mu, share = 2.0, 1 / 3
    real, crowd = [1.0, -1.0, -1.0], [0.0, -1.0, -1.0]
    bound = math.exp(float(_log_for_size(np.array([e]), share, mu / 2, True)[0]))
    assert hockey_stick(real, crowd, 1, e) == pytest.approx(bound, rel=3e-3)
    halved = math.exp(float(_log_for_size(np.array([e]), share, mu / 2, False)[0]))
    assert e == 0 or bound > 1.05 * halved
    swapped = [-1.0, -1.0, -1.0]
    bound = math.exp(float(_log_for_size(np.array([e]), share, mu, False)[0]))
    assert hockey_stick(real, swapped, 1, e) == pytest.approx(bound, rel=3e-3)


@given(
    share=st.floats(1e-3, 0.999),
    distance=st.floats(0.05, 4.0),
    e=st.floats(1e-6, 6.0),
    doubled=st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_the_closed_form_is_the_integral(
    share: float, distance: float, e: float, doubled: bool
) -> None:
    far = 2 * distance if doubled else distance
    t = math.exp(e)
    s = 1 + (t - 1) / share

    x = np.linspace(-9, 9, 40_001)
    other = (1 - t / s) * norm.pdf(x, far) + t / s * norm.pdf(x, distance)
    exact = share * float(trapezoid(np.maximum(norm.pdf(x) - s * other, 0), x))
    found = math.exp(float(_log_for_size(np.array([e]), share, distance, doubled)[0]))
    assert found == pytest.approx(exact, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize(("share", "mu"), [(0.001, 0.9), (0.05, 2.0), (0.4, 1.0)])
def test_given_the_size_replace_is_the_librarys_sampled_gaussian(share: float, mu: float) -> None:
    # With the sampled one first, its H_t at t >= 1 is q H_s as well.
    pld = library.from_gaussian_mechanism(
        1 / mu, sampling_prob=share, value_discretization_interval=1e-4
    )
    for e in (0.001, 0.05, 0.5, 2.0):
        found = math.exp(float(_log_for_size(np.array([e]), share, mu, False)[0]))
        expected = float(pld._pmf_remove.get_delta_for_epsilon(e))
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-12)


@pytest.mark.parametrize(("records", "batch"), [(40, 7), (60_000, 32), (60_000, 4_096)])
@BOTH
def test_few_sizes_stand_for_all(records: int, batch: int, adjacency: Adjacency) -> None:
    event = ReleasedImages(1.3, records, batch, 1, adjacency)
    e = np.array([0.0, 1e-3, 0.05, 0.4])
    sizes = np.arange(1, min(records, batch + 600) + 1)
    doubled = adjacency is ZERO_OUT
    exact = np.zeros(4) + sum(
        chance * np.exp(_log_for_size(e, size / records, event.distance, doubled))
        for size, chance in zip(
            sizes.tolist(), binom.pmf(sizes, records, batch / records).tolist(), strict=True
        )
        if chance > 1e-20
    )
    found = np.exp(event.log_profile(e))
    assert (found >= exact * (1 - 1e-9)).all()
    assert found == pytest.approx(exact, rel=0.02)
    assert found[0] == pytest.approx(exact[0], rel=1e-3)


@BOTH
def test_everybody_joining_is_the_plain_gaussian(adjacency: Adjacency) -> None:
    event = ReleasedImages(0.4, 500, 500, 30, adjacency)
    plain = gaussian_epsilon(event.distance * math.sqrt(30), DELTA)
    assert plain - 1e-9 <= epsilon([event], DELTA) <= plain * 1.001
    assert epsilon_rdp([event], DELTA) == pytest.approx(
        epsilon_rdp([Gaussian(event.distance, 30)], DELTA), rel=1e-4
    )


@pytest.mark.parametrize("reverse", [False, True])
@BOTH
def test_one_step_on_the_grid_is_its_profile(adjacency: Adjacency, reverse: bool) -> None:
    event = ReleasedImages(1.0, 2_000, 100, 1, adjacency)
    pld = loss.released_pld(event)
    pmf = pld._pmf_add if reverse else pld._pmf_remove
    for e in (0.0, 0.01, 0.1, 0.4):
        found, exact = float(pmf.get_delta_for_epsilon(e)), profile(event, e, reverse)
        assert exact * (1 - 1e-9) <= found <= profile(event, max(0.0, e - 2e-4), reverse) * 1.001
    # Below zero it is the other direction's.
    e = 0.2
    mirrored = -math.expm1(-e) + math.exp(-e) * profile(event, e, not reverse)
    assert float(pmf.get_delta_for_epsilon(-e)) == pytest.approx(mirrored, rel=1e-3)


@pytest.mark.long
@BOTH
def test_a_finer_grid_changes_little(adjacency: Adjacency) -> None:
    event = replace(MNIST, count=500, adjacency=adjacency)
    coarse, fine = (loss.released_pld(event, grid) for grid in (1e-4, 1e-5))
    value = fine.get_epsilon_for_delta(DELTA)
    assert value <= coarse.get_epsilon_for_delta(DELTA) <= value + 2e-4


@pytest.mark.parametrize(("share", "mu"), [(0.01, 0.5), (0.1, 1.0), (0.05, 2.5)])
@BOTH
def test_renyi_is_above_the_librarys_for_the_same_coin(
    share: float, mu: float, adjacency: Adjacency
) -> None:
    # A record among many, all in one place: at least what a sampled Gaussian of its distance costs.
    event = ReleasedImages(mu, 10_000, round(10_000 * share), 1, adjacency)
    orders = [2, 4, 8, 16]
    accountant = rdp_privacy_accountant.RdpAccountant(orders)
    gaussian = rdp_privacy_accountant.dp_event.GaussianDpEvent(1 / event.distance)
    accountant.compose(rdp_privacy_accountant.dp_event.PoissonSampledDpEvent(share, gaussian))
    found = event.renyi(np.array(orders, dtype=float))
    assert (found >= accountant._rdp * (1 - 1e-3)).all()
    assert (found <= event.zcdp_rho * np.array(orders) * (1 + 1e-6)).all()


@BOTH
def test_renyi_is_that_of_the_distribution_on_the_grid(adjacency: Adjacency) -> None:
    event = ReleasedImages(1.0, 2_000, 200, 1, adjacency)
    dots = np.arange(77_100)
    logs = [event.log_profile(dots * loss.GRID, reverse) for reverse in (False, True)]
    losses = np.arange(-dots[-1], dots[-1] + 1) * loss.GRID
    one, other = (loss._connect(dots, loss.GRID, *pair)._probs for pair in (logs, logs[::-1]))
    # A pair of distributions: each is the other, tilted by its own loss and mirrored.
    assert one.sum() == pytest.approx(1.0, abs=1e-12)
    assert one * np.exp(-losses) == pytest.approx(other[::-1], abs=1e-12)
    for order in (1.5, 3.0, 6.0):
        moments = [float(mass @ np.exp((order - 1) * losses)) for mass in (one, other)]
        found = float(event.renyi(np.array([order]))[0])
        assert found == pytest.approx(math.log(max(moments)) / (order - 1), rel=1e-4)


@given(
    mu=st.floats(0.05, 3.0),
    batch=st.integers(2, 400),
    adjacency=st.sampled_from([ZERO_OUT, REPLACE]),
    e=st.floats(0.0, 3.0),
    reverse=st.booleans(),
)
@settings(deadline=None, max_examples=80)
def test_one_step_is_monotone(
    mu: float, batch: int, adjacency: Adjacency, e: float, reverse: bool
) -> None:
    event = ReleasedImages(mu, 1_000, batch, 1, adjacency)
    here = profile(event, e, reverse)
    slack = 1 + 1e-9
    assert profile(event, e + 0.1, reverse) <= here * slack
    assert profile(replace(event, mu=mu * 1.1), e, reverse) >= here / slack
    assert profile(replace(event, batch=batch + 100), e, reverse) >= here / slack
    assert here <= gaussian_delta(event.distance, e) * slack
    if adjacency is ZERO_OUT:
        assert here <= profile(replace(event, adjacency=REPLACE), e) * slack


@pytest.mark.long
@BOTH
def test_plans_are_monotone_and_the_other_accountants_lie_above(adjacency: Adjacency) -> None:
    event = ReleasedImages(1.0, 2_000, 100, 40, adjacency)
    value = epsilon([event], DELTA)
    assert epsilon([replace(event, count=80)], DELTA) > value
    assert epsilon([replace(event, mu=1.2)], DELTA) > value
    assert epsilon([replace(event, batch=150)], DELTA) > value
    assert epsilon([event], DELTA / 10) > value
    assert value <= epsilon_rdp([event], DELTA)
    assert epsilon_filter([event], DELTA) == value
    assert delta_of([event], value) == pytest.approx(DELTA, rel=1e-2)


def test_both_phases_cost_more_than_either_and_less_than_the_sum() -> None:
    first, second = MNIST, PoissonGaussian(0.05, 5.0, 200)
    whole = epsilon([Together((first, second))], DELTA)
    assert whole == epsilon([first, second], DELTA)
    parts = [epsilon([event], DELTA) for event in (first, second)]
    assert max(parts) < whole < sum(epsilon([e], DELTA / 2) for e in (first, second))


@pytest.mark.long
@pytest.mark.parametrize("mu", [0.0, 1e-4, 4.0, 45.0, 5_000.0])
def test_extreme_distances_stay_finite(mu: float) -> None:
    event = ReleasedImages(mu, 60_000, 32, 50)
    value = epsilon([event], DELTA)
    assert math.isfinite(value)
    assert value <= gaussian_epsilon(event.gdp_mu, DELTA)
    assert event.exceeds(2.0, DELTA) == (mu >= 4)


@pytest.mark.long
@pytest.mark.parametrize(("mu", "batch"), [(60.0, 10), (999.0, 10), (60.0, 3)])
@BOTH
def test_a_step_that_discloses_for_certain_has_a_figure(
    adjacency: Adjacency, mu: float, batch: int
) -> None:
    """The library cannot compose a loss that is infinite with probability 1."""
    event = ReleasedImages(mu, 10, batch, 1, adjacency)
    assert loss._disclosed(loss.GRID).get_epsilon_for_delta(DELTA) == math.inf
    one_in = event.distance if batch == 10 else 0.0
    assert gaussian_epsilon(one_in, DELTA) <= epsilon([event], DELTA) < math.inf
    both = Together((event, PoissonGaussian(0.01, 1.0, 10, adjacency)))
    assert epsilon([event], DELTA) <= epsilon([both], DELTA) < math.inf
    if mu < 100:
        assert 0.3 <= delta_of([event], 1.0) <= 1.0


def test_values_out_of_range() -> None:
    with pytest.raises(ConfigError, match="mu=-1"):
        ReleasedImages(-1, 10, 1)
    with pytest.raises(ConfigError, match=r"batch=11 <= records=10"):
        ReleasedImages(1, 10, 11)
    with pytest.raises(ConfigError, match="count=0"):
        ReleasedImages(1, 10, 1, 0)
    with pytest.raises(UnsupportedAdjacencyError, match="add-remove"):
        ReleasedImages(1, 10, 1, 1, Adjacency.ADD_REMOVE)


@pytest.mark.parametrize("batch", [1, 7, 32, 400, 1_999, 2_000])
@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE])
def test_the_renyi_curve_is_a_number_at_every_order(batch, adjacency):
    event = ReleasedImages(0.3, 2_000, batch, 1, adjacency)
    curve = event.renyi(np.array([1.5, 2.0, 8.0, 64.0]))
    assert not np.isnan(curve).any()
    assert (curve >= 0).all()
    assert (np.diff(curve) >= 0).all()
