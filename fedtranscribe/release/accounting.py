"""From the events of a release to every ε that it may state, by the rules its run was counted by.

A local run is the case of one holder. Within a holder its releases are one plan, fixed before the
first answer; over holders the worst figure counts, and where one holder has none there is none.
"""

from collections import defaultdict
from collections.abc import Iterable

from fedtranscribe.errors import UnsupportedAdjacencyError
from fedtranscribe.privacy.accountant import guarantee
from fedtranscribe.privacy.release_plan import PrivacyPlan, Release
from fedtranscribe.privacy.units import Adjacency, Guarantee, Unit
from fedtranscribe.release.statement import HolderRelease

Given = dict[str, tuple[Release, ...]]


def by_holder(events: Iterable[HolderRelease]) -> Given:
    """What each holder gave away.

    Raises:
        ConfigError: an event is none, or its numbers are out of range.
    """
    given: defaultdict[str, list[Release]] = defaultdict(list)
    for event in events:
        given[event.holder].append(Release.from_json(event.release.model_dump(mode="json")))
    return {holder: tuple(releases) for holder, releases in given.items()}


def recompute(given: Given, unit: Unit, adjacency: Adjacency, delta: float) -> Guarantee | None:
    """The guarantee of all holders together; None where there is none.

    Raises:
        ConfigError: delta is not inside (0, 1).
    """
    try:
        stated = [
            guarantee(PrivacyPlan(releases, unit, adjacency, delta)) for releases in given.values()
        ]
    except UnsupportedAdjacencyError:
        return None
    return max(stated, key=lambda g: g.epsilon, default=None)


def by_adjacency(given: Given, unit: Unit, delta: float) -> dict[Adjacency, float]:
    """ε of a unit under every adjacency that has one."""
    found = {adjacency: recompute(given, unit, adjacency, delta) for adjacency in Adjacency}
    return {adjacency: g.epsilon for adjacency, g in found.items() if g is not None}


def by_unit(given: Given, adjacency: Adjacency, delta: float) -> dict[Unit, float]:
    """ε under an adjacency for every unit that has one."""
    found = {unit: recompute(given, unit, adjacency, delta) for unit in Unit}
    return {unit: g.epsilon for unit, g in found.items() if g is not None}
