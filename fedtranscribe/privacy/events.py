"""What was really released, in the accountant's words; the ledger stores these, never an ε.

An event says which pair of distributions an observer has to tell apart when one unit changes, and
how often. Everything that the privacy law says about one mechanism's cost is a property here: the
Gaussian that dominates it and its zero-concentrated DP, both over all `count` releases, which may
be chosen one after another.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import log_ndtr, ndtri, ndtri_exp

from fedtranscribe.errors import ConfigError, UnsupportedAdjacencyError
from fedtranscribe.privacy.units import Adjacency, Unit

_LARGEST_EPSILON0 = 300.0
"""Beyond it a randomised response is the truth in every double: refuse to call it private."""


@dataclass(frozen=True)
class Gaussian:
    """`count` rows, each at worst N(0, 1) against N(mu, 1).

    Guarantee
        (mu √count)-GDP: Gaussian DP composes exactly, with queries chosen adaptively (Dong, Roth
        and Su 2019, Corollary 3.3).
    """

    kind: ClassVar[str] = "gaussian"
    mu: float
    count: int = 1

    def __post_init__(self) -> None:
        _expect(self.mu >= 0 and math.isfinite(self.mu), f"mu={self.mu} >= 0")
        _expect_count(self.count)

    @property
    def gdp_mu(self) -> float:
        """Total μ of Gaussian DP."""
        return self.mu * math.sqrt(self.count)

    @property
    def zcdp_rho(self) -> float:
        """Total ρ of zero-concentrated DP."""
        return self.count * self.mu**2 / 2

    def to_json(self) -> dict[str, Any]:
        """JSON-able; `event_from_json` is the inverse."""
        return _to_json(self)


@dataclass(frozen=True)
class RandomizedResponse:
    """`count` labels, each told truly with weight e^epsilon0 against 1 for each other class.

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
        _expect(
            0 <= self.epsilon0 <= _LARGEST_EPSILON0,
            f"epsilon0={self.epsilon0} between 0 and {_LARGEST_EPSILON0:g}",
        )
        _expect(self.classes >= 1, f"classes={self.classes} >= 1")
        _expect_count(self.count)

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
        one = -_quantile_of_log(self.log_other) + _quantile_of_log(self.log_other + self.epsilon0)
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
        """JSON-able; `event_from_json` is the inverse."""
        return _to_json(self)


@dataclass(frozen=True)
class ExponentialVotes:
    """`count` labels, each drawn with weight e^(eta · votes) over `classes` classes.

    Guarantee
        One unit moves one vote, so that log weights change by +eta, −eta or 0: the mechanism has
        bounded range 2·eta, hence is (eta²/2)-zCDP (Cesa-Bianchi style Hoeffding bound, as in
        Dong, Durfee and Rogers 2020) and (2·eta, 0)-DP. With one voter it is exactly
        `RandomizedResponse(eta)`; with more, the normalisation can move too.
    """

    kind: ClassVar[str] = "exponential-votes"
    eta: float
    classes: int
    count: int = 1

    def __post_init__(self) -> None:
        _expect(
            0 <= self.eta <= _LARGEST_EPSILON0,
            f"eta={self.eta} between 0 and {_LARGEST_EPSILON0:g}",
        )
        _expect(self.classes >= 1, f"classes={self.classes} >= 1")
        _expect_count(self.count)

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
        """JSON-able; `event_from_json` is the inverse."""
        return _to_json(self)
