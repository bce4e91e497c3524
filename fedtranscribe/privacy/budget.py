"""What a holder allows over the life of its data, what is reserved of it, and of whom."""

import json
import math
from dataclasses import dataclass, replace
from decimal import ROUND_DOWN, Context, Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from fedtranscribe.config import OwnData
from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.files import parse_json, read_json, write_atomically
from fedtranscribe.privacy.accountant import spent_epsilon
from fedtranscribe.privacy.chain import canonical
from fedtranscribe.privacy.closed_forms import gaussian_epsilon, gaussian_mu
from fedtranscribe.privacy.events import Gaussian
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.totals import Spent, Totals
from fedtranscribe.privacy.units import Adjacency, Unit

DEFAULT_LIMIT = 20.0
"""ε of a new ledger's limit where nobody names one."""

_ROUNDING = 1e-9
"""Relative slack where a total meets its limit: float rounding of a sum, nothing else."""


@dataclass(frozen=True)
class Budget:
    """The holder's limit over all runs, teachers and methods on one data set.

    Attributes:
        epsilon: at most this much in total. A ledger accepts a finite limit only; `math.inf` is
            what ledgers of early versions may hold, and bounds nothing.
        delta: the δ at which ε is quoted.
        unit: whom it protects.
        adjacency: the neighbouring relation in which ε is quoted; totals never mix two.
    """

    epsilon: float
    delta: float
    unit: Unit
    adjacency: Adjacency

    def __post_init__(self) -> None:
        """Refuse a limit that limits nothing by accident, such as NaN."""
        if not self.epsilon > 0:
            raise ConfigError(f"Expected epsilon={self.epsilon} > 0.")
        if not 0 < self.delta < 1:
            raise ConfigError(f"Expected 0 < delta={self.delta} < 1.")

    @property
    def fixed(self) -> bool:
        """Whether it limits anything."""
        return math.isfinite(self.epsilon)

    def alike(self, other: "Budget") -> bool:
        """Whether both have the same δ, unit and adjacency; only then can they be compared."""
        return replace(self, epsilon=other.epsilon) == other

    def allows(self, epsilon: float) -> bool:
        """Whether a total ε stays within the limit; one that is not a number does not."""
        return epsilon <= self.epsilon * (1 + _ROUNDING)

    def to_json(self) -> dict[str, Any]:
        """JSON-able; an infinite ε becomes null."""
        return {
            "epsilon": None if math.isinf(self.epsilon) else float(self.epsilon),
            "delta": float(self.delta),
            "unit": self.unit.value,
            "adjacency": self.adjacency.value,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""
        epsilon = value["epsilon"]
        return cls(
            epsilon=math.inf if epsilon is None else float(epsilon),
            delta=float(value["delta"]),
            unit=Unit(value["unit"]),
            adjacency=Adjacency(value["adjacency"]),
        )


def room_words(epsilon: float, delta: float) -> str:
    """What still fits under a limit, in words.

    Args:
        epsilon: from `Ledger.room`.
        delta: at which it is quoted.
    """
    rounded = two_digits_below(epsilon)
    if rounded == 0:
        return "Nothing fits any more"
    return (
        "A run with Gaussian noise (sums over records, votes) still fits with epsilon up to "
        f"{rounded:g} at delta={delta:g}"
    )


def two_digits_below(value: float) -> float:
    """A figure >= 0 rounded down to two significant digits: what fitted still fits."""
    if value == 0 or not math.isfinite(value):
        return value
    slack = Decimal(value * (1 + _ROUNDING))  # 11.999999999 is 12
    return float(slack.normalize(Context(prec=2, rounding=ROUND_DOWN)))


_HALVINGS = 24  # far finer than the two digits that are shown


def content_of(release: MechanismRelease) -> str:
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
def release_of(content: str) -> MechanismRelease:
    """The release of a reservation.

    Raises:
        ValueError: it is none, or too long.
    """
    return MechanismRelease.from_json(parse_json(content))


class Costs:
    """What all reservations of one ledger cost together, counted on from one call to the next.

    Every method may raise UnsupportedAdjacencyError: a reservation has no cost in this unit and
    adjacency.
    """

    def __init__(self) -> None:
        self._counted: Totals | None = None
        self._sums: dict[tuple[Unit, Adjacency], tuple[Spent, dict[str, int]]] = {}

    def epsilon(
        self,
        totals: Totals,
        delta: float,
        unit: Unit,
        adjacency: Adjacency,
        *extra: MechanismRelease,
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


POSITION, OWN, PATHS, LISTED = "position", "own", "paths", "ids"
UNSTATED = "unstated"
"""Of teachers of an earlier version, which kept only what was stated: ids of the data, or paths."""

TRAIN_IDS = "key train_ids"
"""Of an archive in MedMNIST's layout: earlier versions noted its row numbers as `OWN` instead."""

_WORDS = {
    POSITION: "no ids: each image counts as a record",
    OWN: "ids that the data have",
    PATHS: "each image's path as its id",
    LISTED: "ids from the file that ids names",
    TRAIN_IDS: "ids under the key 'train_ids'",
    UNSTATED: "ids that the data have, or each image's path as its id",
}
_ALIKE = {UNSTATED: {OWN, PATHS}, OWN: {UNSTATED}, PATHS: {UNSTATED}}


def stated(own: OwnData) -> str | None:
    """How ids are made where the holder states it; None where the data decide."""
    if own.id_field is not None:
        return f"dicom-field {own.id_field}"
    if own.ids is not None:
        return LISTED
    if own.id_pattern is not None:
        return f"id_pattern {own.id_pattern}"
    return None if own.id_column is None else f"id_column {own.id_column}"


def alike(ids: str, others: str) -> bool:
    """Whether two ways to make ids are one, as far as is known."""
    return ids == others or others in _ALIKE.get(ids, ())


def words(ids: str) -> str:
    """A way to make ids, for the holder's screen."""
    name, _, value = ids.partition(" ")
    return _WORDS.get(ids, f"ids by {name} = {value!r}")


def note_path(ledger: Path) -> Path:
    """Where the note of a ledger lies."""
    return ledger.with_name(f"{ledger.name}.record")


def expect_noted(ledger: Path, ids: str) -> None:
    """Refuse ids that are made otherwise than the note says; without a note there is none.

    Args:
        ledger: the SQLite file.
        ids: how they are made, such as `ImageSet.ids_by`.

    Raises:
        ConfigError: they are; names both ways and the fix.
        StorageError: the note cannot be read.
    """
    noted = _read(note_path(ledger))
    if noted is None or any(alike(one, ids) for one in noted):
        return
    note = note_path(ledger)
    by_row = OWN in noted and ids in (POSITION, TRAIN_IDS)
    rows = " (in MedMNIST's layout, earlier versions noted row numbers so)" if by_row else ""
    raise ConfigError(
        f"Expected records as for the ledger {ledger} before, with {words(noted[0])}{rows}; "
        f"now they come with {words(ids)}, and what was booked hides the former. State ids as "
        "before, and take teachers that learned with them. If ids are the same, or every record of "
        f"now lies within one of before, add {json.dumps(ids)} to the list in {note}; from then on "
        "ε and limit of the ledger hold for the smaller records only. If nothing was booked, and "
        "no run is under way, remove that file."
    )


def settle(ledger: Path, ids: str) -> None:
    """As `expect_noted`, and write the note, if there is none or it says less.

    Two processes must not settle at once: `Ledger.note_ids` sees to that.

    Raises:
        ConfigError, StorageError: as `expect_noted`; or the note cannot be written.
    """
    expect_noted(ledger, ids)
    if _read(note_path(ledger)) in (None, [UNSTATED]):
        write_atomically(note_path(ledger), json.dumps([ids]).encode())


def _read(path: Path) -> list[str] | None:
    try:
        noted = read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        noted = None
    if not isinstance(noted, list) or not noted or not all(isinstance(one, str) for one in noted):
        raise StorageError(
            f"Cannot read {path}, which says how ids are made; restore it from a copy."
        )
    return noted
