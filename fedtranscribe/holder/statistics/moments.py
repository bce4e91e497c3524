"""Moments: sums over all records of their features and of products of these."""

import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError, ModelMismatchError
from fedtranscribe.mechanisms import (
    Mechanism,
    gaussian_mechanism,
    id_weights,
    moment_sums,
    moments_bound,
)
from fedtranscribe.models.scattering import Scattering, coefficient_count, unit_rows_of
from fedtranscribe.privacy.noise_plan import NoisePlan
from fedtranscribe.query import MOST_FEATURES, Kind, MomentsQuery, Scalar

# A multiple of what scattering takes together: wherever a record stands, it is rounded alike.
_BATCH = 200
_MOST_SCRATCH = 4 * 2**30
"""Bytes that coefficients may take on disk: those of 260,000 grey images of 28 pixels."""


class Moments:
    """Second moments of the records' features and, if asked, their sums by class.

    Args:
        images: the holder's private records.
        device: where to compute features.
        scratch: the holder's own folder, for the records' coefficients, so that the second question
            need not compute them again; without one, or where they do not fit, it does.

    Guarantee:
        The bound is that of `moments_bound`. Features of a record depend on the record and the
        public query alone: blocks of records always have one shape, because kernels round by it.
        Records of one id share one record's weight.
    """

    kind = Kind.MOMENTS

    def __init__(self, images: ImageSet, device: torch.device, scratch: Path | None = None) -> None:
        self._images = images
        self._device = device
        self._kept = None if scratch is None else self._room(scratch)
        self._blocks_kept = 0

    def expect(self, shapes: Mapping[str, tuple[int, ...]], terms: Mapping[str, Scalar]) -> int:
        """See `Statistic`."""
        raw = self._coefficients
        _, k = shapes["map"]
        if shapes != {"centre": (raw,), "map": (raw, k)} or not 1 <= k < MOST_FEATURES:
            raise ConfigError(f"Expected a centre [{raw}] and a map [{raw}, k], got {shapes}.")
        if terms.get("classes") not in (0, self._images.classes):
            raise ConfigError(f"Expected sums by {self._images.classes} classes.")
        return 1

    def check(self, query: MomentsQuery) -> None:
        """See `Statistic`."""
        raw, images = self._coefficients, self._images
        if len(query.centre) != raw:
            raise ModelMismatchError(
                f"Expected a centre of {raw} coefficients for images of {images.channels}x"
                f"{images.size}x{images.size}, got {len(query.centre)}."
            )
        if query.classes not in (0, self._images.classes):
            raise ModelMismatchError(
                f"Expected sums by {self._images.classes} classes, got {query.classes}."
            )

    def mechanism(self, query: MomentsQuery, plan: NoisePlan) -> Mechanism:
        """See `Statistic`."""
        return gaussian_mechanism(moments_bound(query.features, query.classes or None), plan)

    def values(self, query: MomentsQuery) -> Tensor:
        """See `Statistic`."""
        return moment_sums(self._blocks(query), query.features, query.classes or None)[None]

    @property
    def _coefficients(self) -> int:
        return coefficient_count(self._images.channels, self._images.size)

    @torch.no_grad()
    def _blocks(self, query: MomentsQuery) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, labels and weights, some records at a time."""
        scattering = Scattering().to(self._device)
        weights = id_weights(self._images.ids)
        centre, mapped = query.centre.to(self._device), query.map.to(self._device)
        for number, picked in enumerate(torch.arange(len(self._images)).split(_BATCH)):
            found = self._of_block(scattering, number, picked).to(self._device)
            # In float32; `moment_sums` bounds rows in float64, whatever they are.
            rows = unit_rows_of(found, centre, mapped)[: len(picked)]
            yield rows, self._images.labels[picked], weights[picked]

    def _of_block(self, scattering: Scattering, number: int, picked: Tensor) -> Tensor:
        """Coefficients [b, d] of a block, the last of which is filled with black images."""
        if self._kept is not None and number < self._blocks_kept:
            return torch.from_numpy(self._kept[number].copy())
        images = self._images.images[picked]
        filled = torch.cat([images, images.new_zeros(_BATCH - len(images), *images.shape[1:])])
        found = scattering(filled.to(self._device).float() / 255)
        if self._kept is not None and number == self._blocks_kept:
            self._kept[number] = found.cpu().numpy()
            self._blocks_kept += 1
        return found

    def _room(self, scratch: Path) -> NDArray[np.float32] | None:
        """Room for all coefficients in a file without a name, which is gone when the process is."""
        blocks = -(-len(self._images) // _BATCH)
        shape = (blocks, _BATCH, self._coefficients)
        size = 4 * math.prod(shape)
        try:
            scratch.mkdir(parents=True, exist_ok=True)
            if size > min(_MOST_SCRATCH, shutil.disk_usage(scratch).free // 2):
                return None
            with tempfile.TemporaryFile(dir=scratch) as file:
                return np.memmap(file, np.float32, "w+", shape=shape)
        except OSError:
            return None  # computed twice, then
