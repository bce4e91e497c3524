"""Arrays out of an `.npz` file, which is not trusted: headers first, then memory.

Only the arrays that are asked for are read. Each header must agree with the size that its member
has in the file, and their sum with a limit, before anything is allocated.
"""

import math
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedtranscribe.data.npy_files import LONGEST_HEADER, read_header
from fedtranscribe.errors import DataNotFoundError, FedtranscribeError, InvalidDataError

Arrays = dict[str, NDArray[np.generic]]

MAX_GIB = 8.0
_GIB = 2**30


def read_arrays(path: Path, keys: Iterable[str], max_gib: float = MAX_GIB) -> Arrays:
    """Those of `keys` that an archive has; pickled objects are refused.

    Args:
        path: the archive.
        keys: the arrays that are wanted; all others stay unread.
        max_gib: most memory that these arrays may take together, in GiB.

    Raises:
        DataNotFoundError: no such file.
        InvalidDataError: it is not an archive of plain arrays, it is broken, or it is too large.
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
