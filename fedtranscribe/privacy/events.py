"""What was really released, in the accountant's words; the ledger stores these, never an ε.

An event says which pair of distributions an observer has to tell apart when one unit changes, and
how often. Everything that the privacy law says about one mechanism's cost is a property here: the
Gaussian that dominates it and its zero-concentrated DP, both over all `count` releases, which may
be chosen one after another.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self, get_args

import numpy as np
from scipy.special import ndtri_exp

from fedtranscribe.errors import ConfigError, UnsupportedAdjacencyError
from fedtranscribe.privacy.released_images import ReleasedImages
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.privacy.zcdp import ZeroConcentrated

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
        """JSON-able; `event_from_json` is the inverse."""
        return _to_json(self)


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


@dataclass(frozen=True)
class PoissonGaussian:
    """`count` steps of DP-SGD: each unit joins a step by its own coin, its row is clipped to C.

    Attributes:
        sampling_probability: the coin.
        noise_multiplier: noise std over C; the sum is divided by the expected batch size.
        count: steps in all.
        adjacency: which pair is told apart.

    Guarantee
        Under add-remove the pair is N(0, σ²) against (1 − q) N(0, σ²) + q N(1, σ²), in both
        directions. Zero-out is the same pair: the null record's clipped row is zero, whether its
        coin lets it in or not. Under replace both data sets toss the same coin, and the rows may
        be opposite: (1 − q) N(0, σ²) + q N(−1, σ²) against (1 − q) N(0, σ²) + q N(+1, σ²); that
        is neither add-remove at σ/2 nor twice add-remove.
    """

    kind: ClassVar[str] = "poisson-gaussian"
    sampling_probability: float
    noise_multiplier: float
    count: int = 1
    adjacency: Adjacency = Adjacency.ZERO_OUT

    def __post_init__(self) -> None:
        q, sigma = self.sampling_probability, self.noise_multiplier
        _expect(0 < q <= 1, f"0 < sampling_probability={q} <= 1")
        _expect(sigma > 0 and math.isfinite(sigma), f"noise_multiplier={sigma} > 0")
        _expect_count(self.count)

    @property
    def distance(self) -> float:
        """μ of one step in which the unit takes part: 1/σ, or 2/σ under replace."""
        return (2.0 if self.adjacency is Adjacency.REPLACE else 1.0) / self.noise_multiplier

    @property
    def gdp_mu(self) -> float:
        """Total μ of a Gaussian that dominates it: without the gain from sampling.

        A sampled mechanism is never easier to tell apart than the plain one, but far out in its
        tail it is no harder, so no smaller Gaussian dominates it at every δ.
        """
        return self.distance * math.sqrt(self.count)

    @property
    def zcdp_rho(self) -> float:
        """Total ρ of zero-concentrated DP, likewise without the gain from sampling."""
        return self.count * self.distance**2 / 2

    def to_json(self) -> dict[str, Any]:
        """JSON-able; `event_from_json` is the inverse."""
        return _to_json(self)


@dataclass(frozen=True)
class Together:
    """Several events of one run, all fixed before the first of them; `count` such runs.

    Guarantee
        That of its parts: each is a bound whatever the others show, so that losses add, and a
        plan that is fixed beforehand composes by its privacy loss distribution.
    """

    kind: ClassVar[str] = "together"
    parts: tuple["Event", ...]
    count: int = 1

    def __post_init__(self) -> None:
        _expect(len(self.parts) > 0, "at least one part")
        _expect_count(self.count)

    @property
    def gdp_mu(self) -> float:
        """Total μ of a Gaussian that dominates all parts."""
        return math.sqrt(self.count * math.fsum(part.gdp_mu**2 for part in self.parts))

    @property
    def zcdp_rho(self) -> float:
        """Total ρ of zero-concentrated DP."""
        return self.count * math.fsum(part.zcdp_rho for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        """JSON-able; `event_from_json` is the inverse."""
        parts = [part.to_json() for part in self.parts]
        return {"kind": self.kind, "parts": parts, "count": int(self.count)}


Event = (
    Gaussian
    | RandomizedResponse
    | ExponentialVotes
    | PoissonGaussian
    | ZeroConcentrated
    | ReleasedImages
    | Together
)

_KINDS: dict[str, type[Event]] = {event.kind: event for event in get_args(Event)}


def flat(event: Event) -> Iterator[Event]:
    """The events that an event stands for, none of them `Together`."""
    if isinstance(event, Together):
        for part in event.parts:
            yield from flat(replace(part, count=part.count * event.count))
    else:
        yield event


def event_from_json(value: Mapping[str, Any]) -> Event:
    """The inverse of `to_json`.

    Raises:
        ConfigError: not an event, or its numbers are out of range.
    """
    known = {
        name: kind(entry)
        for name, kind in _FIELDS.items()
        if (entry := value.get(name)) is not None
    }
    try:
        return _KINDS[value["kind"]](**known)
    except (KeyError, TypeError):
        raise ConfigError(f"Expected an accounting event, got {dict(value)}.") from None


@dataclass(frozen=True)
class Release:
    """What one mechanism gives away by `rows` answers, per unit and adjacency.

    Attributes:
        mechanism: its name, for people.
        rows: answers in all.
        costs: the event of all `rows` answers; an adjacency that is absent has no guarantee.
    """

    mechanism: str
    rows: int
    costs: Mapping[Unit, Mapping[Adjacency, Event]]

    def __post_init__(self) -> None:
        _expect(self.rows >= 1, f"rows={self.rows} >= 1")

    def event(self, unit: Unit, adjacency: Adjacency) -> Event:
        """The cost under one unit and adjacency.

        Raises:
            UnsupportedAdjacencyError: nothing follows from the release there.
        """
        event = self.costs.get(unit, {}).get(adjacency)
        if event is None:
            raise UnsupportedAdjacencyError(
                f"The release {self.mechanism!r} gives no guarantee for unit={unit.value} under "
                f"adjacency={adjacency.value}; ask for another unit or adjacency."
            )
        return event

    def with_rows(self, rows: int) -> Self:
        """The same release with another number of rows, each of which costs as much as before.

        Raises:
            ConfigError: an event's count is not a whole number per row.
        """
        costs = {
            unit: {adjacency: _rescaled(event, self.rows, rows) for adjacency, event in by.items()}
            for unit, by in self.costs.items()
        }
        return replace(self, rows=rows, costs=costs)

    def to_json(self) -> dict[str, Any]:
        """JSON-able with string keys only, so that it has one canonical form."""
        costs = {
            unit.value: {adjacency.value: event.to_json() for adjacency, event in by.items()}
            for unit, by in self.costs.items()
        }
        return {"mechanism": self.mechanism, "rows": self.rows, "costs": costs}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`.

        Raises:
            ConfigError: not a release.
        """
        try:
            costs = {
                Unit(unit): {Adjacency(name): event_from_json(event) for name, event in by.items()}
                for unit, by in value["costs"].items()
            }
            return cls(str(value["mechanism"]), int(value["rows"]), costs)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigError(f"Expected a release, got {value}.") from None


@dataclass(frozen=True)
class PrivacyPlan:
    """Everything that a run will release, fixed before its first answer."""

    releases: tuple[Release, ...]
    unit: Unit
    adjacency: Adjacency
    delta: float


def _rescaled(event: Event, rows: int, wanted: int) -> Event:
    per_row, rest = divmod(event.count, rows)
    _expect(rest == 0, f"count={event.count} to be a multiple of rows={rows}")
    return replace(event, count=per_row * wanted)


_FIELDS = {
    "mu": float,
    "epsilon0": float,
    "eta": float,
    "rho": float,
    "sampling_probability": float,
    "noise_multiplier": float,
    "classes": int,
    "records": int,
    "batch": int,
    "count": int,
    "adjacency": Adjacency,
    "parts": lambda parts: tuple(event_from_json(part) for part in parts),
}


def _to_json(event: Event) -> dict[str, Any]:
    values = {name: _FIELDS[name](value) for name, value in asdict(event).items()}
    if "adjacency" in values:
        values["adjacency"] = values["adjacency"].value
    return {"kind": event.kind, **values}


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
    return float(ndtri_exp(log_probability))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _expect_count(count: int) -> None:
    _expect(count >= 1, f"count={count} >= 1")


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise ConfigError(f"Expected {what}.")
