"""Labels that were given away by randomised response or by noisy votes: accounting events.

What a label costs follows from how far one unit can move the weights it is drawn with: the
Gaussian that dominates it, its zero-concentrated DP and its Rényi divergence, where exact.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import scipy

from fedtranscribe.privacy.closed_forms import root
from fedtranscribe.privacy.units import expect, expect_count

_LARGEST_EPSILON0 = 300.0
"""Beyond it a randomised response is the truth in every double: refuse to call it private."""


@dataclass(frozen=True)
class RandomizedResponse:
    """`count` labels, each true with weight e^epsilon0 against 1 for each other class.

    Attributes:
        epsilon0: log ratio of the true class to any other.
        classes: size of the set that is randomised over; with one class nothing is told.
        count: labels in all.

    Guarantee
        (epsilon0, 0) per label, for a unit that can change the teacher's label at will. The two
        outcomes that a change swaps have loss ±epsilon0, all others none.
    """

    kind: ClassVar[str] = "randomized-response"
    epsilon0: float
    classes: int
    count: int = 1

    def __post_init__(self) -> None:
        expect(
            0 <= self.epsilon0 <= _LARGEST_EPSILON0,
            f"epsilon0={self.epsilon0} between 0 and {_LARGEST_EPSILON0:g}",
        )
        expect(self.classes >= 1, f"classes={self.classes} >= 1")
        expect_count(self.count)

    @property
    def log_other(self) -> float:
        """Log probability of any one wrong class."""
        return -float(np.logaddexp(self.epsilon0, _log(self.classes - 1)))

    @property
    def gdp_mu(self) -> float:
        """Total μ of the weakest Gaussian that dominates every label.

        The trade-off function is piecewise linear with kinks at (q, 1 − e^ε0 q) and its mirror
        image, q the probability of one wrong class. G_μ is convex and meets it at the ends, so it
        lies below everywhere as soon as it does at the kink.
        """
        if self.classes == 1:
            return 0.0
        log_not_truth = self.log_other + _log(self.classes - 1)
        one = -_quantile_of_log(self.log_other) - _quantile_of_log(log_not_truth)
        return max(0.0, one) * math.sqrt(self.count)

    @property
    def zcdp_rho(self) -> float:
        """Total ρ of zero-concentrated DP, from the exact Rényi divergence."""
        return self.count * _response_rho(self.epsilon0, self.classes)

    def renyi(self, orders: np.ndarray) -> np.ndarray:
        """Exact Rényi divergence of one label at each order > 1."""
        if self.classes == 1:
            return np.zeros_like(orders)
        return _response_renyi(self.epsilon0, self.classes, orders)

    def to_json(self) -> dict[str, Any]:
        """JSON-able; the event's numbers by name, beside its kind."""
        return {
            "kind": self.kind,
            "epsilon0": float(self.epsilon0),
            "classes": int(self.classes),
            "count": int(self.count),
        }


@dataclass(frozen=True)
class ExponentialVotes:
    """`count` labels, each drawn with weight e^(eta · votes) over `classes` classes.

    Guarantee
        One unit moves one vote, so that log weights change by +eta, −eta or 0: the mechanism has
        bounded range 2·eta, hence is (eta²/2)-zCDP (Hoeffding's lemma; Dong, Durfee and Rogers
        2020) and (2·eta, 0)-DP. With one voter it is exactly
        `RandomizedResponse(eta)`; with more, the normalisation can move too.
    """

    kind: ClassVar[str] = "exponential-votes"
    eta: float
    classes: int
    count: int = 1

    def __post_init__(self) -> None:
        expect(
            0 <= self.eta <= _LARGEST_EPSILON0,
            f"eta={self.eta} between 0 and {_LARGEST_EPSILON0:g}",
        )
        expect(self.classes >= 1, f"classes={self.classes} >= 1")
        expect_count(self.count)

    @property
    def pure(self) -> float:
        """Total ε at δ = 0."""
        return 0.0 if self.classes == 1 else 2 * self.eta * self.count

    @property
    def gdp_mu(self) -> float:
        """Total μ of the weakest Gaussian known to dominate every label: that of (2·eta, 0)-DP.

        (ε, 0)-DP has its kink at 1/(1 + e^ε); see `RandomizedResponse.gdp_mu` for the argument.
        """
        if self.classes == 1:
            return 0.0
        return 2 * _quantile_of_log(-float(np.logaddexp(0, -2 * self.eta))) * math.sqrt(self.count)

    @property
    def zcdp_rho(self) -> float:
        """Total ρ of zero-concentrated DP."""
        return 0.0 if self.classes == 1 else self.count * self.eta**2 / 2

    def to_json(self) -> dict[str, Any]:
        """JSON-able; the event's numbers by name, beside its kind."""
        return {
            "kind": self.kind,
            "eta": float(self.eta),
            "classes": int(self.classes),
            "count": int(self.count),
        }


def _response_renyi(epsilon0: float, classes: int, orders: np.ndarray) -> np.ndarray:
    # With p the truth's and q another class's probability, and t = α − 1, the divergence is
    # log(1 + p(e^{t ε0} − 1) + q(e^{−t ε0} − 1)) / t; it never exceeds ε0.
    t = orders - 1
    log_q = -np.logaddexp(epsilon0, _log(classes - 1))
    q, p = np.exp(log_q), np.exp(log_q + epsilon0)
    exponent = np.minimum(t * epsilon0, 600.0)
    exact = np.log1p(p * np.expm1(exponent) + q * np.expm1(-exponent)) / t
    return np.where(t * epsilon0 < 600.0, np.minimum(exact, epsilon0), epsilon0)


@lru_cache(maxsize=1024)
def _response_rho(epsilon0: float, classes: int) -> float:
    # ρ = sup D_α / α. D grows with α, so between two neighbours of a grid D_α / α is at most
    # D at the upper over α at the lower; beyond the grid it is at most ε0 / α. Never too small,
    # and never above what every ε0-DP mechanism has, ε0² / 2.
    if classes == 1 or epsilon0 == 0:
        return 0.0
    orders = np.geomspace(1.0, 10.0 * classes * (1 + 1 / epsilon0), 20_000)
    bounds = _response_renyi(epsilon0, classes, orders[1:]) / orders[:-1]
    return min(float(max(bounds.max(), epsilon0 / orders[-1])), epsilon0**2 / 2)


def _quantile_of_log(log_probability: float) -> float:
    return float(scipy.special.ndtri_exp(log_probability))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


GRID = 1e-4
"""Width of the grid of losses wherever the fourth digit of ε matters to anybody."""


_FFT_ERROR = 16 * 2.0**-52
"""Probability that a composition by FFT may misplace per answer, ten times what is seen against
exact binomials; counted as certain disclosure."""


MOST_RESPONSES = 2**21
"""Labels by randomised response whose loss is found exactly: an FFT of about four times as many."""


class ResponseLoss:
    """The privacy loss of many randomised responses, exact on multiples of ε0.

    Args:
        event: at least two classes and ε0 > 0.

    Guarantee
        One answer's loss is +ε0 with the truth's probability, −ε0 with that of the one class that
        the other data set calls the truth, and 0 else, which is the whole distribution; adaptive
        composition adds independent losses. δ(ε) = E[(1 − e^{ε − loss})+] is then a plain sum.
    """

    def __init__(self, event: RandomizedResponse) -> None:
        q = math.exp(event.log_other)
        p = math.exp(event.log_other + event.epsilon0)
        n = event.count
        size = 2 ** math.ceil(math.log2(2 * n + 1))
        one = np.zeros(size)
        one[0], one[1], one[2] = q, (event.classes - 2) * q, p
        mass = np.fft.irfft(np.fft.rfft(one) ** n, size)[: 2 * n + 1]
        self.mass = np.maximum(mass, 0.0)
        self.losses = event.epsilon0 * np.arange(-n, n + 1)
        self.certain = max(0.0, 1 - float(self.mass.sum())) + n * _FFT_ERROR

    def delta(self, epsilon: float) -> float:
        """δ at ε."""
        if epsilon >= self.losses[-1]:
            return 0.0
        above = self.losses > epsilon
        gains = -np.expm1(epsilon - self.losses[above])
        return min(1.0, float(self.mass[above] @ gains) + self.certain)

    def epsilon(self, delta: float) -> float:
        """The smallest ε >= 0 whose δ is at most delta; never above the sum of all ε0."""
        if self.delta(0.0) <= delta:
            return 0.0
        pure = float(self.losses[-1])
        if self.certain >= delta:
            return pure
        return root(lambda epsilon: self.delta(epsilon) - delta, 0.0, pure)


@lru_cache(maxsize=64)
def response_loss(event: RandomizedResponse) -> ResponseLoss:
    """The loss of all labels of an event."""
    return ResponseLoss(event)
