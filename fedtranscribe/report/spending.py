"""ε over answered rows, by holder and unit, worked out from what was really released."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedtranscribe.errors import ConfigError
from fedtranscribe.evaluation.audit.claims import THE_HOLDER, Given, epsilon_of
from fedtranscribe.privacy.release_plan import Release
from fedtranscribe.privacy.units import Adjacency, Unit

# A label's ε takes a second to find.
_MOST_POINTS = 10


@dataclass(frozen=True)
class Line:
    """What some holders had given away after so many rows.

    Attributes:
        holders: that this line stands for; those that gave the same are one.
        unit: whose presence ε hides.
        rows: answered so far.
        epsilon: sound, at each.
    """

    holders: tuple[str, ...]
    unit: Unit
    rows: tuple[int, ...]
    epsilon: tuple[float, ...]

    @property
    def label(self) -> str:
        """For a legend."""
        if self.holders == (THE_HOLDER,):
            return f"per {self.unit.value}"
        n = len(self.holders)
        whose = self.holders[0] if n == 1 else f"each of {n} holders"
        return f"{whose}, per {self.unit.value}"


def lines(given: Given, adjacency: Adjacency, delta: float, marks: Sequence[int]) -> list[Line]:
    """Every holder's ε per unit, while rows were answered.

    Args:
        given: what each holder gave away.
        adjacency: of the headline.
        delta: at which ε is quoted.
        marks: rows at which rounds ended, for a holder whose events are told in one sum.
    """
    alike: list[tuple[tuple[Release, ...], list[str]]] = []
    for holder, releases in given.items():
        same = next((names for other, names in alike if other == releases), None)
        if same is None:
            alike.append((releases, [holder]))
        else:
            same.append(holder)
    found = []
    for releases, names in alike:
        so_far = _so_far(releases, marks)
        for unit in Unit:
            epsilons = [epsilon_of(some, unit, adjacency, delta) for _, some in so_far]
            known = [e for e in epsilons if e is not None]
            if known and len(known) == len(epsilons):
                rows = tuple(n for n, _ in so_far)
                found.append(Line(tuple(names), unit, rows, tuple(known)))
    return found


def _so_far(
    releases: tuple[Release, ...], marks: Sequence[int]
) -> list[tuple[int, tuple[Release, ...]]]:
    """Rows, and what they had cost: after each release, or at the marks within a single one."""
    if len(releases) == 1:
        whole = releases[0]
        ends = [mark for mark in marks if 0 < mark < whole.rows]
        try:
            parts = [(n, (whole.with_rows(n),)) for n in _thinned(ends)]
        except ConfigError:
            # Its events count something else than rows, such as steps of DP-SGD.
            parts = []
        return [*parts, (whole.rows, releases)]
    places = _thinned(range(1, len(releases)))
    cuts = [releases[:place] for place in [*places, len(releases)]]
    return [(sum(release.rows for release in cut), cut) for cut in cuts]


def _thinned(places: Sequence[int]) -> list[int]:
    step = max(1, -(-len(places) // _MOST_POINTS))
    return list(places[step - 1 :: step]) if step > 1 else list(places)
