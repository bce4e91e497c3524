"""ε and δ of Gaussian DP and of zero-concentrated DP, without a grid."""

import math
from collections.abc import Callable

import numpy as np
import scipy

from fedtranscribe.privacy.units import expect_delta, expect_epsilon

ORDERS = 1 + np.geomspace(1e-5, 1e9, 6_000)
"""Rényi orders tried; each gives a bound, so that a coarse grid costs tightness, never truth."""


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of N(0, 1) against N(μ, 1): Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).

    Source: Balle and Wang 2018, Theorem 8; Dong, Roth and Su 2019, Corollary 2.13.
    """
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    upper = float(scipy.special.log_ndtr(mu / 2 - epsilon / mu))
    lower = epsilon + float(scipy.special.log_ndtr(-mu / 2 - epsilon / mu))
    return -math.exp(upper) * math.expm1(min(lower - upper, 0.0))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε >= 0 with δ(ε) <= delta for N(0, 1) against N(μ, 1)."""
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    if math.isinf(mu):
        return math.inf
    # The tail bound of the Gaussian, so that δ(upper) < delta.
    upper = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1
    if gaussian_delta(mu, upper) >= delta:
        return upper  # so large that a double no longer resolves what the tail bound leaves
    return root(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, upper)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """μ* of the privacy law: the largest μ whose δ(epsilon) is at most delta.

    Raises:
        ConfigError: epsilon is not positive and finite, or delta is not inside (0, 1).
    """
    expect_epsilon(epsilon)
    expect_delta(delta)
    upper = 1.0
    while gaussian_delta(upper, epsilon) < delta:
        upper *= 2
    return root(lambda mu: gaussian_delta(mu, epsilon) - delta, 0.0, upper)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """ε of ρ-zCDP, by the best Rényi order.

    Source: Canonne, Kamath and Steinke 2020, Proposition 12.
    """
    if rho == 0:
        return 0.0
    return renyi_epsilon(rho * ORDERS, delta)


def zcdp_delta(rho: float, epsilon: float) -> float:
    """δ of ρ-zCDP at ε, by the best Rényi order; the inverse of `zcdp_epsilon`."""
    if rho == 0:
        return 0.0
    return renyi_delta(rho * ORDERS, epsilon)


def order_costs(delta: float) -> np.ndarray:
    """What each of `ORDERS` adds to its divergence on the way to ε at δ, shape (orders,).

    Source: Canonne, Kamath and Steinke 2020, Proposition 12.
    """
    return np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)


def renyi_epsilon(curve: np.ndarray, delta: float) -> float:
    """ε at δ by the best of `ORDERS`, from the Rényi divergence at each, shape (orders,)."""
    return max(0.0, float((curve + order_costs(delta)).min()))


def renyi_delta(curve: np.ndarray, epsilon: float) -> float:
    """δ at ε by the best of `ORDERS`; the inverse of `renyi_epsilon`."""
    logs = (ORDERS - 1) * (curve - epsilon + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
    return math.exp(min(0.0, float(logs.min())))


def root(function: Callable[[float], float], lower: float, upper: float) -> float:
    """Where a monotone function changes sign between two arguments."""
    found = scipy.optimize.brentq(function, lower, upper, xtol=1e-15, rtol=np.float64(1e-14))
    return float(np.asarray(found))
