"""Rows of the records' features, which the sums of a student start from."""

import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError, ModelMismatchError
from fedtranscribe.models.backbones import NO_BACKBONES, Backbone, Backbones, FrozenBackbone
from fedtranscribe.models.fixed_features import (
    FIXED,
    coefficient_count,
    fixed_features,
    unit_rows_of,
)
from fedtranscribe.noise.exact_products import exact_product
from fedtranscribe.questions.question import FeaturesQuery, Scalar
from fedtranscribe.questions.records import RecordSums

# A multiple of how many images features take at a time: a record is rounded alike everywhere.
BATCH = 200
"""Records of a block."""
_PUBLIC = 8  # images that show how a public network's features are rounded
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
        that treat all images alike, and mapped by `exact_product`. What was computed with another
        number of threads, and may be rounded otherwise, is not used again. Records of one id share
        one record's weight; what fills up the last block weighs nothing.

    Raises:
        ConfigError: OMP_DYNAMIC lets the number of threads change within a sum.
    """

    def __init__(
        self,
        sums: RecordSums,
        device: torch.device,
        scratch: Path | None = None,
        backbones: Backbones = NO_BACKBONES,
        scratch_gib: float = SCRATCH_GIB,
    ) -> None:
        if os.environ.get("OMP_DYNAMIC", "").strip().lower() in ("true", "1"):
            raise ConfigError(
                f"Expected OMP_DYNAMIC={os.environ['OMP_DYNAMIC']} as false, or not set: with it "
                "the number of threads, and so how a record is rounded, follows the machine's load."
            )
        self.sums = sums
        self._most = scratch_gib * _GIB
        self._backbones = backbones
        self._device = device
        self._scratch = scratch
        self._network: tuple[str, nn.Module] | None = None
        self._threads = 0
        self._raw: _Blocks | None = None
        self._public: Tensor | None = None
        self._mapped: tuple[int, Tensor, Tensor, _Blocks] | None = None

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

    def total(self, query: FeaturesQuery, part: Callable[[range], Tensor]) -> Tensor:
        """`RecordSums.total` of a part that adds up `blocks`."""
        return self.sums.total(query, part, lambda: self._computed(query))

    @torch.no_grad()
    def _computed(self, query: FeaturesQuery) -> bytes:
        """Features and rows of fixed public images, bit by bit."""
        fixed = self._network_of(query.features)
        if self._public is None:
            count = _PUBLIC if isinstance(fixed, FrozenBackbone) else BATCH
            shape = count, self.images.channels, self.images.size, self.images.size
            drawn = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
            self._public = self._compute(fixed, torch.from_numpy(drawn))
        rows = _rows_of(self._public, *self._mapping(query), query.products)
        return b"".join(found.double().cpu().numpy().tobytes() for found in (self._public, rows))

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
        mapping = self._mapping(query)
        # Held from here on: another query may take their places before this one is through.
        raw, known = self._features_kept(query), self._rows_kept(query)
        for picked, labels, weights in self.sums.blocks(records, BATCH):
            number = picked.start // BATCH
            rows = known.get(number)
            if rows is None:
                found = raw.get(number)
                if found is None:
                    found = self._compute(fixed, self.sums.pixels(picked, BATCH))
                    raw.keep(number, found)
                rows = _rows_of(found.to(self._device), *mapping, query.products)
                known.keep(number, rows)
            yield rows, labels, weights

    def _mapping(self, query: FeaturesQuery) -> tuple[Tensor, Tensor]:
        """The query's centre and map, where features are computed."""
        return query.centre.to(self._device).double(), query.map.to(self._device).double()

    def _network_of(self, features: str) -> nn.Module:
        """What computes features; weights are read before anything is charged, and once."""
        if self._network is None or self._network[0] != features:
            fixed = fixed_features(features, self.images.channels)
            if isinstance(fixed, FrozenBackbone):
                self._backbones.load(fixed)
            self._network = features, fixed.to(self._device)
            self._threads = 0
        if self._threads != (threads := torch.get_num_threads()):
            self._threads = threads
            self._raw = self._public = self._mapped = None
        return self._network[1]

    def _rows_kept(self, query: FeaturesQuery) -> "_Blocks":
        """Where the rows of this query lie, if it maps records as the last one did."""
        last = self._mapped
        if last is None or not (
            query.products == last[0]
            and torch.equal(query.centre, last[1])
            and torch.equal(query.map, last[2])
        ):
            room = self._room(query.entries)
            # Copies: whoever asked may go on with its tensors.
            last = self._mapped = query.products, query.centre.clone(), query.map.clone(), room
        return last[3]

    def _features_kept(self, query: FeaturesQuery) -> "_Blocks":
        """Where features lie; `_network_of` has emptied the place for another network."""
        if self._raw is None:
            self._raw = self._room(len(query.centre))
        return self._raw

    def _compute(self, fixed: nn.Module, pixels: Tensor) -> Tensor:
        """Features [b, d] of images uint8 [b, …]."""
        # A public network's kernels may treat images of a batch differently.
        size = 1 if isinstance(fixed, FrozenBackbone) else BATCH
        shares = pixels.to(self._device).float() / 255
        return torch.cat([fixed(part) for part in shares.split(size)])

    def _room(self, width: int) -> "_Blocks":
        return _Blocks(self._scratch, -(-len(self.images) // BATCH), width, self._most)


def _rows_of(features: Tensor, centre: Tensor, mapped: Tensor, products: int) -> Tensor:
    """Rows float32 of features, a function of each alone."""
    doubles = features.double(), centre, mapped
    return unit_rows_of(*doubles, exact_product, products=products).float()


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
