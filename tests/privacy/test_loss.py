"""Guards against what dp_accounting 0.6.0 does otherwise than one would think."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as library
from dp_accounting.rdp import rdp_privacy_accountant
from scipy.stats import binom

from fedtranscribe.privacy import label_events as responses
from fedtranscribe.privacy import loss, renyi
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.closed_forms import gaussian_delta, gaussian_epsilon
from fedtranscribe.privacy.events import Gaussian, PoissonGaussian
from fedtranscribe.privacy.label_events import RandomizedResponse
from fedtranscribe.privacy.units import Adjacency

DELTA = 1e-5
REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE


def noise_of(event: RandomizedResponse) -> float:
    return event.classes / (math.exp(event.epsilon0) + event.classes - 1)


def test_the_grid_is_fine_enough() -> None:
    assert loss.GRID <= 1e-4


@pytest.mark.parametrize("mu", [0.05, 0.268, 1.0, 2.0, 4.5])
def test_gaussian_on_the_grid_equals_the_closed_form(mu: float) -> None:
    pld = loss.gaussian_pld(mu)
    expected = gaussian_epsilon(mu, DELTA)
    found = pld.get_epsilon_for_delta(DELTA)
    assert expected - 1e-9 <= found <= expected * (1 + 1e-3)
    assert pld.get_delta_for_epsilon(1.0) == pytest.approx(gaussian_delta(mu, 1.0), rel=1e-3)


def test_n_single_gaussians_equal_one_of_n() -> None:
    total = library.identity(value_discretization_interval=loss.GRID)
    for _ in range(9):
        total = total.compose(loss.gaussian_pld(0.3))
    assert total.get_epsilon_for_delta(DELTA) == pytest.approx(
        epsilon([Gaussian(0.3, 9)], DELTA), rel=1e-3
    )


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_n_single_labels_equal_one_event_of_n(classes: int) -> None:
    event = RandomizedResponse(0.7, classes, 12)
    one = library.from_randomized_response(noise_of(event), classes)
    total = one
    for _ in range(11):
        total = total.compose(one)
    # The library rounds every single loss up, so it may be above by one grid step a label.
    gap = total.get_epsilon_for_delta(DELTA) - epsilon([event], DELTA)
    assert -1e-9 <= gap <= 12 * loss.GRID + 1e-6


@pytest.mark.long
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_n_single_steps_equal_one_event_of_n(adjacency: Adjacency) -> None:
    one = loss.sampled_pld(PoissonGaussian(0.05, 1.0, 1, adjacency))
    total = one
    for _ in range(9):
        total = total.compose(one)
    assert total.get_epsilon_for_delta(DELTA) == pytest.approx(
        epsilon([PoissonGaussian(0.05, 1.0, 10, adjacency)], DELTA), rel=1e-3
    )


def test_the_library_accountant_loses_the_count_of_labels() -> None:
    # Why it is never used; when this fails, the library was fixed and the guard can go.
    event = RandomizedResponse(0.1, 10, 1000)
    label = dp_accounting.RandomizedResponseDpEvent(noise_of(event), 10)
    accountant = PLDAccountant(REPLACE_ONE)
    accountant.compose(label, event.count)
    assert accountant.get_epsilon(DELTA) < 0.2 < epsilon([event], DELTA)


def test_the_library_doubles_a_plain_gaussian_under_replace() -> None:
    accountant = PLDAccountant(REPLACE_ONE)
    accountant.compose(dp_accounting.GaussianDpEvent(1.0))
    assert accountant.get_epsilon(DELTA) == pytest.approx(gaussian_epsilon(2.0, DELTA), rel=1e-3)
    assert epsilon([Gaussian(1.0)], DELTA) == gaussian_epsilon(1.0, DELTA)


def test_labels_against_the_library_on_a_fine_grid() -> None:
    event = RandomizedResponse(0.1, 10, 1000)
    pld = library.from_randomized_response(
        noise_of(event), 10, value_discretization_interval=1e-5
    ).self_compose(1000)
    found = pld.get_epsilon_for_delta(DELTA)
    assert epsilon([event], DELTA) <= found + 1e-9
    assert epsilon([event], DELTA) == pytest.approx(found, rel=5e-3)


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_labels_against_enumeration(classes: int) -> None:
    count, epsilon0 = 4, 0.9
    weights = np.ones(classes)
    weights[0] = math.exp(epsilon0)
    one, other = weights / weights.sum(), np.roll(weights, 1) / weights.sum()
    outcomes = list(itertools.product(range(classes), repeat=count))
    p = np.array([math.prod(one[list(o)]) for o in outcomes])
    q = np.array([math.prod(other[list(o)]) for o in outcomes])
    exact = responses.ResponseLoss(RandomizedResponse(epsilon0, classes, count))
    for value in (0.0, 0.4, 0.9, 1.7, 3.0, 3.7):
        expected = float(np.maximum(p - math.exp(value) * q, 0).sum())
        assert exact.delta(value) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("count", "epsilon0"), [(1000, 0.1), (50_000, 0.02), (500_000, 0.005)])
def test_the_error_of_the_transform_is_counted(count: int, epsilon0: float) -> None:
    # With two classes the losses are binomial.
    found = responses.ResponseLoss(RandomizedResponse(epsilon0, 2, count))
    expected = np.zeros(2 * count + 1)
    expected[::2] = binom.pmf(np.arange(count + 1), count, 1 / (1 + math.exp(-epsilon0)))
    tails = np.cumsum((found.mass - expected)[::-1])
    assert np.abs(tails).max() < found.certain / 5


def test_labels_on_the_grid_are_rounded_up_once() -> None:
    event = RandomizedResponse(0.0333, 7, 5000)
    exact = responses.ResponseLoss(event)
    gap = loss.responses_pld(event, loss.GRID).get_epsilon_for_delta(DELTA) - exact.epsilon(DELTA)
    assert -1e-9 <= gap <= loss.GRID + 1e-6


def test_labels_never_cost_more_than_their_sum() -> None:
    exact = responses.ResponseLoss(RandomizedResponse(0.1, 3, 5))
    assert exact.epsilon(1e-15) == pytest.approx(0.5)
    assert exact.delta(0.5) == 0.0


@pytest.mark.parametrize(("q", "sigma"), [(0.01, 1.0), (0.002, 0.6), (0.07, 7.0)])
def test_own_renyi_agrees_with_the_library_where_it_has_one(q: float, sigma: float) -> None:
    event = PoissonGaussian(q, sigma, 100)
    accountant = rdp_privacy_accountant.RdpAccountant(renyi.ORDERS.tolist())
    sampled = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    accountant.compose(sampled, 100)
    own = renyi.epsilon_of_renyi(renyi.renyi(event), DELTA)
    assert own == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-4)


@pytest.mark.long
def test_a_finer_grid_changes_little() -> None:
    event = PoissonGaussian(0.02, 1.0, 400)
    coarse, fine = loss.sampled_pld(event), loss.sampled_pld(event, loss.GRID / 4)
    assert coarse.get_epsilon_for_delta(DELTA) == pytest.approx(
        fine.get_epsilon_for_delta(DELTA), rel=1e-3
    )
