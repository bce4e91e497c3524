"""The SQLite file under a ledger: schema, durable transactions, and errors in our own words.

WAL with synchronous=FULL: when a transaction returns, it survives the loss of power. WAL needs
a local disk; a network file system does not give the locks that several processes rely on.

The file, its `-wal`, its `-shm` and its head are for their owner alone (mode 0600). SQLite gives
log and index the mode of the database; files with a wider mode are narrowed when the ledger is
opened for writing. A folder that is made for a ledger is for its owner alone, too (0700).
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedtranscribe.errors import CorruptLedgerError, LedgerError, StorageError
from fedtranscribe.files import keep_private, open_private
from fedtranscribe.privacy.chain import head_path

FORMAT = 2
"""Version of the schema; kept in the file's `user_version`. Format 1 had no totals."""

BUSY_SECONDS = 30.0
"""How long a process waits for the others that write to the same ledger."""

_FIRST_SCHEMA = (
    """CREATE TABLE entries (
    sequence INTEGER PRIMARY KEY,
    time TEXT NOT NULL,
    kind TEXT NOT NULL,
    run TEXT NOT NULL,
    query_id TEXT NOT NULL,
    query_hash TEXT NOT NULL,
    content TEXT NOT NULL,
    previous TEXT NOT NULL,
    hash TEXT NOT NULL
)""",
    # A second reservation or answer for a query is impossible even for a faulty program.
    """CREATE UNIQUE INDEX one_per_query ON entries (query_id, kind) WHERE query_id <> ''""",
    """CREATE TABLE answers (
    query_id TEXT PRIMARY KEY,
    answer BLOB NOT NULL
)""",
    *(
        f"""CREATE TRIGGER {table}_no_{action.lower()} BEFORE {action} ON {table}
BEGIN SELECT RAISE(ABORT, '{table} are append-only'); END"""
        for table in ("entries", "answers")
        for action in ("UPDATE", "DELETE")
    ),
)
_SINCE_FORMAT_2 = (
    # Not append-only: the digest in the entry of that sequence fixes what stands here.
    """CREATE TABLE totals (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    sequence INTEGER NOT NULL,
    content TEXT NOT NULL
)""",
)
_SCHEMAS = {1: _FIRST_SCHEMA, FORMAT: _FIRST_SCHEMA + _SINCE_FORMAT_2}

_STORAGE = {
    sqlite3.SQLITE_FULL: "the disk is full; free space",
    sqlite3.SQLITE_IOERR: "the disk refused to read or write; free space or check the disk",
    sqlite3.SQLITE_READONLY: "it is open for reading only; open it for writing",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check that its folder exists and is a folder",
    sqlite3.SQLITE_PERM: "access is denied; ask the owner of the file and its folder",
    sqlite3.SQLITE_BUSY: f"another process held it for {BUSY_SECONDS:.0f} s; wait and ask again",
    sqlite3.SQLITE_LOCKED: "another connection holds it; wait and ask again",
}
_CORRUPT = {
    sqlite3.SQLITE_CORRUPT: "its pages are damaged or cut off",
    sqlite3.SQLITE_NOTADB: "it is no SQLite file",
    sqlite3.SQLITE_CONSTRAINT: "a second entry of a kind was about to be made for one query",
}


@contextmanager
def own_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite and the file system say about `path` into the errors of this package.

    Raises:
        StorageError: the disk or the folder is at fault; nothing of the transaction is kept.
        CorruptLedgerError: the file is at fault.
    """
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # a closed ledger, or one from another thread: a fault of ours, not of the file
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in _STORAGE:
            raise StorageError(f"Ledger {path}: {_STORAGE[code]}.") from error
        if code in _CORRUPT:
            raise CorruptLedgerError(
                f"Ledger {path}: {_CORRUPT[code]}. Restore it from its last copy."
            ) from error
        raise LedgerError(f"Ledger {path}: {error}.") from error
    except UnicodeDecodeError as error:
        raise CorruptLedgerError(
            f"Ledger {path}: its text is damaged. Restore it from its last copy."
        ) from error
    except PermissionError as error:
        denied = _STORAGE[sqlite3.SQLITE_PERM]
        raise StorageError(f"Ledger {path}: {denied}.") from error
    except OSError as error:
        raise StorageError(f"Ledger {path}: {error.strerror}; choose another folder.") from error


def open_for_writing(path: Path, create: bool) -> sqlite3.Connection:
    """A connection with every durability setting on; a new file if `create` and there is none.

    Raises:
        StorageError: there is no such ledger, or it cannot be opened.
        CorruptLedgerError: the file is no ledger, or is gone while its head file is here.
    """
    if not _there(path) and not create:
        raise StorageError(f"There is no ledger {path}; check the path.")
    with own_errors(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if create:
            os.close(open_private(path, os.O_RDWR))
        for file in (path, *_companions(path), head_path(path)):
            keep_private(file)
        connection = _connect(path, "mode=rwc" if create else "mode=rw")
    try:
        with own_errors(path):
            # Looked at before the first setting, which would already change a foreign file.
            with transaction(connection, path, write=False):
                schema_version(connection, path)
            _use_write_ahead_log(connection)
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA fullfsync=ON")
    except Exception:
        connection.close()
        raise
    return connection


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    # The one statement for which SQLite does not wait by itself when another process, which is
    # making the same new file, is a moment ahead.
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def open_for_reading(path: Path) -> sqlite3.Connection:
    """A connection that never writes and never creates a file, not even a scratch one.

    Raises:
        StorageError: there is no such ledger, or it cannot be opened without writing.
        CorruptLedgerError: it is gone while its head file is here.
    """
    if not _there(path):
        raise StorageError(f"There is no ledger {path}; check the path.")
    log, shared = _companions(path)
    if log.exists() and not shared.exists():
        raise StorageError(
            f"Ledger {path} has {log.name} but not {shared.name}, which SQLite would have to "
            f"create; open it for writing once."
        )
    # Without a log all is in the file itself, and only `immutable` keeps SQLite from making one.
    with own_errors(path):
        return _connect(path, "mode=ro" if log.exists() else "mode=ro&immutable=1")


def size(path: Path) -> int:
    """Bytes of the file and of its log; 0 where there is none."""
    files = path, path.with_name(f"{path.name}-wal")
    with own_errors(path):
        return sum(file.stat().st_size for file in files if file.exists())


def _there(path: Path) -> bool:
    """Whether a file with content is there; its head file alone is no fresh start."""
    if path.is_dir():
        raise StorageError(f"Expected the ledger {path} to be a file, it is a folder.")
    if path.exists() and path.stat().st_size > 0:
        return True
    if head_path(path).exists():
        raise CorruptLedgerError(
            f"The ledger {path} is gone, but its head file is here: what was spent on these data "
            f"is no longer known. Restore it from its last copy."
        )
    return False


def _companions(path: Path) -> tuple[Path, Path]:
    """SQLite's write-ahead log and its index."""
    return path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None, timeout=BUSY_SECONDS
    )


@contextmanager
def transaction(connection: sqlite3.Connection, path: Path, *, write: bool) -> Iterator[None]:
    """All or nothing; a writer holds the lock from the start, so that no one spends in between.

    Raises:
        StorageError: a full disk, or a lock that others held too long; nothing was written.
        CorruptLedgerError: the file is damaged.
    """
    with own_errors(path):
        try:
            # Inside, so that an interrupt right after it leaves no transaction open.
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            yield
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def create_schema(connection: sqlite3.Connection, version: int = 0) -> None:
    """Write the tables, and the triggers that forbid UPDATE and DELETE, that `version` lacks."""
    for statement in _SCHEMAS[FORMAT][len(_SCHEMAS.get(version, ())) :]:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version={FORMAT}")


def schema_version(connection: sqlite3.Connection, path: Path) -> int:
    """The format of the ledger in the file, 0 if it holds nothing at all; inside a transaction.

    Raises:
        CorruptLedgerError: it holds something else, or tables or triggers were changed.
        LedgerError: a later version of this program wrote it.
    """
    found = [row[0] for row in connection.execute("SELECT sql FROM sqlite_master ORDER BY rowid")]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if not found and version == 0:
        return 0
    if version > FORMAT:
        raise LedgerError(f"Expected ledger format {FORMAT}, {path} has {version}; upgrade.")
    # An index that SQLite makes by itself for a primary key has no SQL.
    if version not in _SCHEMAS or sorted(filter(None, found)) != sorted(_SCHEMAS[version]):
        raise CorruptLedgerError(
            f"{path} does not have the tables and the append-only triggers of a ledger: it is "
            f"another database, or it was edited. Restore the ledger from its last copy."
        )
    return version
