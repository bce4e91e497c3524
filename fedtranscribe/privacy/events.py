"""What was really released, in the accountant's words; the ledger stores these, never an ε.

An event says which pair of distributions an observer has to tell apart when one unit changes, and
how often. Everything that the privacy law says about one mechanism's cost is a property here: the
Gaussian that dominates it and its zero-concentrated DP, both over all `count` releases, which may
be chosen one after another.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, get_args

from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.checks import expect, expect_count
from fedtranscribe.privacy.label_events import ExponentialVotes, RandomizedResponse
from fedtranscribe.privacy.released_images import ReleasedImages
from fedtranscribe.privacy.units import Adjacency
from fedtranscribe.privacy.zcdp import ZeroConcentrated


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
        expect(self.mu >= 0 and math.isfinite(self.mu), f"mu={self.mu} >= 0")
        expect_count(self.count)

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
        expect(0 < q <= 1, f"0 < sampling_probability={q} <= 1")
        expect(sigma > 0 and math.isfinite(sigma), f"noise_multiplier={sigma} > 0")
        expect_count(self.count)

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
        expect(len(self.parts) > 0, "at least one part")
        expect_count(self.count)

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
