"""The rows of a book in its SQLite file: entries, answers and stored totals, all SQL in one place.

What a query needs is found by an index or by its sequence, so that its cost does not grow with the
book; only what lists or proves the whole book reads all of it.
"""

from collections.abc import Iterator
from pathlib import Path
from sqlite3 import Connection

from fedtranscribe.errors import CorruptLedgerError
from fedtranscribe.privacy import ledger_file
from fedtranscribe.privacy.chain import START, Entry, EntryKind, Head, canonical, seal
from fedtranscribe.privacy.totals import Totals, noted, sealed

_COLUMNS = "sequence, time, kind, run, query_id, query_hash, content, previous, hash"


class EntryStore:
    """Reads and adds rows; it begins no transaction.

    Args:
        path: of the file, for errors.
        connection: to it.
    """

    def __init__(self, path: Path, connection: Connection) -> None:
        self.path, self._connection = path, connection

    @property
    def head(self) -> Head:
        """Sequence and hash of the last entry."""
        last = self._one("WHERE sequence = (SELECT MAX(sequence) FROM entries)")
        return START if last is None else last.head

    def entry(self, sequence: int) -> Entry | None:
        """The entry of that sequence, as it is."""
        return self._one("WHERE sequence = ?", sequence)

    def find(self, query_id: str, kind: EntryKind) -> Entry | None:
        """The entry of that kind for a query, as it is; there is at most one.

        Raises:
            CorruptLedgerError: the index leads to another entry.
        """
        # By its sequence, because SQLite may read what is indexed from the index.
        with ledger_file.own_errors(self.path):
            row = self._connection.execute(
                "SELECT sequence FROM entries WHERE query_id = ? AND query_id <> '' AND kind = ?",
                (query_id, kind),
            ).fetchone()
        entry = None if row is None else self.entry(row[0])
        if entry is not None and (entry.query_id, entry.kind) != (query_id, kind):
            raise CorruptLedgerError(
                f"The index of the ledger {self.path} leads from query {query_id} to entry "
                f"{entry.sequence}, which is not about it. Restore the ledger from its last copy."
            )
        return entry

    def after(self, head: Head, last: int = 2**63 - 1) -> Iterator[Entry]:
        """All entries after one, up to `last`, oldest first, as they are."""
        where = "WHERE sequence >= ? AND sequence <= ? ORDER BY sequence"
        # After the start come all, also those that an editor numbered below 1.
        first = -(2**63) if head == START else head.sequence + 1
        return self._entries(where, first, last)

    @property
    def first(self) -> int | None:
        """The lowest sequence; None if there is no entry."""
        return self._connection.execute("SELECT MIN(sequence) FROM entries").fetchone()[0]

    def answer(self, commit: Entry) -> bytes:
        """The stored answer of a query, proved to be the one that was committed.

        Raises:
            CorruptLedgerError: it is not.
        """
        with ledger_file.own_errors(self.path):
            row = self._connection.execute(
                "SELECT answer FROM answers WHERE query_id = ?", (commit.query_id,)
            ).fetchone()
        answer = None if row is None else row[0]
        if not isinstance(answer, bytes) or commit.content != canonical(seal(answer)).decode():
            raise _bad_answer(commit.query_id)
        return answer

    def totals(self) -> Totals | None:
        """The totals at the last checkpoint, itself included; None before there is one.

        They are proved to be those of the checkpoint, and it to have the hash that it was written
        with. A reader has to count on from there to the head file's entry, which proves that the
        checkpoint lies on the chain.

        Raises:
            CorruptLedgerError: they are not what the checkpoint has the digest of.
            LedgerError: a later version of this program wrote them.
        """
        row = self._connection.execute("SELECT sequence, content FROM totals").fetchone()
        if row is None:
            return None
        sequence, text = row
        entry = self.entry(sequence)
        if entry is not None and isinstance(text, str) and _of_checkpoint(entry, text):
            totals = Totals.read(text)
            if totals.head == Head(sequence - 1, entry.previous) and entry.intact():
                totals.pass_checkpoint(entry)
                return totals
        raise CorruptLedgerError(
            f"The stored totals of the ledger {self.path} are not those of checkpoint "
            f"{sequence}. Restore the ledger from its last copy."
        )

    def add(self, entry: Entry) -> None:
        """Add an entry."""
        self._connection.execute(
            f"INSERT INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            tuple(getattr(entry, column) for column in _COLUMNS.split(", ")),
        )

    def add_answer(self, query_id: str, answer: bytes) -> None:
        """Add an answer."""
        self._connection.execute("INSERT INTO answers VALUES (?, ?)", (query_id, answer))

    def put_totals(self, sequence: int, text: str) -> None:
        """Put the totals of a checkpoint in the place of older ones."""
        self._connection.execute("INSERT OR REPLACE INTO totals VALUES (1, ?, ?)", (sequence, text))

    def expect_sound_pages(self) -> None:
        """Read the whole file.

        Raises:
            CorruptLedgerError: pages or indices are damaged.
        """
        report = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if report != "ok":
            raise CorruptLedgerError(f"Ledger {self.path}: {report}. Restore it from its copy.")

    def expect_answers(self, commits: int) -> None:
        """Refuse answers beyond those of so many commits.

        Raises:
            CorruptLedgerError: there is an answer that nobody committed.
        """
        if self._connection.execute("SELECT COUNT(*) FROM answers").fetchone()[0] > commits:
            # SQLite keeps NULL in a primary key that is no integer.
            stray = self._connection.execute(
                "SELECT query_id FROM answers WHERE query_id IS NULL OR query_id NOT IN "
                "(SELECT query_id FROM entries WHERE kind = ?)",
                (EntryKind.COMMIT,),
            ).fetchone()
            raise _bad_answer(stray[0])

    def _one(self, where: str, *values: object) -> Entry | None:
        with ledger_file.own_errors(self.path):
            return next(self._entries(where, *values), None)

    def _entries(self, where: str, *values: object) -> Iterator[Entry]:
        rows = self._connection.execute(f"SELECT {_COLUMNS} FROM entries {where}", values)
        return (Entry(*row) for row in rows)


def _of_checkpoint(entry: Entry, text: str) -> bool:
    try:
        sealing = entry.kind == EntryKind.CHECKPOINT and sealed(text, proved=noted(entry.content))
    except (ValueError, KeyError, TypeError):
        return False
    return entry.content == sealing


def _bad_answer(query_id: str | None) -> CorruptLedgerError:
    return CorruptLedgerError(
        f"The stored answer of query {query_id} is not the one that was committed. "
        f"Restore the ledger from its last copy."
    )
