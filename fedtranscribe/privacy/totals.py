"""What the entries of a book add up to, and the filter that admits the next one."""

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from fedtranscribe.errors import CorruptLedgerError, LedgerError
from fedtranscribe.files import parse_json
from fedtranscribe.privacy import renyi
from fedtranscribe.privacy.chain import START, Entry, EntryKind, Head, canonical, seal
from fedtranscribe.privacy.closed_forms import ORDERS, order_costs
from fedtranscribe.privacy.events import Event, PoissonGaussian, flat
from fedtranscribe.privacy.released_images import ReleasedImages


def renyi_curve(events: Sequence[Event]) -> np.ndarray:
    """Total Rényi divergence at every one of `closed_forms.ORDERS`; finite everywhere.

    What gains from sampling is looked up at the coarser `renyi.ORDERS`; (α − 1) D_α is convex in α
    and 0 at α = 1, so that straight lines between two of them lie above. Everything else, and
    every order that is too high for a gain, is counted in ρ: D_α ≤ ρ α.
    """
    return Spent(events).curve


class Spent:
    """What a filter needs to know of everything that was booked, kept as running sums.

    Adding an event takes the same time however many there are. Sums of μ² and ρ are exact; that of
    curves has the rounding of a double.

    Attributes:
        first: the first event that costs something; None before there is one.
        number: how many such events were booked.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.first: Event | None = None
        self.number = 0
        self._squares = self._rho = Fraction(0)
        self._sampled = np.zeros_like(ORDERS)
        for event in events:
            self.add(event)

    def add(self, event: Event, times: int = 1) -> None:
        """Book an event so many times more, as so many events."""
        if event.gdp_mu > 0:
            self.first = self.first or event
            self.number += times
        self._squares += times * Fraction(event.gdp_mu**2)
        for part in flat(event):
            if isinstance(part, PoissonGaussian | ReleasedImages):
                self._sampled += times * _sampled_curve(part)
            else:
                self._rho += times * Fraction(part.zcdp_rho)

    def copy(self) -> "Spent":
        """One that can go on by itself."""
        twin = copy(self)
        twin._sampled = self._sampled.copy()
        return twin

    @property
    def mu(self) -> float:
        """Total μ of a Gaussian that dominates everything."""
        return math.sqrt(self._squares)

    @property
    def curve(self) -> np.ndarray:
        """Total Rényi divergence at every one of `ORDERS`, as `renyi_curve`."""
        return self._sampled + float(self._rho) * ORDERS

    def renyi_filter(self, delta: float) -> float:
        """ε of everything, each event chosen after earlier answers, at the filter's own δ.

        The first event chooses the order; there has to be one.
        """
        assert self.first is not None
        total = self.curve
        orders, starts = _plan(self.first, delta)
        # In the stretch of limits that is an order's own, it refuses below `needed`.
        needed = total[orders] + order_costs(delta)[orders]
        refused_up_to = np.minimum(needed, np.append(starts[1:], np.inf))
        return max(0.0, float(refused_up_to[needed > starts].max(initial=0.0)))


@lru_cache(maxsize=64)
def _plan(first: Event, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the orders that are best for some limit, and the limit where each takes over.

    At a limit ε order α has room for (ε − cost)/r(α) more of the first event; the best orders
    are the upper envelope of these lines in ε.
    """
    steepness = 1 / renyi_curve([first])
    slopes, heights = steepness.tolist(), (-order_costs(delta) * steepness).tolist()
    # r grows with α, so that from the highest order down the lines get steeper.
    steps: list[int] = []
    starts: list[float] = []
    for index in range(len(ORDERS) - 1, -1, -1):
        start = -math.inf
        while steps:
            rise = slopes[index] - slopes[steps[-1]]
            behind = heights[steps[-1]] - heights[index]
            start = behind / rise if rise > 0 else math.copysign(math.inf, behind)
            if start > starts[-1]:
                break
            steps.pop()
            starts.pop()
            start = -math.inf
        if start < math.inf:
            steps.append(index)
            starts.append(start)
    return np.array(steps), np.array(starts)


@lru_cache(maxsize=256)
def _sampled_curve(event: PoissonGaussian | ReleasedImages) -> np.ndarray:
    coarse = renyi.renyi(event)
    known = np.isfinite(coarse)
    at, gaps = renyi.ORDERS[known], renyi.ORDERS[known] - 1
    lines = np.interp(
        ORDERS, np.append(1.0, at), np.append(0.0, gaps * coarse[known]), right=np.inf
    )
    return np.minimum(lines / (ORDERS - 1), event.zcdp_rho * ORDERS)


EVERY = 128
"""Entries after which the totals are stored again; opening reads about as many."""

VERSION = 1
"""Version of the text that totals are stored as; every checkpoint names it."""

_SHARE = 64
"""Totals with many runs and releases are stored after at least this share of their length, so
that storing them costs each entry a constant amount, however long the book is."""

_T = TypeVar("_T")


@dataclass
class RunTotal:
    """What one run has reserved.

    Attributes:
        first: time of its first reservation.
        queries: reserved.
        rows: reserved.
    """

    first: str
    queries: int
    rows: int


@dataclass
class Totals:
    """What all entries up to `head` add up to.

    Attributes:
        head: the last entry that is counted.
        data_id: of the data that the book belongs to.
        tally: each different release, in order of first reservation, and how often it was reserved.
        runs: in order of their first reservations.
        limits: time and content of every limit that counts, oldest first.
        proved: time of the last checkpoint that followed a proof of the whole book; empty: none.
        checkpoints: all of them, by which an older entry can be proved by itself.
        recent: every entry after the last checkpoint, as it was when it was counted.
    """

    head: Head = START
    data_id: str = ""
    tally: dict[str, int] = field(default_factory=dict)
    runs: dict[str, RunTotal] = field(default_factory=dict)
    limits: list[tuple[str, str]] = field(default_factory=list)
    proved: str = ""
    checkpoints: list[Head] = field(default_factory=list)
    recent: list[Entry] = field(default_factory=list)

    @property
    def checkpoint(self) -> int:
        """Sequence of the last checkpoint; 0: none."""
        return self.checkpoints[-1].sequence if self.checkpoints else 0

    @property
    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        length = len(self.tally) + len(self.runs) + len(self.checkpoints)
        return self.head.sequence - self.checkpoint >= max(EVERY, length // _SHARE)

    def add(self, entry: Entry) -> None:
        """Count the entry after `head`.

        Raises:
            CorruptLedgerError: it is a checkpoint that does not hold these totals, or no entry of
                a book.
        """
        try:
            if entry.kind == EntryKind.CHECKPOINT:
                if entry.content != sealed(self.text(), proved=noted(entry.content)):
                    raise CorruptLedgerError(
                        f"The totals at checkpoint {entry.sequence} are not what the entries "
                        f"before it add up to. Restore the ledger from its last copy."
                    )
                self.pass_checkpoint(entry)
                return
            self._count(entry)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CorruptLedgerError(
                f"Ledger entry {entry.sequence} has a content that no version of this program "
                f"writes. Restore the ledger from its last copy."
            ) from None
        self.recent.append(entry)
        self.head = entry.head

    def pass_checkpoint(self, entry: Entry) -> None:
        """Go on after a checkpoint, which is known to follow `head` and to hold these totals."""
        if noted(entry.content):
            self.proved = entry.time
        self.checkpoints.append(entry.head)
        self.recent.clear()
        self.head = entry.head

    def remembered(self, query_id: str, kind: EntryKind) -> Entry | None:
        """The entry of that kind for a query, if it came after the last checkpoint."""
        mine = (e for e in self.recent if e.query_id == query_id and e.kind == kind)
        return next(mine, None)

    def around(self, sequence: int) -> tuple[Head, Head]:
        """The checkpoint before an entry and the one after it, or ends of the book."""
        at = bisect_left(self.checkpoints, sequence, key=lambda head: head.sequence)
        before = self.checkpoints[at - 1] if at else START
        return before, self.checkpoints[at] if at < len(self.checkpoints) else self.head

    def _count(self, entry: Entry) -> None:
        content = entry.content
        if (entry.kind == EntryKind.CREATED) != (entry.sequence == 1):
            raise ValueError
        if entry.kind == EntryKind.RESERVE:
            rows = _rows(content)
            run = self.runs.setdefault(entry.run, RunTotal(entry.time, 0, 0))
            run.queries, run.rows = run.queries + 1, run.rows + rows
            self.tally[content] = self.tally.get(content, 0) + 1
        elif entry.kind == EntryKind.BUDGET:
            if not self.tally:
                self.limits.clear()  # replaced before anything was booked
            self.limits.append((entry.time, content))
        elif entry.kind == EntryKind.CREATED:
            self.data_id = parse_json(content)["data_id"]

    def text(self) -> str:
        """All but `recent` as JSON, for the next checkpoint: equal totals give equal texts.

        Tables stand in columns, which are read many times faster than rows.
        """
        runs, checkpoints = self.runs.values(), self.checkpoints
        return json.dumps(
            {
                "version": VERSION,
                "head": [self.head.sequence, self.head.hash],
                "data_id": self.data_id,
                "limits": self.limits,
                "proved": self.proved,
                "checkpoints": {
                    "sequence": [head.sequence for head in checkpoints],
                    "hash": [head.hash for head in checkpoints],
                },
                "runs": {
                    "name": list(self.runs),
                    "first": [run.first for run in runs],
                    "queries": [run.queries for run in runs],
                    "rows": [run.rows for run in runs],
                },
                "tally": {"release": list(self.tally), "times": list(self.tally.values())},
            },
            separators=(",", ":"),
        )

    @classmethod
    def read(cls, text: str) -> "Totals":
        """The inverse of `text`.

        Raises:
            CorruptLedgerError: the text is of no totals.
        """
        try:
            # What the program wrote is as long as it has to be; the digest has its length.
            stored: Mapping = parse_json(text, most=len(text))
            if stored["version"] != VERSION:
                raise ValueError
            sequence, digest = stored["head"]
            runs = _table(stored["runs"], name=str, first=str, queries=int, rows=int)
            checkpoints = _table(stored["checkpoints"], sequence=int, hash=str)
            return cls(
                head=Head(_typed(sequence, int), _typed(digest, str)),
                data_id=_typed(stored["data_id"], str),
                tally=dict(_table(stored["tally"], release=str, times=int)),
                runs={name: RunTotal(*rest) for name, *rest in runs},
                limits=[
                    (_typed(time, str), _typed(limit, str)) for time, limit in stored["limits"]
                ],
                proved=_typed(stored["proved"], str),
                checkpoints=[Head(*row) for row in checkpoints],
            )
        except (ValueError, KeyError, TypeError):
            raise CorruptLedgerError(
                "The ledger's stored totals are damaged. Restore the ledger from its last copy."
            ) from None


def sealed(text: str, *, proved: bool) -> str:
    """Content of the checkpoint that stores these totals.

    Args:
        text: of the totals.
        proved: whether all entries before it were just proved.
    """
    return canonical({**seal(text.encode()), "proved": proved, "version": VERSION}).decode()


def noted(content: str) -> bool:
    """Whether a checkpoint of that content followed a proof of all entries before it.

    Raises:
        ValueError, KeyError, TypeError: it is the content of no checkpoint.
        LedgerError: a later version of this program wrote it.
    """
    stored = parse_json(content)
    version = _typed(stored["version"], int)
    if version > VERSION:
        raise LedgerError(
            f"Expected totals of version {VERSION} in the ledger, it has {version}; upgrade."
        )
    return _typed(stored["proved"], bool)


def _typed(value: Any, kind: type[_T]) -> _T:
    if type(value) is not kind:
        raise TypeError
    return value


def _table(columns: Mapping[str, Any], **kinds: type) -> Iterator[tuple[Any, ...]]:
    """The rows of a table that is stored in columns; every number in it counts something."""
    for name, kind in kinds.items():
        column = _typed(columns[name], list)
        if not set(map(type, column)) <= {kind}:
            raise TypeError
        if kind is int and min(column, default=0) < 0:
            raise ValueError
    return zip(*(columns[name] for name in kinds), strict=True)


@lru_cache(maxsize=4096)
def _rows(release: str) -> int:
    rows = parse_json(release)["rows"]
    if type(rows) is not int:
        raise TypeError
    return rows
