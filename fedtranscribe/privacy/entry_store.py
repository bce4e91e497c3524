"""The rows of a book in its SQLite file: entries, answers and stored totals, all SQL in one place.

What a query needs is found by an index or by its sequence, so that its cost does not grow with the
book; only what proves the whole book reads all of it.
"""

from collections.abc import Iterator
from pathlib import Path
from sqlite3 import Connection

from fedtranscribe.errors import CorruptLedgerError
from fedtranscribe.privacy import ledger_file
from fedtranscribe.privacy.chain import START, Entry, Head, Kind, canonical, seal
from fedtranscribe.privacy.totals import Totals, sealed

_COLUMNS = "sequence, time, kind, run, query_id, query_hash, content, previous, hash"


class EntryStore:
    """Reads and adds rows; it begins no transaction.

    Args:
        path: of the file, for errors.
        connection: to it.
    """

    def __init__(self, path: Path, connection: Connection) -> None:
        self._path, self._connection = path, connection

    @property
    def head(self) -> Head:
        """Sequence and hash of the last entry."""
        last = self._one("WHERE sequence = (SELECT MAX(sequence) FROM entries)")
        return START if last is None else last.head

    def entry(self, sequence: int) -> Entry | None:
        """The entry of that sequence, as it is."""
        return self._one("WHERE sequence = ?", sequence)

    def find(self, query_id: str, kind: Kind) -> Entry | None:
        """The entry of that kind for a query, as it is; there is at most one."""
        return self._one("WHERE query_id = ? AND query_id <> '' AND kind = ?", query_id, kind)

    def after(self, head: Head, last: int = 2**63 - 1) -> Iterator[Entry]:
        """All entries after one, up to `last`, oldest first, as they are."""
        where = "WHERE sequence > ? AND sequence <= ? ORDER BY sequence"
        return self._entries(where, head.sequence, last)

    def entries(self, kind: Kind | None = None, run: str | None = None) -> list[Entry]:
        """All entries, or those of a kind or a run, oldest first, as they are."""
        wanted = {"kind": kind, "run": run}
        tests = [f"{name} = ?" for name, value in wanted.items() if value is not None]
        tests += ["run <> ''"] if run else []  # what the index leaves out
        where = f"WHERE {' AND '.join(tests)}" if tests else ""
        values = [value for value in wanted.values() if value is not None]
        with ledger_file.own_errors(self._path):
            return list(self._entries(f"{where} ORDER BY sequence", *values))

    def answer(self, commit: Entry) -> bytes:
        """The stored answer of a query, proved to be the one that was committed.

        Raises:
            CorruptLedgerError: it is not.
        """
        with ledger_file.own_errors(self._path):
            row = self._connection.execute(
                "SELECT answer FROM answers WHERE query_id = ?", (commit.query_id,)
            ).fetchone()
        answer = None if row is None else row[0]
        if not isinstance(answer, bytes) or commit.content != canonical(seal(answer)).decode():
            raise _bad_answer(commit.query_id)
        return answer

    def totals(self) -> Totals | None:
        """The totals before the last checkpoint; None before there is one.

        Raises:
            CorruptLedgerError: they are not what the checkpoint has the digest of.
        """
        row = self._connection.execute("SELECT sequence, content FROM totals").fetchone()
        if row is None:
            return None
        sequence, text = row
        entry = self.entry(sequence)
        if (
            entry is None
            or entry.kind != Kind.CHECKPOINT
            or not isinstance(text, str)
            or all(entry.content != sealed(text, proved=proved) for proved in (False, True))
        ):
            raise CorruptLedgerError(
                f"The stored totals of the ledger {self._path} are not those of checkpoint "
                f"{sequence}. Restore the ledger from its last copy."
            )
        return Totals.read(text)

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
            raise CorruptLedgerError(f"Ledger {self._path}: {report}. Restore it from its copy.")

    def expect_answers(self, commits: int) -> None:
        """Refuse answers beyond those of so many commits.

        Raises:
            CorruptLedgerError: there is an answer that nobody committed.
        """
        if self._connection.execute("SELECT COUNT(*) FROM answers").fetchone()[0] > commits:
            stray = self._connection.execute(
                "SELECT query_id FROM answers WHERE query_id NOT IN "
                "(SELECT query_id FROM entries WHERE kind = ?)",
                (Kind.COMMIT,),
            ).fetchone()
            raise _bad_answer(stray[0])

    def _one(self, where: str, *values: object) -> Entry | None:
        with ledger_file.own_errors(self._path):
            return next(self._entries(where, *values), None)

    def _entries(self, where: str, *values: object) -> Iterator[Entry]:
        rows = self._connection.execute(f"SELECT {_COLUMNS} FROM entries {where}", values)
        return (Entry(*row) for row in rows)


def _bad_answer(query_id: str) -> CorruptLedgerError:
    return CorruptLedgerError(
        f"The stored answer of query {query_id} is not the one that was committed. "
        f"Restore the ledger from its last copy."
    )
