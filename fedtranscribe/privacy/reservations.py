"""What a ledger's reservations say, and what they cost together.

A reservation is an entry whose content is a release, as canonical JSON; equal releases have equal
contents, and `Totals.tally` counts them by it.
"""

from functools import lru_cache

from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.accountant import spent_epsilon
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.chain import canonical
from fedtranscribe.privacy.closed_forms import gaussian_epsilon, gaussian_mu
from fedtranscribe.privacy.events import Gaussian
from fedtranscribe.privacy.filters import Spent
from fedtranscribe.privacy.release_plan import Release
from fedtranscribe.privacy.totals import Totals
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.reading import parse_json

_HALVINGS = 24  # far finer than the two digits that are shown


def content_of(release: Release) -> str:
    """The content of a reservation, if it can be read again; else nothing may be booked.

    Raises:
        ConfigError: it cannot.
    """
    content = canonical(release.to_json()).decode()
    try:
        release_of(content)
    except ValueError as error:
        raise ConfigError(
            f"Expected a release that the ledger can read again, got one of {len(content):,} "
            f"bytes: {error}. Nothing was booked; ask for less at once."
        ) from error
    return content


@lru_cache(maxsize=4096)
def release_of(content: str) -> Release:
    """The release of a reservation.

    Raises:
        ValueError: it is none, or too long.
    """
    return Release.from_json(parse_json(content))


class Costs:
    """What all reservations of one ledger cost together, counted on from one call to the next.

    Every method may raise UnsupportedAdjacencyError: a reservation has no cost in this unit and
    adjacency.
    """

    def __init__(self) -> None:
        self._counted: Totals | None = None
        self._sums: dict[tuple[Unit, Adjacency], tuple[Spent, dict[str, int]]] = {}

    def epsilon(
        self, totals: Totals, delta: float, unit: Unit, adjacency: Adjacency, *extra: Release
    ) -> float:
        """ε at δ of what is booked and of `extra` releases."""
        spent = self._spent(totals, unit, adjacency)
        if extra:
            spent = spent.copy()
            for release in extra:
                spent.add(release.event(unit, adjacency))
        return spent_epsilon(spent, delta)

    def room(self, totals: Totals, budget: Budget, delta: float) -> float:
        """The largest ε, at this δ, with which a plan of Gaussian noise still fits; 0 if none."""
        # One Gaussian alone costs the whole limit at the upper end; a total never costs less.
        lower, upper = 0.0, gaussian_mu(budget.epsilon, budget.delta)
        booked = self._spent(totals, budget.unit, budget.adjacency)
        for _ in range(_HALVINGS):
            mu = (lower + upper) / 2
            more = booked.copy()
            more.add(Gaussian(mu))
            total = spent_epsilon(more, budget.delta)
            lower, upper = (mu, upper) if budget.allows(total) else (lower, mu)
        return gaussian_epsilon(lower, delta)

    def _spent(self, totals: Totals, unit: Unit, adjacency: Adjacency) -> Spent:
        """All reservations in the order of first booking; what was counted before is kept."""
        if totals is not self._counted:  # they were counted anew, after an entry was not kept
            self._counted, self._sums = totals, {}
        # Taken out meanwhile, so that nothing half added is left behind by an interrupt.
        spent, counted = self._sums.pop((unit, adjacency), None) or (Spent(), {})
        for content, n in totals.tally.items():
            more = n - counted.get(content, 0)
            if more:
                spent.add(release_of(content).event(unit, adjacency), more)
                counted[content] = n
        self._sums[unit, adjacency] = spent, counted
        return spent
