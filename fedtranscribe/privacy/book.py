"""A durable, append-only, hash-chained book of entries and stored answers.

It knows how entries are kept and how a break is noticed, and nothing of what they cost; that is
the ledger's part. Opening counts on from the last checkpoint (`totals`) and proves all entries
from there; `verify` proves the whole book. A book that is too young to have a checkpoint is proved
as a whole by opening, too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from sqlite3 import Connection
from typing import Self

from fedtranscribe.errors import CorruptLedgerError, ForeignLedgerError, StorageError
from fedtranscribe.privacy import ledger_file, proofs
from fedtranscribe.privacy.chain import (
    START,
    Entry,
    EntryKind,
    Head,
    canonical,
    changed,
    head_path,
    read_head,
    seal,
    walk,
    write_head,
)
from fedtranscribe.privacy.entry_store import EntryStore
from fedtranscribe.privacy.totals import Totals, sealed


class Book:
    """The entries of one data set; use it from the thread and process that opened it.

    Every method may raise StorageError (full disk, lock held too long) and CorruptLedgerError.
    """

    def __init__(self, path: Path, connection: Connection) -> None:
        self.path = path
        self._connection = connection
        self._store = EntryStore(path, connection)
        self._known: Head | None = None
        self._seen = START
        self._totals: Totals | None = None
        self._proved = ""

    @classmethod
    def open(cls, path: Path, data_id: str, create: bool) -> Self:
        """Open for writing; start a new one if there is none and `create`, convert an old one.

        Raises:
            ForeignLedgerError: it belongs to other data.
            CorruptLedgerError: it is damaged, edited, cut or rolled back.
            StorageError: it is absent and `create` is false, or the folder cannot be used.
        """
        book = cls(path, ledger_file.open_for_writing(path, create))
        try:
            with ledger_file.transaction(book._connection, path, write=True):
                version = ledger_file.schema_version(book._connection, path)
                if version == 0:
                    book._begin(data_id, create)
                totals = book._prove(read_head(path), data_id)
                if 0 < version < ledger_file.FORMAT:
                    ledger_file.create_schema(book._connection, version)
                if book._proved and totals.due:
                    book._checkpoint(proved=True)
            book._publish()
        except BaseException:
            book.close()
            raise
        return book

    @classmethod
    def open_read_only(cls, path: Path, data_id: str | None) -> Self:
        """Open without ever writing or creating a file; None accepts any data.

        Raises:
            ForeignLedgerError: it belongs to other data.
            CorruptLedgerError: it is damaged, edited, cut or rolled back.
            StorageError: it is absent, or cannot be read without writing.
        """
        book = cls(path, ledger_file.open_for_reading(path))
        try:
            book.check(data_id)
        except BaseException:
            book.close()
            raise
        return book

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def _begin(self, data_id: str, create: bool) -> None:
        if not create:
            raise StorageError(f"There is no ledger {self.path}; check the path.")
        if head_path(self.path).exists():
            raise CorruptLedgerError(
                f"The ledger {self.path} is empty, but its head file is not: its entries are "
                f"lost. Restore it from its last copy."
            )
        ledger_file.create_schema(self._connection)
        content = {"data_id": data_id, "format": ledger_file.FORMAT}
        self._add(Totals(), EntryKind.CREATED, canonical(content).decode())

    # Reading

    @property
    def totals(self) -> Totals:
        """What all entries add up to, including what others added since; do not change it."""
        with self.reading() as totals:
            return totals

    @property
    def head(self) -> Head:
        """Sequence and hash of the last entry."""
        return self._store.head

    @property
    def proved(self) -> str:
        """When all was last proved, by this object or by a note in the book; empty: never."""
        return max(self._proved, self.totals.proved)

    @property
    def size(self) -> int:
        """Bytes of the database and its log on disk."""
        return ledger_file.size(self.path)

    def entries(self, kind: EntryKind | None = None, run: str | None = None) -> list[Entry]:
        """All entries, or those of a kind or a run, oldest first; proves the whole chain."""
        with self.reading() as totals:
            found = list(walk(self._store.after(START)))
            if (found[-1].head if found else START) != totals.head:
                raise proofs.lost(self.path, totals.head.sequence)
        return [e for e in found if kind in (None, e.kind) and run in (None, e.run)]

    def find(self, query_id: str, kind: EntryKind) -> Entry | None:
        """The entry of that kind for a query, proved to be in the chain; there is at most one.

        That there is none is proved for entries since the last checkpoint, not for older ones.
        """
        with self.reading() as totals:
            entry = self._store.find(query_id, kind)
            counted = totals.remembered(query_id, kind)
            if counted is None and entry is not None:
                proofs.expect_chained(self._store, entry, totals)
            elif counted is not None and entry is None:
                raise proofs.lost(self.path, counted.sequence)
            elif counted != entry and counted is not None:
                raise changed(counted)
            return entry

    def answer(self, query_id: str) -> bytes | None:
        """The stored answer of a query, proved to be the one that was committed.

        That there is none is proved as well: an answer that was taken out would be computed again.
        For a reservation before the last checkpoint that takes a proof of the whole book.
        """
        with self.reading() as totals:
            commit = self.find(query_id, EntryKind.COMMIT)
            if commit is not None:
                return self._store.answer(commit)
            reserved = self.find(query_id, EntryKind.RESERVE)
            if reserved is not None and reserved.sequence <= totals.checkpoint:
                self._prove(self._known, whole=True)
            return None

    @contextmanager
    def reading(self) -> Iterator[Totals]:
        """The totals, and all that is read inside is of the same moment."""
        with self._counting():
            if self._connection.in_transaction:
                yield self._follow()
                return
            # The head file first: a writer in between can then only put the database ahead of it.
            self._known = read_head(self.path)
            with ledger_file.transaction(self._connection, self.path, write=False):
                yield self._follow()

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """After any exception the totals are counted anew.

        It may have come in the middle of counting an entry, or before an entry was kept.
        """
        try:
            yield
        except BaseException:
            self._totals = None
            raise

    # Writing

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One durable transaction: nobody else writes meanwhile, an exception leaves nothing.

        What is read inside cannot change before what is written. Before it returns, the head
        file knows of it.
        """
        with (
            self._counting(),
            ledger_file.transaction(self._connection, self.path, write=True),
        ):
            self._known = read_head(self.path)
            if self._totals is not None:
                self._expect_known(self._known, self._totals)
            self._follow()
            yield
        self._publish()

    def append(
        self, kind: EntryKind, content: str, run: str = "", query_id: str = "", query_hash: str = ""
    ) -> None:
        """Add an entry after the last; only inside `writing`."""
        totals = self._follow()
        if totals.due:
            self._checkpoint(proved=False)
        self._add(totals, kind, content, run, query_id, query_hash)

    def append_answer(self, query_id: str, run: str, answer: bytes) -> None:
        """Store an answer and the entry that binds it; only inside `writing`."""
        self._store.add_answer(query_id, answer)
        self.append(EntryKind.COMMIT, canonical(seal(answer)).decode(), run, query_id)

    def _add(
        self,
        totals: Totals,
        kind: EntryKind,
        content: str,
        run: str = "",
        query_id: str = "",
        query_hash: str = "",
    ) -> None:
        entry = Entry.after(
            totals.head,
            time=_now(),
            kind=kind.value,
            run=run,
            query_id=query_id,
            query_hash=query_hash,
            content=content,
        )
        self._store.add(entry)
        totals.add(entry)

    def _checkpoint(self, *, proved: bool) -> None:
        totals = self._follow()
        text = totals.text()
        self._add(totals, EntryKind.CHECKPOINT, sealed(text, proved=proved))
        self._store.put_totals(totals.checkpoint, text)

    def _publish(self) -> None:
        # Under the lock, so that of two processes the slower never puts an older head back. What
        # came in since is counted first: a checkpoint up to the head file's entry is believed.
        with (
            self._counting(),
            ledger_file.transaction(self._connection, self.path, write=True),
        ):
            self._known = read_head(self.path)
            self._seen = self._follow().head
            if self._known != self._seen:
                write_head(self.path, self._seen)

    # Proving

    def check(self, data_id: str | None = None) -> Head:
        """Prove what opening proves: tables, triggers, all from the last checkpoint on, head file.

        Raises:
            CorruptLedgerError: names the first sequence or the first answer that is wrong.
            ForeignLedgerError: `data_id` is given and the book belongs to other data.
        """
        # The head file first: a writer in between can then only put the database ahead of it.
        known = read_head(self.path)
        with ledger_file.transaction(self._connection, self.path, write=False):
            return self._prove(known, data_id).head

    def verify(self) -> Head:
        """Prove the whole book: pages, tables, triggers, chain, totals, answers, head file.

        Raises:
            CorruptLedgerError: names the first sequence or the first answer that is wrong.
        """
        known = read_head(self.path)
        with ledger_file.transaction(self._connection, self.path, write=False):
            return self._prove(known, whole=True).head

    def prove(self, within: timedelta) -> None:
        """`verify` and leave a note of it; only `check` if that was done less than `within` ago.

        Raises:
            CorruptLedgerError: as they do.
        """
        if _now(-within) < self.proved <= _now():
            self.check()
            return
        self.verify()
        # Without a checkpoint every opening proves the whole, and a note would say nothing new.
        if self.totals.checkpoint:
            with self.writing():
                self._checkpoint(proved=True)

    def _prove(
        self, known: Head | None, data_id: str | None = None, *, whole: bool = False
    ) -> Totals:
        """Count the entries, from the stored totals on or all of them, each once it is proved."""
        version = ledger_file.schema_version(self._connection, self.path)
        if version == 0:
            raise StorageError(f"There is no ledger in {self.path}; check the path.")
        stored = version == ledger_file.FORMAT
        totals, whole = proofs.count(self._store, known, stored=stored, whole=whole)
        self._expect_known(known, totals)
        if data_id is not None and totals.data_id != data_id:
            raise ForeignLedgerError(
                f"Expected a ledger of the data {data_id!r}, {self.path} belongs to "
                f"{totals.data_id!r}; give the folder of the right data."
            )
        self._totals = totals
        if whole:
            self._proved = _now()
        return totals

    def _follow(self) -> Totals:
        """The totals, with what was added since they were last looked at."""
        if self._totals is None:
            return self._prove(self._known)
        for entry in walk(self._store.after(self._totals.head), self._totals.head):
            if proofs.claims_proof(entry, self._known):
                return self._prove(self._known, whole=True)
            self._totals.add(entry)
        return self._totals

    def _expect_known(self, known: Head | None, totals: Totals) -> None:
        """Refuse a book that does not hold the head file's entry, and what was seen of it."""
        proofs.expect_head_file(self.path, known, totals)
        for head in (known or START, self._seen, totals.head):
            proofs.expect_reached(self._store, head)

    def confirm(self, head: Head) -> None:
        """Prove the whole book, and that it holds what was its head when an answer was sent.

        Raises:
            CorruptLedgerError: as `verify`; or its tail was dropped or an older copy put back (the
                book ends before that sequence), or its history was rewritten (another hash stands
                there).
        """
        known = read_head(self.path)
        with ledger_file.transaction(self._connection, self.path, write=False):
            self._prove(known, whole=True)
            proofs.expect_reached(self._store, head)


def _now(shift: timedelta = timedelta(0)) -> str:
    return (datetime.now(UTC) + shift).isoformat(timespec="microseconds")
