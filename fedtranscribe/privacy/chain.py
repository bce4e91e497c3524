"""The hash chain of a ledger's entries, the copy of its head, and what must hold of its rows."""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import rfc8785

from fedtranscribe.errors import CorruptLedgerError, StorageError
from fedtranscribe.files import open_private, read_json

GENESIS = "0" * 64
"""What stands for the previous hash in the first entry."""


class EntryKind(StrEnum):
    """What an entry records."""

    CREATED = "created"
    BUDGET = "budget"
    RESERVE = "reserve"
    COMMIT = "commit"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class Head:
    """The last entry's place and hash; it fixes the whole history before it."""

    sequence: int
    hash: str


@dataclass(frozen=True)
class Entry:
    """One line of the book; a field that a kind does not need is empty.

    Attributes:
        sequence: 1, 2, 3, ... without a gap.
        time: UTC, ISO 8601 with microseconds.
        kind: a value of `EntryKind`.
        run: the run that asked (`reserve`, `commit`).
        query_id: the query (`reserve`, `commit`).
        query_hash: the hash that the query id is bound to (`reserve`).
        content: canonical JSON. `created`: data id and format; `budget`: the limit from now on;
            `reserve`: the release that is charged; `commit`: SHA-256 and length of the answer;
            `checkpoint`: the same of the totals, and whether the whole book was proved before.
        previous: hash of the entry before, `GENESIS` in the first.
        hash: of all the above.
    """

    sequence: int
    time: str
    kind: str
    run: str
    query_id: str
    query_hash: str
    content: str
    previous: str
    hash: str

    @classmethod
    def after(cls, head: Head, **fields: str) -> "Entry":
        """The entry that follows `head`; `fields` are all columns but sequence and hashes."""
        body: dict[str, Any] = {"sequence": head.sequence + 1, "previous": head.hash} | fields
        return cls(**body, hash=_digest(body))

    @property
    def head(self) -> Head:
        """The head of a chain that ends here."""
        return Head(self.sequence, self.hash)

    def intact(self) -> bool:
        """Whether the stored hash is that of the stored columns."""
        body = dict(vars(self))
        stored = body.pop("hash")
        try:
            return _digest(body) == stored
        except rfc8785.CanonicalizationError:  # a column that now holds bytes or nothing
            return False


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(body)).hexdigest()


def canonical(value: Any) -> bytes:
    """Canonical JSON (RFC 8785): equal values give equal bytes."""
    return rfc8785.dumps(value)


START = Head(0, GENESIS)
"""The head of an empty chain."""


def seal(content: bytes) -> dict[str, Any]:
    """What an entry keeps of a content that is stored beside the chain: it fixes all of it."""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def walk(entries: Iterable[Entry], head: Head = START) -> Iterator[Entry]:
    """Pass entries on, each only after it is proved to follow the one before; `head` is the first.

    Raises:
        CorruptLedgerError: naming the first sequence that does not fit.
    """
    for entry in entries:
        if entry.sequence != head.sequence + 1:
            raise CorruptLedgerError(
                f"Expected ledger entry {head.sequence + 1} after {head.sequence}, found "
                f"{entry.sequence}: entries were removed. Restore the ledger from its last copy."
            )
        if entry.previous != head.hash or not entry.intact():
            raise changed(entry)
        head = entry.head
        yield entry


def changed(entry: Entry) -> CorruptLedgerError:
    """The error about an entry that is not the one that was written there."""
    return CorruptLedgerError(
        f"Ledger entry {entry.sequence} does not have the hash it was written with: "
        f"it was changed. Restore the ledger from its last copy."
    )


def head_path(ledger: Path) -> Path:
    """Where the head of the ledger at `ledger` is kept: `<ledger>.head`."""
    return ledger.with_name(ledger.name + ".head")


def read_head(ledger: Path) -> Head | None:
    """The head file's content; None if there is no such file.

    Raises:
        CorruptLedgerError: the file is there but is no head.
        StorageError: it cannot be read.
    """
    path = head_path(ledger)
    try:
        content = read_json(path)
        sequence, digest = content["sequence"], content["hash"]
        if type(sequence) is not int or type(digest) is not str or sequence < 1:
            raise TypeError
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"Cannot read the ledger head {path}: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptLedgerError(
            f"{path} is not a ledger head. Restore it from a copy, or write the head that came "
            f'with the last answer into it as {{"sequence": …, "hash": "…"}}.'
        ) from error
    return Head(sequence, digest)


def write_head(ledger: Path, head: Head) -> None:
    """Replace the head file so that a crash leaves the old or the new one, never a torn one.

    Only one process at a time may call this for one ledger.

    Raises:
        StorageError: a full disk or a folder that cannot be written; the old file stays.
    """
    path = head_path(ledger)
    draft = path.with_name(path.name + ".new")
    try:
        with os.fdopen(open_private(draft, os.O_WRONLY | os.O_TRUNC), "wb") as file:
            file.write(canonical(asdict(head)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise StorageError(
            f"Cannot write the ledger head {path}: {error.strerror}. "
            f"Free space or make the folder writable; nothing was answered."
        ) from error


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable where the system can (not on Windows)."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
