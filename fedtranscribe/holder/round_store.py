"""What a holder must never forget about masked sums: its key of every run, its part in every round.

One SQLite file beside the ledger. It holds seeds, so it is as private as the ledger; and it must
never be put back to an earlier state: a round that was forgotten could be masked a second time.
What was forgotten altogether is noticed, because the ledger still knows the query (`masking.py`).
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedtranscribe.errors import ProtocolError, StorageError
from fedtranscribe.files import unwritable

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (key TEXT PRIMARY KEY, state BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS rounds (key TEXT PRIMARY KEY, state BLOB NOT NULL) STRICT;
"""
_BUSY_SECONDS = 30.0


class RoundStore:
    """Durable bytes by run and by query id, each changed only from the state that was read.

    Several processes may use one file: of two that go on from the same state, one is refused. So a
    holder never says two things at one stage.

    Args:
        path: the file; made at first use.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def run(self, run: str) -> bytes | None:
        """A run's state; None before the first."""
        return self._get("SELECT state FROM runs WHERE key = ?", run)

    @property
    def runs(self) -> int:
        """How many runs have a state."""
        with self._open() as connection:
            return connection.execute("SELECT COUNT(*) FROM runs").fetchone()[0]

    @property
    def size(self) -> int:
        """Bytes of the file on disk."""
        return self._path.stat().st_size if self._path.exists() else 0

    def put_run(self, run: str, state: bytes, before: bytes | None) -> None:
        """Keep a run's state in place of `before`; durable when it returns.

        Raises:
            ProtocolError: another process was quicker.
        """
        self._put("runs", run, state, before)

    def round(self, query: str) -> bytes | None:
        """A round's state; None before the first."""
        return self._get("SELECT state FROM rounds WHERE key = ?", query)

    def put_round(self, query: str, state: bytes, before: bytes | None) -> None:
        """Keep a round's state in place of `before`; raises as `put_run`."""
        self._put("rounds", query, state, before)

    def _get(self, statement: str, key: str) -> bytes | None:
        with self._open() as connection:
            row = connection.execute(statement, (key,)).fetchone()
        return None if row is None else row[0]

    def _put(self, table: str, key: str, state: bytes, before: bytes | None) -> None:
        with self._open() as connection:
            if before is None:
                done = connection.execute(
                    f"INSERT INTO {table} VALUES (?, ?) ON CONFLICT DO NOTHING", (key, state)
                )
            else:
                done = connection.execute(
                    f"UPDATE {table} SET state = ? WHERE key = ? AND state = ?",
                    (state, key, before),
                )
            if done.rowcount != 1:
                raise ProtocolError(
                    f"Another process of this holder has changed {key!r} in the meantime."
                )

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        except OSError as error:
            raise unwritable(self._path, error) from None
        except sqlite3.Error as error:
            raise self._unusable(error) from None
        try:
            self._path.chmod(0o600)
            # One statement is one transaction, and EXTRA makes it durable when it returns.
            connection.execute("PRAGMA synchronous=EXTRA")
            connection.executescript(_SCHEMA)
            yield connection
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from None
        finally:
            connection.close()

    def _unusable(self, error: Exception) -> StorageError:
        return StorageError(
            f"The rounds file {self._path} cannot be used ({error}); free space or fix it. Never "
            "put an older copy in its place."
        )
