"""What a run claims: its sound ε, worked out again from the events that it wrote down."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedtranscribe.errors import ConfigError, StorageError, UnsupportedAdjacencyError
from fedtranscribe.evaluation.audit.findings import Claim
from fedtranscribe.privacy.accountant import guarantee
from fedtranscribe.privacy.events import Event
from fedtranscribe.privacy.release_plan import PrivacyPlan, Release
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.reading import read_json_lines
from fedtranscribe.result import Result

EVENTS = "events.jsonl"
THE_HOLDER = "the holder"

Given = dict[str, tuple[Release, ...]]
"""What each holder gave away."""

# A record that is used or left out comes and goes; where that has no guarantee, replacing it has.
IN_OR_OUT = (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE)
# One of the run's own records might as well have been another one.
EXCHANGED = (Adjacency.REPLACE,)


def read_events(folder: Path) -> Given:
    """Everything that a run's holders gave away, by holder; empty where it says nothing.

    Raises:
        StorageError: the file is damaged.
    """
    path = folder / EVENTS
    if not path.exists():
        return {}
    given: dict[str, tuple[Release, ...]] = {}
    try:
        for entry in read_json_lines(path):
            # A line of a federated run names its holder; one of a local run is the release itself.
            holder, release = entry.get("holder", THE_HOLDER), entry.get("release", entry)
            given[holder] = (*given.get(holder, ()), Release.from_json(release))
    except (OSError, ValueError, TypeError, AttributeError, ConfigError):
        raise StorageError(f"{path} is damaged; it says what the run gave away.") from None
    return given


def epsilon_of(
    releases: Iterable[Release], unit: Unit, adjacency: Adjacency, delta: float
) -> float | None:
    """ε of one holder's releases; None where nothing follows from them."""
    try:
        return guarantee(PrivacyPlan(tuple(releases), unit, adjacency, delta)).epsilon
    except UnsupportedAdjacencyError:
        return None


def worst(given: Given, unit: Unit, adjacency: Adjacency, delta: float) -> float | None:
    """ε of the holder that gave most away; None without events, or where one has no guarantee."""
    found = [epsilon_of(releases, unit, adjacency, delta) for releases in given.values()]
    known = [epsilon for epsilon in found if epsilon is not None]
    return max(known) if known and len(known) == len(found) else None


def claim_of(result: Result, given: Given, adjacencies: Sequence[Adjacency] = IN_OR_OUT) -> Claim:
    """What an attack on single records is held against.

    Args:
        result: of the run.
        given: what `events.jsonl` holds.
        adjacencies: the change that the attack is about, or the next best; the first with a
            guarantee counts. Where ids are positional, a record that comes or goes has none.

    Returns:
        The claim; without ε for runs with seeded noise, or where no adjacency has a guarantee.
    """
    delta = result.guarantee.delta
    if not result.guarantee.private:
        return Claim(None, delta)
    for adjacency in adjacencies:
        epsilon = worst(given, Unit.RECORD, adjacency, delta)
        if epsilon is not None:
            return Claim(epsilon, delta, Unit.RECORD, adjacency)
    return Claim(None, delta)


def event_lists(given: Given, adjacency: Adjacency) -> tuple[tuple[Event, ...], ...]:
    """Every distinct list of record-level events that a holder gave away; empty if one has none."""
    try:
        lists = [
            tuple(release.event(Unit.RECORD, adjacency) for release in releases)
            for releases in given.values()
        ]
    except UnsupportedAdjacencyError:
        return ()
    return tuple(dict.fromkeys(lists))


def most_exposed(given: Given, adjacency: Adjacency, delta: float) -> str | None:
    """The holder whose records a run costs the most; None without any events."""

    costs: dict[Any, float] = {}

    def cost(releases: tuple[Release, ...]) -> float:
        # Most holders of a run gave away the same.
        events = tuple(release.costs.get(Unit.RECORD, {}).get(adjacency) for release in releases)
        if events not in costs:
            epsilon = epsilon_of(releases, Unit.RECORD, adjacency, delta)
            costs[events] = math.inf if epsilon is None else epsilon
        return costs[events]

    return max(given, key=lambda holder: cost(given[holder]), default=None)
