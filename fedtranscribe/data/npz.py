"""Arrays out of `.npz` and `.npy` files, which are not trusted: headers first, then rows."""

import io
import math
import os
import weakref
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedtranscribe.errors import DataNotFoundError, FedtranscribeError, InvalidDataError

LONGEST_HEADER = 10_000
"""Bytes; headers of plain arrays take some hundred."""
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# Reading over a gap of this size costs less than a second request.
_GAP_BYTES = 2**16
_MOST_BYTES = 2**24


class NpyHeader(NamedTuple):
    """What the start of an `.npy` file says."""

    shape: tuple[int, ...]  # of the array
    by_column: bool  # whether it is in Fortran order
    dtype: np.dtype[np.generic]  # of its elements
    start: int  # bytes before the first element


def read_header(content: bytes) -> NpyHeader:
    """The header in the first `LONGEST_HEADER` bytes of a file."""
    stream = io.BytesIO(content)
    version = npy.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(version)
    shape, by_column, dtype = _HEADERS[version](stream)
    return NpyHeader(shape, by_column, dtype, stream.tell())


class NpyFile:
    """An array in an open `.npy` file, of which any rows can be read.

    Args:
        path: the file.

    Attributes:
        path: the file.
        shape: of the array.
        dtype: of its elements.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # A pipe or a device might never answer.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            raise DataNotFoundError(f"No file {str(path)!r}; check the path.") from None
        except OSError as error:
            raise self._refused(f"cannot be opened ({error.strerror})") from None
        weakref.finalize(self, os.close, self._descriptor)
        stated = os.fstat(self._descriptor)
        if not S_ISREG(stated.st_mode):
            raise self._refused("is no regular file")
        try:
            header = read_header(os.pread(self._descriptor, LONGEST_HEADER, 0))
        except Exception as error:  # numpy raises many kinds for a hostile file
            raise self._refused(
                f"cannot be read as one .npy array ({type(error).__name__})"
            ) from error
        self.shape, by_column, self.dtype, self._start = header
        if self.dtype.hasobject:
            raise self._refused("holds Python objects", "write plain values")
        if by_column and len(self.shape) > 1:
            raise self._refused("is in Fortran order", "write np.ascontiguousarray(array)")
        held = stated.st_size - self._start
        size = math.prod(self.shape) * self.dtype.itemsize
        if min(self.shape, default=0) < 0 or size != held or (not size and math.prod(self.shape)):
            raise self._refused(
                f"claims to hold {self.dtype} {self.shape}, {size:,} bytes, and has {held:,}"
            )

    @property
    def row_bytes(self) -> int:
        """What a row takes."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        """What the array takes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def whole(self) -> NDArray[np.generic]:
        """The array; mind its size first."""
        if not self.shape:
            return self._read(0, self.dtype.itemsize).reshape(())
        return self.rows(np.arange(self.shape[0]))

    def rows(self, numbers: NDArray[np.integer]) -> NDArray[np.generic]:
        """Some rows, in the order of `numbers`."""
        found = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        order = np.argsort(numbers, kind="stable")
        ascending = numbers[order].astype(np.int64)
        for run in self._runs(ascending):
            first, last = int(ascending[run.start]), int(ascending[run.stop - 1])
            size = self.row_bytes
            read = self._read(first * size, (last + 1 - first) * size)
            here = slice(run.start, run.stop)
            found[order[here]] = read.reshape(-1, *self.shape[1:])[ascending[here] - first]
        return found

    def _runs(self, ascending: NDArray[np.int64]) -> list[range]:
        """Rows that are read at once: near to each other, and not too many."""
        near = max(1, _GAP_BYTES // max(1, self.row_bytes))
        most = max(1, _MOST_BYTES // max(1, self.row_bytes))
        cuts = np.flatnonzero(np.diff(ascending) > near) + 1
        ends = np.union1d(cuts, np.arange(most, len(ascending), most))
        edges = [0, *ends.tolist(), len(ascending)]
        return [range(a, b) for a, b in pairwise(edges) if a < b]

    def _read(self, start: int, size: int) -> NDArray[np.generic]:
        try:
            content = os.pread(self._descriptor, size, self._start + start)
        except OSError as error:
            raise self._refused(f"cannot be read ({error.strerror})") from None
        if len(content) != size:
            raise self._refused("became shorter while it was read")
        return np.frombuffer(content, self.dtype)

    def _refused(self, why: str, fix: str = "write it with np.save") -> InvalidDataError:
        return InvalidDataError(f"The file {str(self.path)!r} {why}; {fix}.")


Arrays = dict[str, NDArray[np.generic]]

MAX_GIB = 8.0
_GIB = 2**30


def read_arrays(path: Path, keys: Iterable[str], max_gib: float = MAX_GIB) -> Arrays:
    """Those of `keys` that an archive has; pickled objects are refused.

    Args:
        path: the archive.
        keys: the arrays that are wanted; all others stay unread.
        max_gib: most memory that these arrays may take together, in GiB.
    """
    with _opened(path) as archive:
        there = [key for key in keys if f"{key}.npy" in archive.namelist()]
        size = sum(_declared_bytes(archive, key, path) for key in there)
        if size > max_gib * _GIB:
            raise InvalidDataError(
                f"Expected the arrays of {str(path)!r} to take at most {max_gib:g} GiB of memory, "
                f"they take {size / _GIB:,.1f}; raise --max-gib if this machine has as much."
            )
        return {key: _read(archive, key) for key in there}


def keys_of(path: Path) -> list[str]:
    """Names of an archive's arrays, without reading them; raises like `read_arrays`."""
    with _opened(path) as archive:
        names = archive.namelist()
    return [name.removesuffix(".npy") for name in names if name.endswith(".npy")]


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    # Also keeps away from pipes and devices, which might never answer.
    if not path.is_file():
        raise DataNotFoundError(f"No file {str(path)!r}; check the path.")
    try:
        with path.open("rb") as stream:
            if stream.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
                raise InvalidDataError(f"Expected an .npz archive, got one array: {str(path)!r}.")
            with zipfile.ZipFile(stream) as archive:
                yield archive
    except FedtranscribeError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise many kinds for a hostile file
        raise InvalidDataError(
            f"Cannot read {str(path)!r} as .npz of plain arrays ({type(error).__name__})."
        ) from error


def _declared_bytes(archive: zipfile.ZipFile, key: str, path: Path) -> int:
    """Memory that an array will take, by its header; refused unless the file agrees."""
    member = archive.getinfo(f"{key}.npy")
    with archive.open(member) as stream:
        shape, _, dtype, start = read_header(stream.read(LONGEST_HEADER))
    if dtype.hasobject:
        raise InvalidDataError(
            f"Expected .npz of plain arrays, {key!r} in {str(path)!r} holds Python objects."
        )
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size != member.file_size - start:
        raise InvalidDataError(
            f"The header of {key!r} in {str(path)!r} claims {size:,} bytes, the archive holds "
            f"{member.file_size - start:,}; write the file again."
        )
    # Elements of no size take no memory until somebody lists them.
    return max(size, math.prod(shape))


def _read(archive: zipfile.ZipFile, key: str) -> NDArray[np.generic]:
    with archive.open(f"{key}.npy") as stream:
        return npy.read_array(stream, allow_pickle=False)
