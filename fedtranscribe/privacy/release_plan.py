"""What a run releases: each mechanism's events, by unit and adjacency; what the ledger books."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from fedtranscribe.errors import ConfigError, UnsupportedAdjacencyError
from fedtranscribe.privacy.checks import expect
from fedtranscribe.privacy.events import MOST_COUNT, Event, Together, event_from_json
from fedtranscribe.privacy.units import Adjacency, Unit


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


def together(mechanism: str, releases: Sequence[Release]) -> Release:
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
    return Release(mechanism, 1, shared)


@dataclass(frozen=True)
class PrivacyPlan:
    """Everything that a run will release, fixed before its first answer."""

    releases: tuple[Release, ...]
    unit: Unit
    adjacency: Adjacency
    delta: float


def _rescaled(event: Event, rows: int, wanted: int) -> Event:
    per_row, rest = divmod(event.count, rows)
    expect(rest == 0, f"count={event.count} to be a multiple of rows={rows}")
    return replace(event, count=per_row * wanted)
