"""What was really released, in the accountant's words; the ledger stores these, never an ε.

An event says which pair of distributions an observer has to distinguish when one unit changes, and
how often. Everything that the privacy law says about one mechanism's cost is a property here: the
Gaussian that dominates it and its zero-concentrated DP, both over all `count` releases, which may
be chosen one after another.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, get_args

from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.label_events import ExponentialVotes, RandomizedResponse
from fedtranscribe.privacy.released_images import ReleasedImages
from fedtranscribe.privacy.units import (
    LARGEST_DISTANCE,
    Adjacency,
    expect,
    expect_count,
    expect_distance,
)
from fedtranscribe.privacy.zcdp import ZeroConcentrated

MOST_COUNT = 2**53
"""Integers up to it survive any JSON reader; no run answers as often."""


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
        expect_distance("mu", self.mu)
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
        adjacency: which pair is compared.

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
        expect(
            1 / LARGEST_DISTANCE <= sigma <= LARGEST_DISTANCE,
            f"{1 / LARGEST_DISTANCE:g} <= noise_multiplier={sigma} <= {LARGEST_DISTANCE:g}",
        )
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
        """Total ρ of zero-concentrated DP, also without the gain from sampling."""
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


def event_from_json(value: Any) -> Event:
    """The inverse of `to_json`, for what a file or a message says.

    Nothing is converted: a count is an integer, a number is finite, and every field of the event
    is there and no other.

    Raises:
        ConfigError: not an event, or its numbers are out of range.
    """
    event = _read(value)
    for part in flat(event):
        expect(part.count <= MOST_COUNT, f"count={part.count} <= {MOST_COUNT} in all")
    return event


def _read(value: Any) -> Event:
    kind = value.get("kind") if isinstance(value, Mapping) else None
    made = _KINDS.get(kind) if isinstance(kind, str) else None
    if made is None:
        raise ConfigError(f"Expected an accounting event of a known kind, got kind={kind!r:.80}.")
    names = {field.name for field in fields(made)}
    if wrong := names ^ (set(value) - {"kind"}):
        raise ConfigError(
            f"Expected the accounting event {kind!r} with {', '.join(sorted(names))}; "
            f"{min(wrong, key=str)!r:.80} is unknown or absent."
        )
    return made(**{name: _READERS[name](name, value[name]) for name in names})


def _number(name: str, value: Any) -> float:
    expect(
        type(value) in (int, float) and abs(value) <= sys.float_info.max,
        f"{name}={value!r:.80} to be a finite number",
    )
    return float(value)


def _whole(name: str, value: Any) -> int:
    expect(
        type(value) is int and value <= MOST_COUNT,
        f"{name}={value!r:.80} to be an integer of at most {MOST_COUNT}",
    )
    return value


def _adjacency(name: str, value: Any) -> Adjacency:
    expect(value in list(Adjacency), f"{name}={value!r:.80} to be one of {', '.join(Adjacency)}")
    return Adjacency(value)


def _parts(name: str, value: Any) -> tuple[Event, ...]:
    expect(isinstance(value, Sequence) and not isinstance(value, str), f"{name} as a list")
    return tuple(_read(part) for part in value)


_READERS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("mu", "epsilon0", "eta", "rho"), _number),
    **dict.fromkeys(("sampling_probability", "noise_multiplier"), _number),
    **dict.fromkeys(("classes", "records", "batch", "count"), _whole),
    "adjacency": _adjacency,
    "parts": _parts,
}


def _to_json(event: Gaussian | PoissonGaussian) -> dict[str, Any]:
    values = asdict(event)
    numbers = {name: float(value) for name, value in values.items() if _READERS[name] is _number}
    values |= {**numbers, "count": int(event.count)}
    if isinstance(event, PoissonGaussian):
        values["adjacency"] = event.adjacency.value
    return {"kind": event.kind, **values}
