"""A durable, append-only, hash-chained book of entries and stored answers.

It knows how entries are kept and how a break is noticed, and nothing of what they cost; that is
the ledger's part. Opening reads the whole book and proves it; so does `verify`.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Self

from fedtranscribe.errors import CorruptLedgerError, ForeignLedgerError, StorageError
from fedtranscribe.privacy import ledger_file
from fedtranscribe.privacy.chain import (
    START,
    Entry,
    Head,
    Kind,
    canonical,
    head_path,
    read_head,
    walk,
    write_head,
)
from fedtranscribe.reading import parse_json

_COLUMNS = "sequence, time, kind, run, query_id, query_hash, content, previous, hash"


class Book:
    """The entries of one data set; use it from the thread and process that opened it.

    Every method may raise StorageError (full disk, lock held too long) and CorruptLedgerError.
    """

    def __init__(self, path: Path, connection: Connection) -> None:
        self.path = path
        self._connection = connection
        self._seen = START

    @classmethod
    def open(cls, path: Path, data_id: str, create: bool) -> Self:
        """Open for writing and prove it; start a new one if there is none and `create`.

        Raises:
            ForeignLedgerError: it belongs to other data.
            CorruptLedgerError: it is damaged, edited, cut or rolled back.
            StorageError: it is absent and `create` is false, or the folder cannot be used.
        """
        book = cls(path, ledger_file.open_for_writing(path, create))
        try:
            with ledger_file.transaction(book._connection, path, write=True):
                if not ledger_file.has_schema(book._connection, path):
                    book._begin(data_id, create)
                book._prove(read_head(path), data_id)
            book._publish()
        except BaseException:
            book.close()
            raise
        return book

    @classmethod
    def open_read_only(cls, path: Path, data_id: str | None) -> Self:
        """Open and prove without ever writing or creating a file; None accepts any data.

        Raises:
            ForeignLedgerError: it belongs to other data.
            CorruptLedgerError: it is damaged, edited, cut or rolled back.
            StorageError: it is absent, or cannot be read without writing.
        """
        book = cls(path, ledger_file.open_for_reading(path))
        try:
            book.verify(data_id)
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
        self.append(Kind.CREATED, canonical(content).decode())

    # Reading

    @property
    def data_id(self) -> str:
        """Id of the data that the book belongs to."""
        first = self._one("WHERE sequence = 1")
        return "" if first is None else parse_json(first.content)["data_id"]

    @property
    def head(self) -> Head:
        """Sequence and hash of the last entry."""
        last = self._one("ORDER BY sequence DESC LIMIT 1")
        return START if last is None else last.head

    def entries(self, kind: Kind | None = None, run: str | None = None) -> list[Entry]:
        """All entries, or those of a kind or a run, oldest first."""
        with ledger_file.own_errors(self.path):
            return list(self._entries(kind, run))

    def find(self, query_id: str, kind: Kind) -> Entry | None:
        """The entry of that kind for a query; there is at most one."""
        return self._one("WHERE query_id = ? AND query_id <> '' AND kind = ?", query_id, kind.value)

    def latest(self, kind: Kind) -> Entry | None:
        """The newest entry of a kind."""
        return self._one("WHERE kind = ? ORDER BY sequence DESC LIMIT 1", kind.value)

    def first(self, kind: Kind) -> Entry | None:
        """The oldest entry of a kind."""
        return self._one("WHERE kind = ? ORDER BY sequence LIMIT 1", kind.value)

    def tally(self, kind: Kind, run: str | None = None) -> list[tuple[str, int]]:
        """Each different content of a kind, in order of first entry, and how many hold it.

        Args:
            kind: of the entries.
            run: count this run alone.
        """
        with ledger_file.own_errors(self.path):
            return self._connection.execute(
                "SELECT content, COUNT(*) FROM entries WHERE kind = ? AND (? IS NULL OR run = ?) "
                "GROUP BY content ORDER BY MIN(sequence)",
                (kind.value, run, run),
            ).fetchall()

    def count(self, kind: Kind, run: str) -> int:
        """How many entries of a kind a run has."""
        return self._number("SELECT COUNT(*) FROM entries WHERE kind = ? AND run = ?", kind, run)

    def count_runs(self, kind: Kind) -> int:
        """How many runs have an entry of a kind."""
        return self._number("SELECT COUNT(DISTINCT run) FROM entries WHERE kind = ?", kind)

    @property
    def size(self) -> int:
        """Bytes of the database and its log on disk."""
        return ledger_file.size(self.path)

    def answer(self, query_id: str) -> bytes | None:
        """The stored answer of a query, proved to be the one that was committed."""
        commit = self.find(query_id, Kind.COMMIT)
        if commit is None:
            return None
        with ledger_file.own_errors(self.path):
            row = self._connection.execute(
                "SELECT answer FROM answers WHERE query_id = ?", (query_id,)
            ).fetchone()
        if row is None or not _matches(commit, row[0]):
            raise _bad_answer(query_id)
        return row[0]

    def _one(self, where: str, *values: str) -> Entry | None:
        with ledger_file.own_errors(self.path):
            row = self._connection.execute(
                f"SELECT {_COLUMNS} FROM entries {where}", values
            ).fetchone()
        return None if row is None else Entry(*row)

    def _number(self, statement: str, *values: str) -> int:
        with ledger_file.own_errors(self.path):
            return self._connection.execute(statement, values).fetchone()[0]

    def _entries(self, kind: Kind | None = None, run: str | None = None) -> Iterator[Entry]:
        rows = self._connection.execute(
            f"SELECT {_COLUMNS} FROM entries "
            "WHERE (? IS NULL OR kind = ?) AND (? IS NULL OR run = ?) ORDER BY sequence",
            (*[kind and kind.value] * 2, run, run),
        )
        return (Entry(*row) for row in rows)

    # Writing

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One durable transaction: nobody else writes meanwhile, an exception leaves nothing.

        What is read inside cannot change before what is written. Before it returns, the head
        file knows of it.
        """
        with ledger_file.transaction(self._connection, self.path, write=True):
            self._confirm_known(read_head(self.path))
            yield
        self._publish()

    def append(
        self, kind: Kind, content: str, run: str = "", query_id: str = "", query_hash: str = ""
    ) -> None:
        """Add an entry after the last; only inside `writing`."""
        entry = Entry.after(
            self.head,
            time=datetime.now(UTC).isoformat(timespec="microseconds"),
            kind=kind.value,
            run=run,
            query_id=query_id,
            query_hash=query_hash,
            content=content,
        )
        self._connection.execute(
            f"INSERT INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            tuple(getattr(entry, column) for column in _COLUMNS.split(", ")),
        )

    def append_answer(self, query_id: str, run: str, answer: bytes) -> None:
        """Store an answer and the entry that binds it; only inside `writing`."""
        self._connection.execute("INSERT INTO answers VALUES (?, ?)", (query_id, answer))
        self.append(Kind.COMMIT, canonical(_seal(answer)).decode(), run, query_id)

    def _publish(self) -> None:
        # Under the lock, so that of two processes the slower never puts an older head back.
        with ledger_file.transaction(self._connection, self.path, write=True):
            self._seen = self.head
            if read_head(self.path) != self._seen:
                write_head(self.path, self._seen)

    # Proving

    def verify(self, data_id: str | None = None) -> Head:
        """Prove the whole book again: pages, tables, triggers, chain, answers, head file.

        Raises:
            CorruptLedgerError: names the first sequence or the first answer that is wrong.
            ForeignLedgerError: `data_id` is given and the book belongs to other data.
        """
        # The head file first: a writer in between can then only put the database ahead of it.
        known = read_head(self.path)
        with ledger_file.transaction(self._connection, self.path, write=False):
            if not ledger_file.has_schema(self._connection, self.path):
                raise StorageError(f"There is no ledger in {self.path}; check the path.")
            return self._prove(known, data_id)

    def _prove(self, known: Head | None, data_id: str | None) -> Head:
        report = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if report != "ok":
            raise CorruptLedgerError(f"Ledger {self.path}: {report}. Restore it from its copy.")
        head = START
        commits: dict[str, Entry] = {}
        for entry in walk(self._entries()):
            head = entry.head
            if entry.kind == Kind.COMMIT:
                commits[entry.query_id] = entry
        for query_id, answer in self._connection.execute("SELECT query_id, answer FROM answers"):
            commit = commits.pop(query_id, None)
            if commit is None or not _matches(commit, answer):
                raise _bad_answer(query_id)
        for query_id in commits:
            raise _bad_answer(query_id)
        self._confirm_known(known)
        if data_id is not None and self.data_id != data_id:
            raise ForeignLedgerError(
                f"Expected a ledger of the data {data_id!r}, {self.path} belongs to "
                f"{self.data_id!r}; give the folder of the right data."
            )
        return head

    def _confirm_known(self, known: Head | None) -> None:
        if known is None:
            if self.latest(Kind.RESERVE) is not None:
                raise CorruptLedgerError(
                    f"{head_path(self.path)} is missing beside a ledger that has reservations, "
                    f"so that a dropped tail could not be seen. Restore it from a copy, or write "
                    f'the head of the last answer into it as {{"sequence": …, "hash": "…"}}.'
                )
        else:
            self.confirm(known)
        self.confirm(self._seen)

    def confirm(self, head: Head) -> None:
        """Prove that this book still holds what was once its head, such as one sent with an answer.

        Raises:
            CorruptLedgerError: its tail was dropped or an older copy put back (the book ends
                before that sequence), or its history was rewritten (another hash stands there).
        """
        if head == START:
            return
        last = self.head
        if last.sequence < head.sequence:
            raise CorruptLedgerError(
                f"The ledger {self.path} ends at entry {last.sequence}, but had reached "
                f"{head.sequence}: its tail was dropped or an older copy was put back. "
                f"Restore the newest copy."
            )
        entry = self._one(f"WHERE sequence = {head.sequence:d}")
        if entry is None or entry.hash != head.hash:
            raise CorruptLedgerError(
                f"Entry {head.sequence} of the ledger {self.path} is not the one that was written "
                f"there: its history was replaced. Restore the right copy."
            )


def _seal(answer: bytes) -> dict[str, Any]:
    return {"bytes": len(answer), "sha256": hashlib.sha256(answer).hexdigest()}


def _matches(commit: Entry, answer: object) -> bool:
    return isinstance(answer, bytes) and commit.content == canonical(_seal(answer)).decode()


def _bad_answer(query_id: str) -> CorruptLedgerError:
    return CorruptLedgerError(
        f"The stored answer of query {query_id} is not the one that was committed. "
        f"Restore the ledger from its last copy."
    )
