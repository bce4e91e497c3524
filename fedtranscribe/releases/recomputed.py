"""Every figure of a statement, worked out again from the events that it lists."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeVar

from fedtranscribe.errors import UnsupportedAdjacencyError
from fedtranscribe.privacy.accountant import grid_work, guarantee
from fedtranscribe.privacy.events import Event
from fedtranscribe.privacy.release_plan import MechanismRelease, PrivacyPlan
from fedtranscribe.privacy.units import Adjacency, Guarantee, Unit
from fedtranscribe.releases.statement import HolderRelease, PrivacyStatement

HolderEvents = dict[str, tuple[MechanismRelease, ...]]


TOLERANCE = 1e-6
"""Relative difference of two figures that counts as none."""


MOST_ON_GRID = 20
"""Events that are composed on a grid to confirm one statement. A private training has up to two, in
up to three adjacencies; holders that answered the same number of labels count once."""


def by_holder(events: Iterable[HolderRelease]) -> HolderEvents:
    """What each holder gave away."""
    holders: defaultdict[str, list[MechanismRelease]] = defaultdict(list)
    for event in events:
        holders[event.holder].append(event.release.release())
    return {holder: tuple(releases) for holder, releases in holders.items()}


def recompute(
    holder_events: HolderEvents, unit: Unit, adjacency: Adjacency, delta: float
) -> Guarantee | None:
    """The guarantee of all holders together; None where there is none."""
    try:
        stated = [
            guarantee(PrivacyPlan(releases, unit, adjacency, delta))
            for releases in holder_events.values()
        ]
    except UnsupportedAdjacencyError:
        return None
    return max(stated, key=lambda g: g.epsilon, default=None)


def by_adjacency(holder_events: HolderEvents, unit: Unit, delta: float) -> dict[Adjacency, float]:
    """ε of a unit under every adjacency that has one."""
    found = {adjacency: recompute(holder_events, unit, adjacency, delta) for adjacency in Adjacency}
    return {adjacency: g.epsilon for adjacency, g in found.items() if g is not None}


def by_unit(holder_events: HolderEvents, adjacency: Adjacency, delta: float) -> dict[Unit, float]:
    """ε under an adjacency for every unit that has one."""
    found = {unit: recompute(holder_events, unit, adjacency, delta) for unit in Unit}
    return {unit: g.epsilon for unit, g in found.items() if g is not None}


def agree(stated: float | None, found: float | None) -> bool:
    """Whether two figures are the same, but for rounding."""
    if stated is None or found is None:
        return stated is found
    return math.isclose(stated, found, rel_tol=TOLERANCE, abs_tol=1e-12)


def first_disagreement(statement: PrivacyStatement) -> str | None:
    """The first figure that does not follow from the events, in words; None if all do.

    Milliseconds for answers with Gaussian noise. Labels, DP-SGD and released images are composed
    on a grid: some tenths of a second for each unit and adjacency that they have a cost in, and
    some seconds where the events were chosen to be expensive. So of these only as many are
    composed as `MOST_ON_GRID`; a release with more is not confirmed.
    """
    holder_events = by_holder(statement.events)
    on_grid = _on_grid(holder_events, statement)
    if on_grid > MOST_ON_GRID:
        return (
            f"its events need {on_grid} compositions of labels, sampled steps or released images, "
            f"more than the {MOST_ON_GRID} that are computed here: its figures are not confirmed"
        )
    found = recompute(holder_events, statement.unit, statement.adjacency, statement.delta)
    epsilon, accountant = (found.epsilon, found.accountant) if found else (None, None)
    if not agree(statement.epsilon, epsilon):
        return f"it states ε = {statement.epsilon}, but its events cost {epsilon}"
    if statement.accountant != accountant:
        return (
            f"it names the accountant {statement.accountant!r}, but {accountant!r} found the figure"
        )
    if not agree(statement.sound.get(statement.adjacency), epsilon):
        return f"its table states another ε under {statement.adjacency.value} than its headline"
    asked = sum(release.rows for releases in holder_events.values() for release in releases)
    if statement.rows > asked:
        return f"it was learned from {statement.rows} rows, its events have {asked}"
    return _first_difference(
        "sound", statement.sound, by_adjacency(holder_events, statement.unit, statement.delta)
    ) or _first_difference(
        "units", statement.units, by_unit(holder_events, statement.adjacency, statement.delta)
    )


def _on_grid(holder_events: HolderEvents, statement: PrivacyStatement) -> int:
    """How many events are composed on a grid for all figures of a statement, over all holders."""
    work: set[tuple[tuple[Event, ...], int]] = set()
    figures = {
        *((statement.unit, adjacency) for adjacency in Adjacency),
        *((unit, statement.adjacency) for unit in Unit),
    }
    for releases in holder_events.values():
        for unit, adjacency in figures:
            try:
                work |= grid_work([release.event(unit, adjacency) for release in releases])
            except UnsupportedAdjacencyError:
                continue
    return sum(parts for _, parts in work)


K = TypeVar("K", Adjacency, Unit)


def _first_difference(name: str, stated: Mapping[K, float], found: Mapping[K, float]) -> str | None:
    for key in sorted({*stated, *found}):
        printed, counted = stated.get(key), found.get(key)
        if not agree(printed, counted):
            return f"{name}.{key} states ε = {printed}, its events cost {counted}"
    return None
