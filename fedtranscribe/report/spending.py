"""Where a run's ε went, worked out from what was really released.

Teachers answer rows in rounds: ε grows with the rows, and `lines` follows it. Sums over records are
a few questions of unequal cost: `shares` says what each kind of them took.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

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


_SUMS = {
    "moments": "moments of the records' features, for the student",
    "loss-gradients": "gradients of the student's loss",
    "block-products": "means and covariances of images, for the generator",
    "squares": "texture of images, for the generator",
}


@dataclass(frozen=True)
class Share:
    """What questions of one kind took of a run's budget.

    Attributes:
        kind: in words.
        answers: how many.
        share: of the whole, in zero-concentrated DP, which adds up exactly; between 0 and 1.
        epsilon: sound, had nothing else been answered.
    """

    kind: str
    answers: int
    share: float
    epsilon: float


def asked_sums(given: Given) -> bool:
    """Whether holders answered sums over their records: questions of one answer each."""
    return any(release.rows == 1 for releases in given.values() for release in releases)


def shares(given: Given, unit: Unit, adjacency: Adjacency, delta: float) -> list[Share]:
    """What each kind of question took, in the order asked, at the holder that gave most away.

    Args:
        given: what each holder gave away.
        unit: of the headline.
        adjacency: of the headline.
        delta: at which ε is quoted.

    Returns:
        Nothing where an answer has no guarantee, or all are of one kind.
    """
    costs: dict[str, float] = {}
    for holder, releases in given.items():
        events = [release.costs.get(unit, {}).get(adjacency) for release in releases]
        if any(event is None for event in events):
            return []
        costs[holder] = sum(event.zcdp_rho for event in events if event is not None)
    if not costs:
        return []
    holder = max(costs, key=costs.__getitem__)
    found = []
    for kind, group in groupby(given[holder], key=lambda release: _kind(release.mechanism)):
        some = tuple(group)
        cost = sum(release.event(unit, adjacency).zcdp_rho for release in some)
        epsilon = epsilon_of(some, unit, adjacency, delta)
        if epsilon is None or costs[holder] == 0:
            return []
        answers = sum(release.rows for release in some)
        found.append(Share(kind, answers, cost / costs[holder], epsilon))
    return found if len(found) > 1 else []


def _kind(mechanism: str) -> str:
    """In words; names begin with the place of the noise."""
    _, _, name = mechanism.partition("-")
    return _SUMS.get(name, mechanism)


def lines(given: Given, adjacency: Adjacency, delta: float, marks: Sequence[int]) -> list[Line]:
    """Every holder's ε per unit, while rows were answered.

    Args:
        given: what each holder gave away.
        adjacency: of the headline.
        delta: at which ε is quoted.
        marks: rows at which rounds ended, for a holder whose events are given as one sum.
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
