"""What the server has heard in a masked round, kept on disk so that it can go on."""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import fsync
from pathlib import Path
from typing import Any, Self

from fedtranscribe import files
from fedtranscribe.errors import StorageError
from fedtranscribe.files import unwritable, write_atomically

Named = dict[str, bytes]

_MOST_BYTES = 2**30
"""Of a complete graph of a thousand holders; of a sparse one of ten thousand it is half."""


@dataclass
class RoundProgress:
    """What has been heard in a round."""

    query: str  # its id
    # what went to each neighbour, by sender and receiver; empty before stage 1 has ended
    sent: dict[str, Named] = field(default_factory=dict)
    # whose masked vectors are stored, in a file of their own
    vectors: list[str] = field(default_factory=list)
    tags: dict[str, Named] = field(default_factory=dict)  # by holder and neighbour
    # whose vectors make the sum; empty before they were sent out for signature
    survivors: list[str] = field(default_factory=list)
    signatures: Named = field(default_factory=dict)  # by holder
    revealed: dict[str, Named] = field(default_factory=dict)  # shares by holder and owner

    def save(self, path: Path) -> None:
        """Keep it, in place of whatever was there."""
        packed = {name: _packed(value) for name, value in vars(self).items()}
        write_atomically(path, json.dumps(packed).encode())

    @classmethod
    def load(cls, path: Path, query_id: str) -> Self | None:
        """What is kept of this query's round; None if nothing is."""
        if not path.exists():
            return None
        packed = read_json(path)
        if packed.get("query") != query_id:
            return None
        try:
            by_pair = {
                part: {name: _unpacked(each) for name, each in packed[part].items()}
                for part in ("sent", "tags", "revealed")
            }
            return cls(
                query_id,
                vectors=list(packed["vectors"]),
                survivors=packed["survivors"],
                signatures=_unpacked(packed["signatures"]),
                **by_pair,
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise of_another_version(path) from None


def of_another_version(path: Path) -> StorageError:
    """The error for a file of the server's own that this version did not write."""
    return StorageError(
        f"{path} was written by another version of fedtranscribe; finish the run with that "
        "version, or start a new run with another --out. The ledgers keep what was spent."
    )


def read_json(path: Path) -> dict[str, Any]:
    """A file of the server's own."""
    try:
        return files.read_json(path, _MOST_BYTES)
    except (OSError, ValueError) as error:
        raise StorageError(
            f"{path} is damaged ({type(error).__name__}); start a new run with another --out. The "
            "ledgers keep what was spent."
        ) from None


def _packed(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, dict):
        return {name: _packed(entry) for name, entry in value.items()}
    return value


def _unpacked(packed: dict[str, str]) -> Named:
    return {name: b64decode(text) for name, text in packed.items()}


class VectorFile(Mapping[str, bytes]):
    """Vectors of one size by holder, each at its own place of one file.

    Args:
        path: the file.
        names: of all holders, in the order of their places.
        size: of a vector, in bytes.
        there: whose vectors have been stored.
    """

    def __init__(self, path: Path, names: Sequence[str], size: int, there: Sequence[str]) -> None:
        self._path = path
        self._places = {name: place for place, name in enumerate(names)}
        self._size = size
        self._there = set(there)

    def put(self, name: str, vector: bytes) -> None:
        """Store one more."""
        try:
            self._path.touch()
            with self._path.open("r+b") as stream:
                stream.seek(self._places[name] * self._size)
                stream.write(vector)
        except OSError as error:
            raise unwritable(self._path, error) from None
        self._there.add(name)

    def sync(self) -> None:
        """Make what was stored durable."""
        try:
            self._path.touch()
            with self._path.open("r+b") as stream:
                fsync(stream.fileno())
        except OSError as error:
            raise unwritable(self._path, error) from None

    def __getitem__(self, name: str) -> bytes:
        """A vector."""
        if name not in self._there:
            raise KeyError(name)
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._places[name] * self._size)
                vector = stream.read(self._size)
        except OSError as error:
            raise StorageError(f"Cannot read {self._path}: {error.strerror}.") from None
        if len(vector) != self._size:
            raise StorageError(
                f"{self._path} is damaged; give the round up with abandon=true, or start a new run."
            )
        return vector

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._there))

    def __len__(self) -> int:
        return len(self._there)
