"""Masked vectors of a round on disk, so that a thousand of them take no memory."""

from collections.abc import Iterator, Mapping, Sequence
from os import fsync
from pathlib import Path

from fedtranscribe.errors import StorageError
from fedtranscribe.files import unwritable


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
        """Store one more.

        Raises:
            StorageError: the file cannot be written.
        """
        try:
            self._path.touch()
            with self._path.open("r+b") as stream:
                stream.seek(self._places[name] * self._size)
                stream.write(vector)
        except OSError as error:
            raise unwritable(self._path, error) from None
        self._there.add(name)

    def sync(self) -> None:
        """Make what was stored durable.

        Raises:
            StorageError: it cannot be.
        """
        try:
            self._path.touch()
            with self._path.open("r+b") as stream:
                fsync(stream.fileno())
        except OSError as error:
            raise unwritable(self._path, error) from None

    def __getitem__(self, name: str) -> bytes:
        """A vector.

        Raises:
            KeyError: it was not stored.
            StorageError: the file has been damaged since.
        """
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
