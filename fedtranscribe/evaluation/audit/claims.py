"""What a run claims: its sound ε, worked out again from the events that it wrote down."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedtranscribe.errors import ConfigError, StorageError, UnsupportedAdjacencyError
from fedtranscribe.evaluation.audit.findings import Claim
from fedtranscribe.privacy.accountant import guarantee
from fedtranscribe.privacy.events import Event
from fedtranscribe.privacy.release_plan import PrivacyPlan, Release
from fedtranscribe.privacy.units import Adjacency, Unit

EVENTS = "events.jsonl"
THE_HOLDER = "the holder"

Given = dict[str, tuple[Release, ...]]
"""What each holder gave away."""

# A record that is used or left out comes and goes; where that has no guarantee, replacing it has.
_IN_OR_OUT = (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE)


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
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            # A line of a federated run names its holder; one of a local run is the release itself.
            holder, release = entry.get("holder", THE_HOLDER), entry.get("release", entry)
            given[holder] = (*given.get(holder, ()), Release.from_json(release))
    except (OSError, ValueError, TypeError, AttributeError, ConfigError):
        raise StorageError(f"{path} is damaged; what the run gave away cannot be told.") from None
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


def claim_of(result: Mapping[str, Any], given: Given) -> Claim:
    """What attacks on single records are held against.

    A record in or out is add-remove; where ids are positional that has no guarantee, and the
    headline adjacency is taken instead. Runs with seeded noise or without any claim nothing.
    """
    delta = float(result.get("delta") or 1e-5)
    if not result.get("private"):
        return Claim(None, delta)
    for adjacency in _IN_OR_OUT:
        epsilon = worst(given, Unit.RECORD, adjacency, delta)
        if epsilon is not None:
            return Claim(epsilon, delta, Unit.RECORD, adjacency)
    return Claim(None, delta)


def events_of(given: Given, adjacency: Adjacency) -> tuple[Event, ...]:
    """Record-level events of the first holder that has them all; empty if none has."""
    for releases in given.values():
        try:
            return tuple(release.event(Unit.RECORD, adjacency) for release in releases)
        except UnsupportedAdjacencyError:
            continue
    return ()
