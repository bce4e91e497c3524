import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.closed_forms import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    zcdp_delta,
    zcdp_epsilon,
)

DELTA = 1e-5


@pytest.mark.parametrize(("epsilon", "mu"), [(1.0, 0.26805), (10.0, 2.00045)])
def test_mu_star_of_the_privacy_law(epsilon: float, mu: float) -> None:
    assert gaussian_mu(epsilon, DELTA) == pytest.approx(mu, abs=5e-6)


@given(mu=st.floats(1e-3, 30.0), epsilon=st.floats(0.0, 50.0))
@settings(deadline=None, max_examples=100)
def test_delta_is_the_text_book_formula(mu: float, epsilon: float) -> None:
    upper = norm.cdf(-epsilon / mu + mu / 2)
    expected = upper - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
    assert gaussian_delta(mu, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-13)


def test_delta_is_the_integral_of_the_hockey_stick() -> None:
    points = np.linspace(-12, 14, 400_001)
    gain = norm.pdf(points, 1.3) - math.exp(0.8) * norm.pdf(points)
    integral = np.trapezoid(np.maximum(gain, 0), points)
    assert gaussian_delta(1.3, 0.8) == pytest.approx(integral, rel=1e-6)


@given(mu=st.floats(1e-3, 1e3), delta=st.floats(1e-12, 0.1))
@settings(deadline=None, max_examples=100)
def test_epsilon_inverts_delta_and_mu(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    if epsilon == 0:
        assert gaussian_delta(mu, 0.0) <= delta
    else:
        assert gaussian_delta(mu, epsilon) == pytest.approx(delta, rel=1e-5)
        assert gaussian_mu(epsilon, delta) == pytest.approx(mu, rel=1e-6)


def test_extremes() -> None:
    assert gaussian_epsilon(0.0, DELTA) == gaussian_delta(0.0, 0.0) == 0.0
    assert gaussian_epsilon(math.inf, DELTA) == math.inf
    assert gaussian_delta(math.inf, 100.0) == 1.0
    assert zcdp_epsilon(0.0, DELTA) == zcdp_delta(0.0, 0.0) == 0.0


@given(rho=st.floats(1e-6, 1e3), delta=st.floats(1e-12, 0.1))
@settings(deadline=None, max_examples=100)
def test_zcdp_lies_between_the_gaussian_and_the_simple_bound(rho: float, delta: float) -> None:
    epsilon = zcdp_epsilon(rho, delta)
    assert gaussian_epsilon(math.sqrt(2 * rho), delta) <= epsilon + 1e-9
    assert epsilon <= (rho + 2 * math.sqrt(rho * math.log(1 / delta))) * (1 + 1e-3)
    if epsilon > 0:
        assert zcdp_delta(rho, epsilon) <= delta * (1 + 1e-6)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_epsilon_out_of_range(epsilon: float) -> None:
    with pytest.raises(ConfigError, match="epsilon="):
        gaussian_mu(epsilon, DELTA)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_delta_out_of_range(delta: float) -> None:
    with pytest.raises(ConfigError, match="delta="):
        gaussian_mu(1.0, delta)


@pytest.mark.parametrize("mu", [1e6, 1e9, 1e30, 1e150])
def test_an_enormous_mu_still_has_a_figure(mu: float) -> None:
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(mu**2 / 2, rel=1e-4)
