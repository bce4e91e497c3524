"""Sums over all records, some at a time, which go on after an interrupt."""

import hashlib
import io
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import fedtranscribe
from fedtranscribe.data import ImageSet
from fedtranscribe.data.npz import read_arrays
from fedtranscribe.errors import DataError, StorageError
from fedtranscribe.files import write_atomically
from fedtranscribe.questions.question import Query
from fedtranscribe.results.progress import Progress, silent

log = logging.getLogger(__name__)

SEGMENT = 12_800
"""Records between two looks of what keeps a sum: a multiple of every block's size."""
PARTIAL_SUM = "sum-under-way.npz"
_BLOCK = 256


class RecordSums:
    """Adds up over a holder's records.

    Args:
        images: the holder's private records.
        scratch: the holder's own folder; without one, an interrupted sum begins again.
        progress: shows how far a long sum is.
        device: where features are computed.

    Guarantee:
        Every record is added once, with its own label and weight, whatever was interrupted: what
        lies in the folder is taken up only where it is the sum of this very query over these very
        first records, images, labels and weights, computed by the same code, on the same kind of
        processor and device, by as many threads. Of features the same arithmetic must also give the
        same bits for public images (`computed`): libraries choose their kernels by more than could
        be listed, and a hostile map can enlarge a last bit. That finds a difference almost surely;
        it is no proof. What is computed after them, a last bit moves by one unit of the lattice.
        Nothing lies there that has been answered, and never more than one sum. It is the holder's
        private data.
    """

    def __init__(
        self,
        images: ImageSet,
        scratch: Path | None = None,
        progress: Progress = silent,
        device: torch.device | None = None,
    ) -> None:
        self.images = images
        self.device = torch.device("cpu") if device is None else device
        self._path = None if scratch is None else scratch / PARTIAL_SUM
        self._room = True
        self._progress = progress

    @cached_property
    def weights(self) -> Tensor:
        """What each record weighs, int16 [n]; records of one id share one record's weight."""
        if self.images.positional:
            return torch.full((len(self.images),), FULL_WEIGHT, dtype=torch.int16)
        return id_weights(self.images.ids)

    def blocks(self, rows: range, size: int) -> Iterator[tuple[range, Tensor, Tensor]]:
        """Blocks of `size` records: which they are, their labels, and weights int64 [size].

        A short one is filled up with records of weight zero, so that everything about a record is
        computed in blocks of one shape, however many others there are.
        """
        for first in range(rows.start, rows.stop, size):
            picked = range(first, min(first + size, rows.stop))
            block = slice(picked.start, picked.stop)
            labels, weights = self.images.labels[block], self.weights[block].long()
            yield picked, _filled(labels, size), _filled(weights, size)

    def pixels(self, rows: range, size: int) -> Tensor:
        """Images of a block, uint8 [size, …]; a short one is filled up with black images."""
        return _filled(self.images.pixels[rows.start : rows.stop], size)

    def total(
        self,
        query: Query,
        part: Callable[[range], Tensor],
        computed: Callable[[], bytes] = bytes,
    ) -> Tensor:
        """Σ of `part` over all records, int64 [D].

        Args:
            query: what is asked; the part's values follow from it and from the records alone.
            part: the exact sum over some records.
            computed: what features and rows of public images are, if the part is about any.
        """
        n = len(self.images)
        if n <= SEGMENT:
            self._forget()
            return part(range(n))
        seen = _Seen(self, query, computed())
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
        try:
            if self._path is None or not self._path.is_file():
                return None, 0
            stored = read_arrays(self._path, ("sum", "records", "bound"))
            done, total = int(stored["records"].item()), torch.from_numpy(stored["sum"])
            bound = str(stored["bound"].item())
            if total.dtype != torch.int64 or total.ndim != 1:
                raise ValueError(total.dtype, total.shape)
        except OSError:  # `_keep` says so
            return None, 0
        except (DataError, KeyError, ValueError, TypeError, OverflowError):
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
        if self._path is None or not self._room:
            return
        content = io.BytesIO()
        np.savez(content, sum=total.numpy(), records=records, bound=seen.bound(total))
        try:
            write_atomically(self._path, content.getvalue())
        except StorageError as error:
            log.warning("An interrupt will cost this sum: %s", error)
            self._room = False

    def _forget(self) -> None:
        """Delete what was kept, and what is left of a write that was killed."""
        if self._path is None:
            return
        folder = self._path.parent
        try:
            if folder.is_dir():
                for file in (self._path, *folder.glob(f".{PARTIAL_SUM}.*")):
                    file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("Private sums may be left in %s: %s", folder, error.strerror)


def _filled(rows: Tensor, size: int) -> Tensor:
    """`rows` [b, …] with zeros behind them, [size, …]."""
    return torch.cat([rows, rows.new_zeros(size - len(rows), *rows.shape[1:])])


class _Seen:
    """A digest of what a sum was made of so far: the query, the records, the arithmetic."""

    def __init__(self, sums: RecordSums, query: Query, computed: bytes) -> None:
        self.query = query
        self._sums = sums
        self._computed = computed
        self.clear()

    def clear(self) -> None:
        """Nothing has been added up."""
        device = self._sums.device
        machine = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        machine += f" {torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()}"
        program = f"{_CODE} {torch.__version__} {machine}"
        self._digest = hashlib.blake2b(f"{self.query.digest()}\0{program}\0".encode())
        self._digest.update(self._computed)

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


def _code() -> str:
    """A digest of this package's files, for many commits share a version.

    Where they cannot be read it is random: another process takes nothing up.
    """
    digest = hashlib.blake2b(fedtranscribe.__version__.encode())
    try:
        found = Path(fedtranscribe.__file__).parent.rglob("*.py")
        files = sorted(path for path in found if path.is_file())
        for path in files:
            digest.update(path.read_bytes())
    except OSError:
        files = []
    return digest.hexdigest() if files else secrets.token_hex()


_CODE = _code()  # of what was imported, whatever is installed later


WEIGHT_BITS = 10
FULL_WEIGHT = 2**WEIGHT_BITS
"""What a person's records weigh together, at most."""


def count_ids(ids: Sequence[str]) -> int:
    """How many different ids there are, compared as `id_weights` does."""
    return len(np.unique(_digests(ids), axis=0))


def id_weights(ids: Sequence[str]) -> Tensor:
    """What each record weighs, int16 [n], in parts of `FULL_WEIGHT`.

    Guarantee:
        Weights of one id add up to `FULL_WEIGHT` at most, and depend on that id's own records
        alone: an equal share for each; of more than 1,024, the first 1,024 weigh one part each.
        Ids are compared by 128 bits of BLAKE2b, so that a million of them need little memory.
    """
    pairs = _digests(ids)
    order = np.lexsort(pairs.T)  # stable: records of one id keep their order
    first = np.ones(len(ids), dtype=bool)
    first[1:] = (pairs[order][1:] != pairs[order][:-1]).any(1)
    starts = np.flatnonzero(first)
    times = np.diff(starts, append=len(ids))
    place = np.arange(len(ids)) - np.repeat(starts, times)
    shares = np.repeat(FULL_WEIGHT // times, times)
    weights = np.empty(len(ids), np.int16)
    weights[order] = np.where(shares > 0, shares, place < FULL_WEIGHT)
    return torch.from_numpy(weights)


def _digests(ids: Sequence[str]) -> npt.NDArray[np.uint64]:
    """128 bits of BLAKE2b of each id, [n, 2]."""
    digests = np.empty(2 * len(ids), np.uint64)
    for number, record in enumerate(ids):
        digest = hashlib.blake2b(record.encode(errors="surrogatepass"), digest_size=16).digest()
        digests[2 * number : 2 * number + 2] = np.frombuffer(digest, np.uint64)
    return digests.reshape(-1, 2)
