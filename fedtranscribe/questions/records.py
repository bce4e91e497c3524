"""Sums over all records, some at a time, and rows of the records' features."""

import hashlib
import io
import logging
import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedtranscribe.data import ImageSet
from fedtranscribe.data.npz import read_arrays
from fedtranscribe.errors import ConfigError, DataError, ModelMismatchError, StorageError
from fedtranscribe.files import write_atomically
from fedtranscribe.models.backbones import NO_BACKBONES, Backbone, Backbones, FrozenBackbone
from fedtranscribe.models.fixed_features import (
    FIXED,
    coefficient_count,
    fixed_features,
    unit_rows_of,
)
from fedtranscribe.noise.exact_products import exact_product
from fedtranscribe.questions.question import FeaturesQuery, Query, Scalar
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
        first records, images, labels and weights, computed by this version on this kind of
        processor and device with so many threads, which is what rounding may depend on. Nothing
        lies there that has been answered, and never more than one sum. It is the holder's private
        data.
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
            stored = read_arrays(self._path, ("sum", "records", "bound"))
            done, total = int(stored["records"].item()), torch.from_numpy(stored["sum"])
            bound = str(stored["bound"].item())
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


def _filled(rows: Tensor, size: int) -> Tensor:
    """`rows` [b, …] with zeros behind them, [size, …]."""
    return torch.cat([rows, rows.new_zeros(size - len(rows), *rows.shape[1:])])


class _Seen:
    """A digest of what a sum was made of so far: the query, the records, the program."""

    def __init__(self, sums: RecordSums, query: Query) -> None:
        self.query = query
        self._sums = sums
        self.clear()

    def clear(self) -> None:
        """Nothing has been added up."""
        device = self._sums.device
        machine = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        machine += f" {torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()}"
        program = f"{version('fedtranscribe')} {torch.__version__} {machine}"
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


# A multiple of how many images features take at a time: a record is rounded alike everywhere.
BATCH = 200
"""Records of a block."""
SCRATCH_GIB = 4.0
"""What features may take on disk: those of 260,000 grey images of 28 pixels."""
_GIB = 2**30


def expect_labels(images: ImageSet, multilabel: Scalar | None) -> None:
    """Refuse a question about single labels where there may be several, and the other way round.

    Raises:
        ConfigError: says what the records have.
    """
    # A query says nothing of it, or true or false: the query itself refuses everything else.
    if bool(multilabel) != images.multilabel:
        raise ConfigError(f"Expected multilabel={images.multilabel}, as the records have labels.")


class RecordRows:
    """What every sum over features starts from: a row per record, with its label and weight.

    Args:
        sums: over the holder's private records.
        device: where to compute features.
        scratch: the holder's own folder, for features and the rows of the last query, so that
            the next one need not compute them again; without one, or where they do not fit, it
            does.
        backbones: public networks that the holder allows.
        scratch_gib: most that features may take in `scratch`, and rows as much again.

    Guarantee:
        The row of a record is a function of the record and the public query alone, wherever the
        record stands: features are computed in blocks of one shape, image by image or in kernels
        that treat all images alike, and mapped by `exact_product`. Records of one id share one
        record's weight; what fills up the last block weighs nothing.
    """

    def __init__(
        self,
        sums: RecordSums,
        device: torch.device,
        scratch: Path | None = None,
        backbones: Backbones = NO_BACKBONES,
        scratch_gib: float = SCRATCH_GIB,
    ) -> None:
        self.sums = sums
        self._most = scratch_gib * _GIB
        self._backbones = backbones
        self._device = device
        self._scratch = scratch
        self._network: tuple[str, nn.Module] | None = None
        self._raw: tuple[str, _Blocks] | None = None
        self._mapped: tuple[tuple[str, int], Tensor, Tensor, _Blocks] | None = None

    @property
    def images(self) -> ImageSet:
        """The records."""
        return self.sums.images

    def numbers(self, features: Scalar | None) -> int:
        """d, of an image's features.

        Raises:
            ConfigError: nobody here knows such features, or they are not allowed.
        """
        if not isinstance(features, str) or not self._allows(features):
            known = ", ".join((*FIXED, *self._backbones.names))
            raise ConfigError(f"Expected features={features!r} as one of {known}.")
        return coefficient_count(features, self.images.channels, self.images.size)

    def _allows(self, features: str) -> bool:
        backbone = Backbone.parse(features)
        return features in FIXED if backbone is None else self._backbones.allows(backbone)

    def check(self, query: FeaturesQuery) -> None:
        """Refuse a query about unknown features, or images of another size.

        Raises:
            ConfigError, ModelMismatchError: name both.
            ModelError: a backbone's file is not what it was when the holder allowed it.
        """
        images, numbers = self.images, self.numbers(query.features)
        if len(query.centre) != numbers:
            raise ModelMismatchError(
                f"Expected a centre of {numbers} numbers for the features {query.features} of "
                f"{images.channels}x{images.size}x{images.size} images, got {len(query.centre)}."
            )
        self._network_of(query.features)

    @torch.no_grad()
    def blocks(
        self, query: FeaturesQuery, records: range
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows float32 [b, entries] of norm one, labels as the set has them, weights int64 [b].

        b is always `BATCH`.

        Args:
            query: which rows.
            records: whose; from a multiple of `BATCH` on, so that blocks are always the same.
        """
        fixed = self._network_of(query.features)
        centre = query.centre.to(self._device).double()
        mapped = query.map.to(self._device).double()
        known = self._blocks_of(query)
        for picked, labels, weights in self.sums.blocks(records, BATCH):
            number = picked.start // BATCH
            rows = known.get(number)
            if rows is None:
                found = self._features_of(query, fixed, picked).to(self._device)
                doubles = found.double(), centre, mapped
                rows = unit_rows_of(*doubles, exact_product, products=query.products).float()
                known.keep(number, rows)
            yield rows, labels, weights

    def _network_of(self, features: str) -> nn.Module:
        """What computes features; weights are read before anything is charged, and once."""
        if self._network is None or self._network[0] != features:
            fixed = fixed_features(features, self.images.channels)
            if isinstance(fixed, FrozenBackbone):
                self._backbones.load(fixed)
            self._network = features, fixed.to(self._device)
        return self._network[1]

    def _blocks_of(self, query: FeaturesQuery) -> "_Blocks":
        """Where the rows of this query lie, if it maps records as the last one did."""
        last = self._mapped
        asked = query.features, query.products
        if last is None or not (
            asked == last[0]
            and torch.equal(query.centre, last[1])
            and torch.equal(query.map, last[2])
        ):
            room = self._room(query.entries)
            # Copies: whoever asked may go on with its tensors.
            last = self._mapped = asked, query.centre.clone(), query.map.clone(), room
        return last[3]

    def _features_of(self, query: FeaturesQuery, fixed: nn.Module, picked: range) -> Tensor:
        """Features [b, d] of a block, the last of which is filled with black images."""
        if self._raw is None or self._raw[0] != query.features:
            self._raw = query.features, self._room(len(query.centre))
        raw, number = self._raw[1], picked.start // BATCH
        found = raw.get(number)
        if found is None:
            # A public network's kernels may treat images of a batch differently.
            size = 1 if isinstance(fixed, FrozenBackbone) else BATCH
            pixels = self.sums.pixels(picked, BATCH).to(self._device).float() / 255
            found = torch.cat([fixed(part) for part in pixels.split(size)])
            raw.keep(number, found)
        return found

    def _room(self, width: int) -> "_Blocks":
        return _Blocks(self._scratch, -(-len(self.images) // BATCH), width, self._most)


class _Blocks:
    """Blocks of numbers in a file without a name, which is gone when the process is.

    It is written and read, not mapped: mapped pages count as memory, and a full disk would end the
    process.

    Args:
        scratch: a folder, or None.
        blocks: how many there will be.
        width: numbers per record.
        most: bytes that they may take; where they take more, none is kept.
    """

    def __init__(self, scratch: Path | None, blocks: int, width: int, most: float) -> None:
        self._shape = BATCH, width
        self._seen = np.zeros(blocks, dtype=bool)
        self._file: int | None = None
        try:
            if scratch is None:
                return
            scratch.mkdir(parents=True, exist_ok=True)
            if blocks * self._bytes > min(most, shutil.disk_usage(scratch).free // 2):
                return
            with tempfile.TemporaryFile(dir=scratch) as file:
                self._file = os.dup(file.fileno())
        except OSError:
            return  # computed again, then
        weakref.finalize(self, os.close, self._file)

    @property
    def _bytes(self) -> int:
        """Of a block."""
        return 4 * math.prod(self._shape)

    def get(self, number: int) -> Tensor | None:
        """A block that was kept."""
        if self._file is None or not self._seen[number]:
            return None
        content = bytearray(self._bytes)
        try:
            read = os.preadv(self._file, [content], number * self._bytes)
        except OSError:
            return None
        whole = read == self._bytes
        return torch.frombuffer(content, dtype=torch.float32).view(self._shape) if whole else None

    def keep(self, number: int, block: Tensor) -> None:
        """Keep a block, if there is room."""
        if self._file is None:
            return
        content = block.cpu().contiguous().numpy().data
        try:
            self._seen[number] = os.pwrite(self._file, content, number * self._bytes) == self._bytes
        except OSError:
            self._seen[number] = False


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
