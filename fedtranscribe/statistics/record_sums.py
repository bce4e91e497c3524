"""Sums over all records, some at a time, which an interrupted process goes on with.

A sum over records is exact (`mechanisms.moments`), so every number of it is the same however often
the process was stopped on the way. What was added up so far lies in the holder's own folder.
"""

import hashlib
import io
import logging
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedtranscribe.data import ImageSet
from fedtranscribe.data.npz import read_arrays
from fedtranscribe.errors import DataError, StorageError
from fedtranscribe.files import write_atomically
from fedtranscribe.mechanisms import id_weights
from fedtranscribe.mechanisms.moments import FULL_WEIGHT
from fedtranscribe.query import Query
from fedtranscribe.tracking import Progress, silent

log = logging.getLogger(__name__)

SEGMENT = 12_800
"""Records between two looks of what keeps a sum: a multiple of every block's size."""
KEPT = "sum-under-way.npz"
_BLOCK = 256


class RecordSums:
    """Adds up over a holder's records.

    Args:
        images: the holder's private records.
        scratch: the holder's own folder; without one, an interrupted sum begins again.
        progress: shows how far a long sum is.

    Guarantee:
        Every record is added once, with its own label and weight, whatever was interrupted: what
        lies in the folder is taken up only where it is the sum of this very query over these very
        first records, images, labels and weights, computed by this version on this kind of
        processor. Nothing lies there that has been answered, and never more than one sum. It is
        the holder's private data.
    """

    def __init__(
        self, images: ImageSet, scratch: Path | None = None, progress: Progress = silent
    ) -> None:
        self.images = images
        self._path = None if scratch is None else scratch / KEPT
        self._progress = progress

    @cached_property
    def weights(self) -> Tensor:
        """What each record weighs, int16 [n]; records of one id share one record's weight."""
        if self.images.positional:
            return torch.full((len(self.images),), FULL_WEIGHT, dtype=torch.int16)
        return id_weights(self.images.ids)

    def blocks(self, rows: range, size: int) -> Iterator[tuple[range, Tensor, Tensor]]:
        """Blocks of at most `size` records: their rows, labels int64 [b] and weights int64 [b]."""
        for first in range(rows.start, rows.stop, size):
            block = slice(first, min(first + size, rows.stop))
            yield (
                range(block.start, block.stop),
                self.images.labels[block],
                self.weights[block].long(),
            )

    def pixels(self, rows: range, size: int) -> Tensor:
        """Images of a block, uint8 [size, …]; a short one is filled up with black images."""
        images = self.images.pixels[rows.start : rows.stop]
        if len(images) == size:
            return images
        return torch.cat([images, images.new_zeros(size - len(images), *images.shape[1:])])

    def total(self, query: Query, part: Callable[[range], Tensor]) -> Tensor:
        """Σ of `part` over all records, int64 [D].

        Args:
            query: what is asked; the part's values follow from it and from the records alone.
            part: the exact sum over some records.
        """
        n = len(self.images)
        if n <= SEGMENT:
            return part(range(n))
        seen = _Seen(self, query)
        total, done = self._found(seen)
        for first in range(done, n, SEGMENT):
            rows = range(first, min(first + SEGMENT, n))
            found = part(rows)
            total = found if total is None else total + found
            if rows.stop < n:
                seen.add(rows)
                self._keep(seen, total, rows.stop)
            self._progress(f"records summed, {query.id.rpartition('/')[2]}", rows.stop, n)
        self._forget()
        assert total is not None
        return total

    def _found(self, seen: "_Seen") -> tuple[Tensor | None, int]:
        """The sum under way of this query, and over how many records it goes."""
        if self._path is None or not self._path.is_file():
            return None, 0
        try:
            kept = read_arrays(self._path, ("sum", "records", "bound"))
            done, total = int(kept["records"].item()), torch.from_numpy(kept["sum"])
            bound = str(kept["bound"].item())
        except (DataError, KeyError, ValueError, TypeError):
            log.warning("The sum under way in %s is damaged: it begins again.", self._path)
            return None, 0
        if not (0 < done < len(self.images) and done % SEGMENT == 0):
            return None, 0
        for first in range(0, done, SEGMENT):
            seen.add(range(first, first + SEGMENT))
        if bound != seen.bound(total):
            seen.clear()
            return None, 0
        log.info("going on with %s after %s records", seen.query.id, f"{done:,}")
        return total, done

    def _keep(self, seen: "_Seen", total: Tensor, records: int) -> None:
        if self._path is None:
            return
        content = io.BytesIO()
        np.savez(content, sum=total.numpy(), records=records, bound=seen.bound(total))
        try:
            write_atomically(self._path, content.getvalue())
        except StorageError as error:
            log.warning("An interrupt will cost this sum: %s", error)
            self._path = None

    def _forget(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)


class _Seen:
    """A digest of what a sum was made of so far: the query, the records, the program."""

    def __init__(self, sums: RecordSums, query: Query) -> None:
        self.query = query
        self._sums = sums
        self.clear()

    def clear(self) -> None:
        """Nothing has been added up."""
        processor = torch.backends.cpu.get_cpu_capability()
        program = f"{version('fedtranscribe')} {torch.__version__} {processor}"
        self._digest = hashlib.blake2b(f"{self.query.digest()}\0{program}\0".encode())

    def add(self, rows: range) -> None:
        """These records as well."""
        images, weights = self._sums.images, self._sums.weights
        for first in range(rows.start, rows.stop, _BLOCK):
            part = slice(first, min(first + _BLOCK, rows.stop))
            for content in (images.pixels[part], images.labels[part], weights[part]):
                self._digest.update(content.contiguous().numpy().data)

    def bound(self, total: Tensor) -> str:
        """What binds a sum to it all."""
        whole = self._digest.copy()
        whole.update(total.contiguous().numpy().data)
        return whole.hexdigest()
