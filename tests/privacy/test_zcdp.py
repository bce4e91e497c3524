"""The bound for sums of discrete Gaussians against the divergences themselves, summed up."""

import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import fminbound
from scipy.special import log_ndtr, ndtri_exp

from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.accountant import delta_of, epsilon, epsilon_rdp
from fedtranscribe.privacy.closed_forms import (
    gaussian_delta,
    gaussian_epsilon,
    zcdp_delta,
    zcdp_epsilon,
)
from fedtranscribe.privacy.events import Gaussian, event_from_json
from fedtranscribe.privacy.label_events import RandomizedResponse
from fedtranscribe.privacy.zcdp import (
    ZeroConcentrated,
    discrete_sum_rho,
    dominating_mu,
    sum_distance,
    zcdp_rho,
)

DELTA = 1e-5
ORDERS = (1.01, 1.5, 2.0, 3.0, 8.0, 32.0)
LAWS = [(1, 1), (1, 2), (1, 3), (1, 6), (2, 2), (2, 5), (4, 3), (9, 2), (50, 4)]


def discrete(variance: float, reach: int) -> np.ndarray:
    weights = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2 * variance))
    return weights / weights.sum()


def law_of_sum(variance: float, terms: int) -> np.ndarray:
    """Probabilities of −r … r, r wide enough for every order; zero from where doubles end."""
    one = discrete(variance, math.ceil(60 * math.sqrt(variance)))
    law = one
    for _ in range(terms - 1):
        law = np.convolve(law, one)
    return law


def renyi(law: np.ndarray, shift: int, order: float) -> float:
    p, q = law[shift:], law[: len(law) - shift]
    # Convolution leaves rounding behind where the true probability is far below it.
    seen = (p > 1e-250) & (q > 1e-250)
    logs = order * np.log(p[seen]) + (1 - order) * np.log(q[seen])
    top = logs.max()
    return float((top + np.log(np.exp(logs - top).sum())) / (order - 1))


@pytest.mark.parametrize(("variance", "terms"), LAWS)
def test_no_divergence_of_a_sum_exceeds_what_is_booked(variance, terms):
    law = law_of_sum(variance, terms)
    for shift in (1, 2, 5):
        rho = discrete_sum_rho(shift, variance, terms, 1)
        for order in ORDERS:
            assert renyi(law, shift, order) <= order * rho * (1 + 1e-9)


@pytest.mark.parametrize(("variance", "terms"), [(4, 3), (9, 2), (50, 4)])
def test_what_is_booked_is_reached(variance, terms):
    # The continuous Gaussian's divergence, from σ² of a few units on.
    law, continuous = law_of_sum(variance, terms), 3**2 / (2 * terms * variance)
    assert discrete_sum_rho(3, variance, terms, 1) == pytest.approx(continuous, rel=1e-9)
    for order in ORDERS:
        assert renyi(law, 3, order) == pytest.approx(order * continuous, rel=1e-6)


def test_coordinates_add_up():
    rho = discrete_sum_rho(math.hypot(1, 2), 1, 3, 2)
    law = law_of_sum(1, 3)
    for order in ORDERS:
        assert renyi(law, 1, order) + renyi(law, 2, order) <= order * rho


@pytest.mark.parametrize(("variance", "terms"), [(1, 2), (1, 3), (1, 6), (1.3, 4), (2, 2)])
def test_a_sum_is_as_close_to_a_discrete_gaussian_as_proved(variance, terms):
    # In fifty digits: doubles do not hold differences as small as these.
    with localcontext(Context(prec=50)):
        one = weights_of(Fraction(variance), 40)
        law = one
        for _ in range(terms - 1):
            law = convolved(law, one)
        other = weights_of(terms * Fraction(variance), 40 * terms)
        scale = sum(other, Decimal(0)) / sum(law, Decimal(0))
        middle = range(40 * terms - 12, 40 * terms + 13)
        far = float(max(abs((law[i] * scale / other[i]).ln()) for i in middle))
    bound = sum_distance(variance, terms) / 2
    assert far < bound
    if terms == 2:
        # Two equal terms are off by 2q where the proof allows 5q; more terms average it out.
        assert far == pytest.approx(0.4 * bound, rel=1e-3)


def weights_of(variance: Fraction, reach: int) -> list[Decimal]:
    twice = Decimal((2 * variance).numerator) / Decimal((2 * variance).denominator)
    return [(Decimal(-(x * x)) / twice).exp() for x in range(-reach, reach + 1)]


def convolved(a: list[Decimal], b: list[Decimal]) -> list[Decimal]:
    """Only as far as the middle of the next sum needs it; the rest is below any digit kept."""
    result = [Decimal(0)] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        if x > Decimal("1e-60"):
            for j, y in enumerate(b):
                if y > Decimal("1e-60"):
                    result[i + j] += x * y
    return result


def test_the_distance_is_the_sum_that_the_proof_names_however_many_terms():
    for variance, terms in ((1.0, 1), (1.0, 2), (1.5, 7), (1.0, 41)):
        exact = 10 * sum(
            math.exp(-2 * math.pi**2 * variance * k / (k + 1)) for k in range(1, terms)
        )
        assert sum_distance(variance, terms) == pytest.approx(exact, rel=1e-12)
    for terms in (42, 43, 500):
        exact = 10 * sum(math.exp(-2 * math.pi**2 * k / (k + 1)) for k in range(1, terms))
        assert exact * (1 - 1e-12) <= sum_distance(1.0, terms) <= exact * 2
    assert sum_distance(1e6, 100) == 0.0


@pytest.mark.parametrize(("variance", "terms"), LAWS)
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0])
def test_the_delta_of_a_sum_is_at_most_what_its_event_says(variance, terms, epsilon):
    law = law_of_sum(variance, terms)
    p, q = law[1:], law[:-1]
    true = float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
    assert true <= ZeroConcentrated(discrete_sum_rho(1, variance, terms, 1)).delta(epsilon)


@given(rho=st.floats(1e-7, 50), count=st.integers(1, 5000), delta=st.floats(1e-12, 0.1))
@settings(deadline=None, max_examples=100)
def test_epsilon_is_that_of_no_smaller_gaussian(rho, count, delta):
    event = ZeroConcentrated(rho / count, count)
    assert event.zcdp_rho == pytest.approx(rho)
    epsilon = event.epsilon(delta)
    # N(0, 1) against N(√2ρ, 1) is exactly ρ-zCDP, and so bounds every sound conversion below.
    assert epsilon >= gaussian_epsilon(math.sqrt(2 * rho), delta) - 1e-9
    assert epsilon <= (rho + 2 * math.sqrt(rho * math.log(1 / delta))) * (1 + 1e-3)
    assert event.delta(epsilon) <= delta * (1 + 1e-6) or epsilon == 0
    assert event.delta(1.0) >= gaussian_delta(math.sqrt(2 * rho), 1.0) * (1 - 1e-9)


@given(rho=st.floats(1e-6, 20), more=st.floats(1.001, 3), delta=st.floats(1e-10, 0.01))
@settings(deadline=None, max_examples=60)
def test_epsilon_grows_with_rho_and_falls_with_delta(rho, more, delta):
    epsilon = ZeroConcentrated(rho).epsilon(delta)
    assert ZeroConcentrated(rho * more).epsilon(delta) >= epsilon
    assert ZeroConcentrated(rho).epsilon(min(delta * more, 0.5)) <= epsilon
    assert ZeroConcentrated(rho).delta(epsilon + 0.1) <= ZeroConcentrated(rho).delta(epsilon)


@pytest.mark.parametrize("rho", [1e-4, 0.03, 0.5, 2.0, 40.0])
def test_the_conversion_is_the_papers_optimum(rho):
    # Proposition 12 at the best order, found by golden section instead of on a grid.
    def bound(log_gap):
        gap = math.exp(log_gap)
        a = 1 + gap
        return rho * a - math.log(a * DELTA) / gap + math.log(gap / a)

    found = fminbound(bound, -6, 15, xtol=1e-9)
    best = max(0.0, bound(float(np.asarray(found))))
    assert ZeroConcentrated(rho).epsilon(DELTA) == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 10.0, 300.0])
def test_the_largest_rho_is_found_from_below(epsilon):
    rho = zcdp_rho(epsilon, DELTA)
    assert ZeroConcentrated(rho).epsilon(DELTA) <= epsilon
    assert ZeroConcentrated(rho * (1 + 1e-6)).epsilon(DELTA) > epsilon


def test_an_event_is_written_and_says_that_no_gaussian_dominates_it():
    event = ZeroConcentrated(0.25, 4)
    assert event.to_json() == {"kind": "zcdp", "rho": 0.25, "count": 4}
    assert event.zcdp_rho == 1.0
    assert event.gdp_mu == pytest.approx(dominating_mu(event.rho) * math.sqrt(event.count))
    assert ZeroConcentrated(0.0).gdp_mu == ZeroConcentrated(0.0).epsilon(DELTA) == 0.0
    assert event.epsilon(DELTA) == ZeroConcentrated(1.0).epsilon(DELTA)


@pytest.mark.parametrize(
    "broken",
    [
        lambda: ZeroConcentrated(-1.0),
        lambda: ZeroConcentrated(math.nan),
        lambda: ZeroConcentrated(math.inf),
        lambda: ZeroConcentrated(1.0, 0),
        lambda: ZeroConcentrated(1.0).epsilon(0.0),
        lambda: ZeroConcentrated(1.0).delta(-1.0),
        lambda: zcdp_rho(0.0, DELTA),
        lambda: zcdp_rho(1.0, 1.0),
        lambda: discrete_sum_rho(-1.0, 1, 1, 1),
        lambda: discrete_sum_rho(1.0, 0.5, 1, 1),
        lambda: discrete_sum_rho(1.0, 1, 0, 1),
        lambda: discrete_sum_rho(1.0, 1, 1, 0),
        lambda: sum_distance(math.nan, 2),
    ],
)
def test_numbers_out_of_range_are_refused(broken):
    with pytest.raises(ConfigError, match="Expected"):
        broken()


def test_the_accountant_counts_a_plan_with_it_in_rho():
    events = [ZeroConcentrated(0.01, 10), Gaussian(0.2, 5), RandomizedResponse(0.1, 3, 4)]
    rho = sum(event.zcdp_rho for event in events)
    assert epsilon(events, 1e-5) == pytest.approx(zcdp_epsilon(rho, 1e-5))
    assert delta_of(events, 2.0) == pytest.approx(zcdp_delta(rho, 2.0))
    # By Rényi order a randomised response costs a little less than its ρ.
    assert epsilon_rdp(events, 1e-5) == pytest.approx(epsilon(events, 1e-5), rel=0.01)


def test_composing_by_count_is_composing_one_by_one():
    assert epsilon([ZeroConcentrated(0.02)] * 7, 1e-5) == pytest.approx(
        epsilon([ZeroConcentrated(0.02, 7)], 1e-5)
    )


def test_the_ratio_in_the_proof_of_the_dominating_gaussian_falls_and_stays_above():
    t = np.linspace(1e-2, 35, 200_001)
    ratio = (np.sqrt(-log_ndtr(-t)) - np.sqrt(-log_ndtr(t))) / t
    assert np.diff(ratio).max() < 0
    assert 1 / math.sqrt(2) < ratio[-1] < ratio[0] < 0.9584


@pytest.mark.parametrize("rho", [1e-8, 1e-4, 0.03, 0.5, 3.0, 40.0])
def test_the_dominating_gaussian_is_above_the_best_that_two_outcomes_allow(rho):
    # Every pair of powers that data processing allows, by brute force over the smaller one.
    low = np.linspace(-35, 35, 700_001)
    root = np.sqrt(rho)
    up = np.sqrt(-log_ndtr(low)) - root
    by_outcome = np.where(up > 0, ndtri_exp(-(np.maximum(up, 1e-9) ** 2)), np.inf)
    by_complement = -ndtri_exp(-((np.sqrt(-log_ndtr(-low)) + root) ** 2))
    best = float((np.minimum(by_outcome, by_complement) - low).max())
    mu = dominating_mu(rho)
    assert best <= mu * (1 + 1e-6) <= math.sqrt(8 * rho)
    assert mu > math.sqrt(2 * rho)


@pytest.mark.parametrize("variance", [1, 4, 50])
@pytest.mark.parametrize("shift", [1, 3])
def test_the_dominating_gaussian_covers_a_discrete_one(variance, shift):
    law = discrete(variance, 30 + 30 * variance)
    p, q = law[shift:], law[:-shift]
    mu = dominating_mu(shift**2 / (2 * variance))
    for e in np.linspace(-10, 10, 81):
        exact = float(np.maximum(p - math.exp(e) * q, 0).sum())
        assert exact <= gaussian_delta(mu, e) + 1e-12


def test_an_event_survives_the_ledgers_form():
    event = ZeroConcentrated(0.125, 9)
    assert event_from_json(event.to_json()) == event
