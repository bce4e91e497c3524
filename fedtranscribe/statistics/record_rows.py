"""Rows of the records' features, some records at a time, computed once where a disk has room."""

import math
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError, ModelMismatchError
from fedtranscribe.mechanisms import exact_product, id_weights
from fedtranscribe.models.backbones import NO_BACKBONES, Backbone, Backbones, FrozenBackbone
from fedtranscribe.models.fixed_features import (
    FIXED,
    coefficient_count,
    fixed_features,
    unit_rows_of,
)
from fedtranscribe.query import FeaturesQuery, Scalar

# A multiple of how many images features take at a time: a record is rounded alike everywhere.
BATCH = 200
"""Records of a block."""
_MOST_SCRATCH = 4 * 2**30
"""Bytes that features may take on disk: those of 260,000 grey images of 28 pixels."""


class RecordRows:
    """What every sum over features starts from: a row per record, with its label and weight.

    Args:
        images: the holder's private records.
        device: where to compute features.
        scratch: the holder's own folder, for features and the rows of the last query, so that
            the next one need not compute them again; without one, or where they do not fit, it
            does.
        backbones: public networks that the holder allows.

    Guarantee:
        The row of a record is a function of the record and the public query alone, wherever the
        record stands: features are computed in blocks of one shape, image by image or in kernels
        that treat all images alike, and mapped by `exact_product`. Whoever computes more from the
        rows of a shorter, last block has to mind that, too. Records of one id share one record's
        weight.
    """

    def __init__(
        self,
        images: ImageSet,
        device: torch.device,
        scratch: Path | None = None,
        backbones: Backbones = NO_BACKBONES,
    ) -> None:
        self.images = images
        self._backbones = backbones
        self._device = device
        self._scratch = scratch
        self._network: tuple[str, nn.Module] | None = None
        self._raw: tuple[str, _Blocks] | None = None
        self._mapped: tuple[str, Tensor, Tensor, _Blocks] | None = None

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
    def blocks(self, query: FeaturesQuery) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows float32 [b, k + 1] of norm one, labels int64 [b] and weights int64 [b]."""
        fixed = self._network_of(query.features)
        weights = id_weights(self.images.ids)
        centre = query.centre.to(self._device).double()
        mapped = query.map.to(self._device).double()
        known = self._blocks_of(query)
        for number, picked in enumerate(torch.arange(len(self.images)).split(BATCH)):
            rows = known.get(number)
            if rows is None:
                found = self._features_of(query, fixed, number, picked).to(self._device)
                rows = unit_rows_of(found.double(), centre, mapped, exact_product).float()
                known.keep(number, rows)
            yield rows[: len(picked)], self.images.labels[picked], weights[picked]

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
        if last is None or not (
            query.features == last[0]
            and torch.equal(query.centre, last[1])
            and torch.equal(query.map, last[2])
        ):
            room = _Blocks.of(self._scratch, self.images, query.entries)
            # Copies: whoever asked may go on with its tensors.
            last = self._mapped = query.features, query.centre.clone(), query.map.clone(), room
        return last[3]

    def _features_of(
        self, query: FeaturesQuery, fixed: nn.Module, number: int, picked: Tensor
    ) -> Tensor:
        """Features [b, d] of a block, the last of which is filled with black images."""
        if self._raw is None or self._raw[0] != query.features:
            room = _Blocks.of(self._scratch, self.images, len(query.centre))
            self._raw = query.features, room
        raw = self._raw[1]
        found = raw.get(number)
        if found is None:
            images = self.images.images[picked]
            filled = torch.cat([images, images.new_zeros(BATCH - len(images), *images.shape[1:])])
            # A public network's kernels may treat images of a batch differently.
            size = 1 if isinstance(fixed, FrozenBackbone) else BATCH
            shown = filled.to(self._device).float() / 255
            found = torch.cat([fixed(part) for part in shown.split(size)])
            raw.keep(number, found)
        return found


class _Blocks:
    """Blocks of numbers in a file without a name, which is gone when the process is."""

    def __init__(self, room: NDArray[np.float32] | None) -> None:
        self._room = room
        self._kept = 0

    @classmethod
    def of(cls, scratch: Path | None, images: ImageSet, width: int) -> "_Blocks":
        """Room for so many numbers per record; none where there is no place for them."""
        shape = (-(-len(images) // BATCH), BATCH, width)
        size = 4 * math.prod(shape)
        try:
            if scratch is None:
                return cls(None)
            scratch.mkdir(parents=True, exist_ok=True)
            if size > min(_MOST_SCRATCH, shutil.disk_usage(scratch).free // 2):
                return cls(None)
            with tempfile.TemporaryFile(dir=scratch) as file:
                return cls(np.memmap(file, np.float32, "w+", shape=shape))
        except OSError:
            return cls(None)  # computed again, then

    def get(self, number: int) -> Tensor | None:
        """A block that was kept."""
        if self._room is None or number >= self._kept:
            return None
        return torch.from_numpy(self._room[number].copy())

    def keep(self, number: int, block: Tensor) -> None:
        """The next block, if there is room."""
        if self._room is not None and number == self._kept:
            self._room[number] = block.cpu().numpy()
            self._kept += 1
