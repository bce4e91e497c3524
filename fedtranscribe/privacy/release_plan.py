"""What a run releases: each mechanism's events, by unit and adjacency, and under which noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from fedtranscribe.errors import ConfigError, UnsupportedAdjacencyError
from fedtranscribe.privacy.events import MOST_COUNT, Event, Together, event_from_json
from fedtranscribe.privacy.units import Adjacency, NoiseMode, Unit, expect


@dataclass(frozen=True)
class MechanismRelease:
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
        expect(self.rows >= 1, f"rows={self.rows} >= 1")

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
    def from_json(cls, value: Any) -> Self:
        """The inverse of `to_json`, for what a file or a message says; nothing is converted.

        Raises:
            ConfigError: not a release.
        """
        try:
            mechanism, rows, costs = (value[name] for name in ("mechanism", "rows", "costs"))
            expect(len(value) == 3, "mechanism, rows and costs alone")
            expect(isinstance(mechanism, str), "mechanism as a text")
            expect(type(rows) is int and rows <= MOST_COUNT, f"rows={rows!r:.80} as an integer")
            events = {
                Unit(unit): {Adjacency(name): event_from_json(event) for name, event in by.items()}
                for unit, by in costs.items()
            }
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigError("Expected a release with mechanism, rows and costs.") from None
        return cls(mechanism, rows, events)


def together(mechanism: str, releases: Sequence[MechanismRelease]) -> MechanismRelease:
    """Several releases of one run as one, all of them fixed before the first.

    Args:
        mechanism: name of the whole.
        releases: at least one.

    Guarantee:
        That of `Together`, in each unit and adjacency in which every release has one.

    Raises:
        ConfigError: there is no unit and adjacency in which all of them have a guarantee.
    """
    first = releases[0].costs
    costs = {
        unit: {
            adjacency: Together(tuple(each.event(unit, adjacency) for each in releases))
            for adjacency in by
            if all(adjacency in each.costs.get(unit, {}) for each in releases)
        }
        for unit, by in first.items()
    }
    shared = {unit: by for unit, by in costs.items() if by}
    expect(len(shared) > 0, "releases with a guarantee for one unit under one adjacency")
    return MechanismRelease(mechanism, 1, shared)


@dataclass(frozen=True)
class PrivacyPlan:
    """Everything that a run will release, fixed before its first answer."""

    releases: tuple[MechanismRelease, ...]
    unit: Unit
    adjacency: Adjacency
    delta: float


def _rescaled(event: Event, rows: int, wanted: int) -> Event:
    per_row, rest = divmod(event.count, rows)
    expect(rest == 0, f"count={event.count} to be a multiple of rows={rows}")
    return replace(event, count=per_row * wanted)


_STRENGTHS = (1e-9, 1e9)
_MOST_HOLDERS = 100_000

KEY_BYTES = 32
"""Of a key that noise follows from, made by the operating system."""


@dataclass(frozen=True)
class NoisePlan:
    """How the answers to a query become private; the holder binds it to the query for ever.

    Attributes:
        mode: who adds the noise.
        strength: s, the noise std per coordinate on the mean over holders; for labels ε0 (one
            teacher) or η (votes of an ensemble).
        holders: m, how many holders the noise is planned for.
        dropouts, colluders: under `secagg`, d of them may be missing from a sum and c may reveal
            the server all they know; m > 2d + c.
    """

    mode: NoiseMode
    strength: float
    holders: int
    dropouts: int = 0
    colluders: int = 0

    def __post_init__(self) -> None:
        """Refuse noise that is none, that no float could add, and a federation of nobody."""
        least, most = _STRENGTHS
        if not least <= self.strength <= most:
            raise ConfigError(
                f"Expected a noise strength={self.strength} between {least:g} and {most:g}."
            )
        # Beyond these limits the cost of an answer could underflow to nothing.
        if not 1 <= self.holders <= _MOST_HOLDERS:
            raise ConfigError(f"Expected holders={self.holders} between 1 and {_MOST_HOLDERS}.")
        if self.mode is NoiseMode.SECAGG:
            expect_tolerable(self.holders, self.dropouts, self.colluders)
        elif self.dropouts or self.colluders:
            raise ConfigError(f"Expected no dropouts or colluders under noise mode {self.mode}.")

    @property
    def tolerated(self) -> int:
        """t = d + c, how many holders' shares of the noise are not counted on."""
        return self.dropouts + self.colluders

    @property
    def words(self) -> str:
        """One canonical line; two plans agree if and only if their lines do."""
        line = f"{self.mode.value} {self.strength.hex()} {self.holders}"
        if self.mode is NoiseMode.SECAGG:
            return f"{line} {self.dropouts} {self.colluders}"
        return line


def expect_tolerable(holders: int, dropouts: int, colluders: int) -> None:
    """Refuse more failures than a masked sum of so many holders can bear.

    Raises:
        ConfigError: m > 2d + c does not hold; see `secagg.keys.Cohort` for why it must.
    """
    if dropouts < 0 or colluders < 0 or holders <= 2 * dropouts + colluders or holders < 2:
        raise ConfigError(
            f"Expected more than {max(1, 2 * dropouts + colluders)} holders for "
            f"dropouts={dropouts} >= 0 and colluders={colluders} >= 0, got {holders}; "
            "tolerate fewer."
        )
