"""Images and ids that stay in their files and are read some at a time."""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtranscribe.data.npz import NpyFile
from fedtranscribe.data.validation import to_images
from fedtranscribe.errors import InvalidDataError

_GIB = 2**30
_IDS = 10_000  # read at a time


class StoredPixels:
    """Images in an `.npy` file of uint8, indexed like a tensor [n, channels, size, size].

    Args:
        file: uint8, in any layout of `to_images`.
        max_gib: most memory that `whole` may take, in GiB.
        rows: which of the file's images, in order; all, if not given.
    """

    dtype = torch.uint8

    def __init__(
        self, file: NpyFile, max_gib: float, rows: NDArray[np.integer] | None = None
    ) -> None:
        if file.dtype != np.uint8:
            raise InvalidDataError(
                f"Expected the images in {str(file.path)!r} as uint8, got {file.dtype}: only such "
                "images can stay in their file. Convert them, or use an .npz."
            )
        self._file, self._max_gib, self._rows = file, max_gib, rows
        empty = np.zeros((min(1, *file.shape[:1]), *file.shape[1:]), np.uint8)
        self._shape = tuple(to_images(empty, f"images in {str(file.path)!r}").shape[1:])

    def __len__(self) -> int:
        return self._file.shape[0] if self._rows is None else len(self._rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, channels, size, size)."""
        return (len(self), *self._shape)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Read some images, uint8 [b, channels, size, size]."""
        numbers = _numbers(rows, len(self))
        found = self._file.rows(numbers if self._rows is None else self._rows[numbers])
        return to_images(found, f"images in {str(self._file.path)!r}")

    def at(self, rows: Tensor) -> "StoredPixels":
        """Some of the images, which stay where they are."""
        return StoredPixels(self._file, self._max_gib, _chosen(rows, self._rows))

    def whole(self) -> Tensor:
        """All images, in memory."""
        size = len(self) * self._file.row_bytes
        if size > self._max_gib * _GIB:
            raise InvalidDataError(
                f"Expected the images of {str(self._file.path)!r} to take at most "
                f"{self._max_gib:g} GiB: teachers' trainings and diffusion models need all of "
                f"theirs in memory, here {size / _GIB:,.1f} GiB. Sums over records need no more "
                "than a few at a time; or raise --max-gib if this machine has as much."
            )
        return self[:]


class StoredIds(Sequence[str]):
    """Ids in an `.npy` file [n] or [n, 1] of strings or whole numbers.

    Args:
        file: the ids.
        rows: which of them, in order; all, if not given.
    """

    def __init__(self, file: NpyFile, rows: NDArray[np.integer] | None = None) -> None:
        self._file, self._rows = file, rows

    def __len__(self) -> int:
        return self._file.shape[0] if self._rows is None else len(self._rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        """One id, or some."""
        if isinstance(index, slice):
            return self._read(_numbers(index, len(self)))
        return self._read(np.array([range(len(self))[index]]))[0]

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), _IDS):
            yield from self[first : first + _IDS]

    def at(self, rows: Tensor) -> "StoredIds":
        """Some of the ids, which stay where they are."""
        return StoredIds(self._file, _chosen(rows, self._rows))

    def _read(self, numbers: NDArray[np.integer]) -> tuple[str, ...]:
        found = self._file.rows(numbers if self._rows is None else self._rows[numbers])
        return tuple(str(name) for name in found.ravel().tolist())


class RowNames(Sequence[str]):
    """`row-0`, `row-1`, …: what records are called where only their place is known."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        """One name, or some."""
        picked = range(self._count)[index]
        if isinstance(picked, int):
            return f"row-{picked}"
        return tuple(f"row-{i}" for i in picked)


def _numbers(rows: Tensor | slice, count: int) -> NDArray[np.integer]:
    if isinstance(rows, slice):
        picked = range(count)[rows]
        return np.arange(picked.start, picked.stop, picked.step)
    numbers = rows.flatten().cpu()
    if numbers.dtype is torch.bool:
        numbers = numbers.nonzero()[:, 0]
    return numbers.numpy()


def _chosen(rows: Tensor, among: NDArray[np.integer] | None) -> NDArray[np.integer]:
    """Row numbers of a file, in as few bytes as its length needs."""
    numbers = rows.numpy()
    chosen = numbers if among is None else among[numbers]
    return chosen.astype(np.min_scalar_type(int(chosen.max(initial=0))))
