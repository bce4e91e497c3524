"""The holder's durable budget book: charged before anything private is computed.

Order for every query: `reserve` (durable) → compute → `commit` the private answer (durable) →
release it. A reservation counts as spent whether or not an answer followed. A query id is bound
for ever to what was asked: asked again, it gives the stored answer; noise is never redrawn. A
reservation without a stored answer may be computed again, because nothing of the first attempt
was released.

The ledger belongs to the data, not to a run or a teacher: it lies with the data, under their id.

Guarantee
    For the budget (ε, δ, unit, adjacency) in force, all answers ever committed are (ε, δ)-DP
    together, however each query was chosen from earlier answers: `accountant.spent_epsilon` of
    all reservations, the new one included, is compared with ε inside the transaction that books
    it, under the write lock of the file, so that concurrent processes cannot overspend together.
    This holds for releases whose stated cost is right, on a file that nobody rewrites. The
    theorem knows one limit, fixed before the answers: where the limit was changed, it speaks of
    the highest one (`Ledger.highest`), and only if the change was not made because of what the
    answers showed. So a limit is always finite, and its δ, unit and adjacency stay as they were
    when the first query was booked. The running total (`Ledger.total`) is what has been booked; it
    is the ε of a single plan that was fixed beforehand, and of nothing that was stopped by choice.

What is noticed, and what is not
    A query rests on what the entries add up to, and the totals rest on a checkpoint: see
    `totals`. So it makes a difference when a file is proved.

    By opening: an entry edited, removed, moved or put in since the last checkpoint; an entry
    numbered below 1; stored totals that are edited, exchanged, or of another ledger; a checkpoint
    since then that claims other totals than its entries have; removed triggers and tables; a
    changed answer since the last checkpoint. Also a dropped tail, an older backup put back, or a
    lost database beside a head file: by the head file, which lies outside the database. A missing
    head file beside a ledger that has reservations is refused, because it may hide any of these.

    On a ledger that stays open: what others add, and the head file, by every query. An entry that
    was counted earlier is compared with what is remembered when a query uses it; one that no query
    uses is noticed by the next opening.

    When it is used: an older reservation or answer that a repeated query asks for, by the chain
    between the checkpoints before and after it. If an older reservation has no answer, the whole
    book is proved before it is computed again, because its answer may have been taken out; that
    takes as long as the book is. An older reservation that the index no longer leads to is charged
    again. What is listed (`entries`, `releases`) is proved from the first entry on.

    By `verify` alone: an older entry edited or removed that nothing reads, damaged pages, an
    answer that nobody committed. The totals do not come from those entries, so that their edit
    changes neither what is booked nor the limit. Rewritten in full with all hashes up to the head
    file's entry, they would not fit the head file. `prove` does what `verify` does once a day; runs
    begin with it, and so does the holder's service. A note of a proof counts up to the head file's
    entry; behind it, the whole book is proved. A ledger with fewer than `totals.EVERY` entries has
    no checkpoint, and opening is `verify`; so it is if the totals were deleted, after a crash
    between a checkpoint and the head file, and with a ledger of format 1.

    By nobody but the holder of a head that went out with an answer (`confirm`, which includes
    `verify`): database and head file rewritten together from some entry up to that head on, or
    both deleted. What came after the head that was sent may be cut off or written anew.

    By nobody: entries appended behind the head file's with hashes that fit, such as a higher limit.
    A crash leaves such entries, too, and nothing in the file is secret. `limits` lists every limit.
"""

import math
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Self

from fedtranscribe.errors import BudgetExhaustedError, ConfigError, LedgerError, QueryConflictError
from fedtranscribe.files import parse_json
from fedtranscribe.privacy.book import Book
from fedtranscribe.privacy.budget import Budget, Costs, content_of, release_of, room_words, settle
from fedtranscribe.privacy.chain import Entry, EntryKind, Head, canonical
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, Guarantee, Unit, expect_delta, expect_epsilon
from fedtranscribe.text import expect_name

__all__ = ["ACCOUNTANT", "Budget", "Head", "Ledger", "Reservation", "RunSummary", "Usage"]

PROVED_WITHIN = timedelta(days=1)
"""A run begins with a proof of the whole ledger if the last one is older than this."""

ACCOUNTANT = "privacy filter"
"""The accountant that `total` names: sound for queries chosen after seeing answers."""


@dataclass(frozen=True)
class Reservation:
    """A query that is paid for."""

    query_id: str
    answer: bytes | None  # stored, to be given again as it is; None: to be computed (again)


@dataclass(frozen=True)
class RunSummary:
    """What one run has reserved."""

    run: str
    first: str  # UTC time of its first reservation, ISO 8601
    rows: int
    queries: int


@dataclass(frozen=True)
class Usage:
    """How much a ledger holds: runs that reserved anything, queries that one of them reserved."""

    runs: int
    queries: int


class Ledger:
    """The budget book of one data set; see the module for what it promises.

    Several processes may hold the same ledger; a thread or a forked child opens its own.
    Every method may raise StorageError (full disk, lock held too long) and CorruptLedgerError.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._costs = Costs()

    @classmethod
    def open(
        cls, path: Path, data_id: str, budget: Budget | None = None, create: bool = True
    ) -> Self:
        """Open the ledger of the data `data_id` for writing and prove it from its last checkpoint.

        A ledger of format 1 is proved as a whole and converted; earlier versions of the program
        refuse it then.

        Args:
            path: the SQLite file; its folder is made if need be.
            data_id: id of the data that the ledger belongs to.
            budget: the limit from now on; an entry is added if it differs from the one in
                force. None leaves it as it is, and a new ledger without one answers nothing.
            create: start a new ledger if there is none.

        Raises:
            ForeignLedgerError: it belongs to other data.
            CorruptLedgerError: it is damaged, edited, cut or rolled back.
            StorageError: it is absent and `create` is false, or the folder cannot be used.
            ConfigError, UnsupportedAdjacencyError: as `set_budget`.
        """
        expect_name("data_id", data_id)
        ledger = cls(Book.open(path, data_id, create))
        try:
            if budget is not None:
                ledger.set_budget(budget)
        except BaseException:
            ledger.close()
            raise
        return ledger

    @classmethod
    def open_read_only(cls, path: Path, data_id: str | None = None) -> Self:
        """The same without ever writing or creating a file; None accepts any data.

        Methods that book raise StorageError; so does a ledger that is absent, or that cannot be
        read without writing. Other errors are those of `open`.
        """
        return cls(Book.open_read_only(path, data_id))

    def close(self) -> None:
        """Let go of the file; the ledger cannot be used afterwards."""
        self._book.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Booking

    def reserve(
        self, query_id: str, query_hash: str, release: MechanismRelease, run: str
    ) -> Reservation:
        """Charge a query, durably, before anything private is computed for it.

        The same query again costs nothing and gives its stored answer, if there is one.

        Raises:
            QueryConflictError: the id is bound to another hash, release or run.
            BudgetExhaustedError: the total would exceed the budget; nothing is booked.
            UnsupportedAdjacencyError: the release has no cost in the budget's adjacency;
                nothing is booked.
            ConfigError: a name cannot be one, or the release is too long to be read again.
        """
        for what, name in (("query_id", query_id), ("query_hash", query_hash), ("run", run)):
            expect_name(what, name)
        content = content_of(release)
        with self._book.writing():
            known = self._book.find(query_id, EntryKind.RESERVE)
            if known is None:
                self._afford(release)
                self._book.append(EntryKind.RESERVE, content, run, query_id, query_hash)
            elif (known.query_hash, known.content, known.run) != (query_hash, content, run):
                raise QueryConflictError(
                    f"Query {query_id} is bound for ever to what was first asked under it, and "
                    f"now comes with another content, release or run; ask under a new id."
                )
            answer = self._book.answer(query_id)
        return Reservation(query_id, answer)

    def commit(self, query_id: str, answer: bytes) -> Head:
        """Store the private answer, durably; only then may it be released.

        Committing the same bytes again changes nothing. If two processes computed the same
        query, the first answer stands: the second must throw its own away and `reserve` again
        to get the stored one.

        Returns:
            The head of the chain, to be sent with the answer.

        Raises:
            LedgerError: the query was never reserved.
            QueryConflictError: another answer is stored already.
        """
        with self._book.writing():
            reserved = self._book.find(query_id, EntryKind.RESERVE)
            if reserved is None:
                raise LedgerError(f"Query {query_id} has no reservation; reserve it first.")
            stored = self._book.answer(query_id)
            if stored is None:
                self._book.append_answer(query_id, reserved.run, answer)
            elif stored != answer:
                raise QueryConflictError(
                    f"Query {query_id} has another stored answer; reserve it again to get it."
                )
            return self._book.head

    def set_budget(self, budget: Budget) -> None:
        """Raise or lower the limit from now on; the change is an entry like any other.

        A limit below what is booked is allowed: nothing new is answered then.

        Raises:
            ConfigError: it is infinite or above LARGEST_EPSILON, or its δ, unit or adjacency is not
                that of the limit under which something was booked.
            UnsupportedAdjacencyError: what is booked has no cost in the new unit or adjacency.
        """
        if not budget.fixed:
            raise ConfigError(f"Expected a finite limit, got epsilon={budget.epsilon}.")
        expect_epsilon(budget.epsilon)
        with self._book.writing():
            before = self.budget
            if budget == before:
                return
            self._epsilon(budget.delta, budget.unit, budget.adjacency)
            booked = bool(self._book.totals.tally)
            if booked and before is not None and not budget.alike(before):
                raise ConfigError(
                    f"The limit of the ledger {self._book.path} is per {before.unit.value} under "
                    f"{before.adjacency.value} at delta={before.delta:g}, and queries were booked "
                    f"under it: only its epsilon can be changed, not to {budget.unit.value}, "
                    f"{budget.adjacency.value}, delta={budget.delta:g}."
                )
            self._book.append(EntryKind.BUDGET, canonical(budget.to_json()).decode())

    def note_ids(self, ids: str) -> None:
        """Note beside the ledger how ids of the records are made, before the first is booked.

        `ids` is such as `ImageSet.ids_by`; errors are those of `record_note.settle`.
        """
        with self._book.writing():  # of two processes one sees the note of the other
            settle(self._book.path, ids)

    def check(self, *releases: MechanismRelease, delta: float | None = None) -> None:
        """Whether a whole plan would fit, before its first query; books nothing.

        Args:
            releases: the plan.
            delta: at which the refusal quotes what would fit; the limit's own if left out.

        Raises:
            BudgetExhaustedError: it would exceed the budget, or there is none.
            UnsupportedAdjacencyError: it has no cost in the budget's unit and adjacency.
            ConfigError: delta is not inside (0, 1).
        """
        if delta is not None:
            expect_delta(delta)
        self._afford(*releases, delta=delta)

    def room(self, delta: float) -> float:
        """The largest ε, at this δ, with which a plan of Gaussian noise still fits; 0 if none.

        It is more than the limit less what is booked, because μ² adds, not ε. It is quoted in the
        limit's unit and adjacency, for a plan that is fixed before its first answer.

        Raises:
            ConfigError: delta is not inside (0, 1).
            UnsupportedAdjacencyError: what is booked has no cost in the limit's unit.
        """
        expect_delta(delta)
        budget = self.budget
        if budget is None or not budget.fixed:
            return 0.0 if budget is None else math.inf
        return self._costs.room(self._book.totals, budget, delta)

    def _afford(self, *releases: MechanismRelease, delta: float | None = None) -> None:
        budget = self.budget
        if budget is None:
            raise BudgetExhaustedError(
                f"The ledger {self._book.path} allows nothing yet; open it with a budget."
            )
        total = self._epsilon(budget.delta, budget.unit, budget.adjacency, *releases)
        if not budget.allows(total):
            delta = delta or budget.delta
            raise BudgetExhaustedError(
                f"Expected a total epsilon={total:.6g} <= {budget.epsilon:.6g} "
                f"({budget.unit.value}, {budget.adjacency.value}, delta={budget.delta:g}); "
                f"nothing was booked. {room_words(self.room(delta), delta)}; or raise the limit: "
                "--budget, or epsilon in a holder's policy file."
            )

    # Reading

    @property
    def budget(self) -> Budget | None:
        """The limit in force; None if none was ever set."""
        limits = self._book.totals.limits
        return _budget(limits[-1][1]) if limits else None

    @property
    def limits(self) -> list[tuple[str, Budget]]:
        """Every limit that counts, oldest first: since when (UTC, ISO 8601), and the limit.

        A limit that was replaced before anything was booked counts for nothing.
        """
        return [(since, _budget(content)) for since, content in self._book.totals.limits]

    @property
    def highest(self) -> Budget | None:
        """The highest limit that ever counted: the ε of all runs together; None without a limit.

        Its ε is infinite where the ledger bounds nothing, as it may be with one from an early
        version: it had an infinite limit while it answered, or limits that cannot be compared.
        """
        if not (limits := [limit for _, limit in self.limits]):
            return None
        now = limits[-1]
        comparable = all(limit.alike(now) for limit in limits)
        top = max(limit.epsilon for limit in limits) if comparable else math.inf
        return replace(now, epsilon=top)

    @property
    def data_id(self) -> str:
        """Id of the data that the ledger belongs to."""
        return self._book.totals.data_id

    @property
    def head(self) -> Head:
        """Sequence and hash of the last entry."""
        return self._book.head

    def entries(self) -> list[Entry]:
        """The whole book, oldest first; proves the chain, not the answers."""
        return self._book.entries()

    def releases(self, run: str | None = None) -> list[MechanismRelease]:
        """Every reservation, oldest first, answered or not; of one run, or of all.

        It reads and proves the whole chain, however old the run is.
        """
        return [release_of(entry.content) for entry in self._book.entries(EntryKind.RESERVE, run)]

    def runs(self) -> list[RunSummary]:
        """Every run that reserved anything, in the order of their first reservations."""
        runs = self._book.totals.runs
        return [RunSummary(name, run.first, run.rows, run.queries) for name, run in runs.items()]

    def answer(self, query_id: str) -> bytes | None:
        """The stored private answer to a query; None before there is one."""
        return self._book.answer(query_id)

    def usage(self, run: str) -> Usage:
        """How many runs the book holds, and how much of it is a run's."""
        runs = self._book.totals.runs
        return Usage(runs=len(runs), queries=runs[run].queries if run in runs else 0)

    @property
    def proved(self) -> str:
        """When the whole book was last proved (UTC, ISO 8601): noted in it, or by this object.

        Empty where that never happened. `verify` leaves no note, `prove` does.
        """
        return self._book.proved

    @property
    def size(self) -> int:
        """Bytes of the database and its log on disk."""
        return self._book.size

    def knows(self, query_id: str) -> bool:
        """Whether a query is paid for."""
        return self._book.find(query_id, EntryKind.RESERVE) is not None

    def rows(self, run: str, besides: str = "") -> int:
        """Rows that a run has been charged for; a repeated query leaves itself out."""
        total = self._book.totals.runs.get(run)
        rows = 0 if total is None else total.rows
        own = self._book.find(besides, EntryKind.RESERVE) if besides else None
        return rows if own is None or own.run != run else rows - release_of(own.content).rows

    def total(self, delta: float, unit: Unit, adjacency: Adjacency) -> Guarantee:
        """What is booked: the cost of all reservations together, over all runs and teachers.

        It is no ε of runs that were chosen or stopped after seeing answers; that is `highest`.

        Raises:
            UnsupportedAdjacencyError: one of them has no cost in this unit and adjacency.
        """
        epsilon = self._epsilon(delta, unit, adjacency)
        return Guarantee(unit, adjacency, epsilon, delta, ACCOUNTANT)

    def verify(self) -> Head:
        """Prove the whole book: pages, triggers, hash chain, totals, answers and head file.

        Raises:
            CorruptLedgerError: names the first sequence or the first answer that is wrong.
        """
        return self._book.verify()

    def prove(self, within: timedelta = timedelta(0)) -> None:
        """`verify` and leave a note of it; where one was left `within` this time, prove as opening.

        Raises:
            CorruptLedgerError: as `verify`.
        """
        self._book.prove(within)

    def confirm(self, head: Head) -> None:
        """`verify`, and prove that this ledger holds what was its head when an answer was sent.

        Raises:
            CorruptLedgerError: as `verify`; or its tail was dropped, an older copy put back, or
                its history replaced.
        """
        self._book.confirm(head)

    def _epsilon(
        self, delta: float, unit: Unit, adjacency: Adjacency, *extra: MechanismRelease
    ) -> float:
        return self._costs.epsilon(self._book.totals, delta, unit, adjacency, *extra)


@lru_cache(maxsize=64)
def _budget(content: str) -> Budget:
    return Budget.from_json(parse_json(content))
