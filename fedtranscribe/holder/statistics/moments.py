"""Moments: sums over all records of their features and of products of these."""

from collections import Counter
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError, ModelMismatchError
from fedtranscribe.mechanisms import Mechanism, gaussian_mechanism, moment_sums, moments_bound
from fedtranscribe.models.scattering import Scattering, coefficient_count, unit_rows_of
from fedtranscribe.privacy.noise_plan import NoisePlan
from fedtranscribe.query import MOST_FEATURES, Kind, MomentsQuery, Scalar

_BATCH = 200


class Moments:
    """Second moments of the records' features and, if asked, their sums by class.

    Args:
        images: the holder's private records.
        device: where to compute features.

    Guarantee:
        The bound is that of `moments_bound`. Features of a record depend on the record and the
        public query alone: blocks of records always have one shape, because kernels round by it.
        Records of one id share one record's weight.
    """

    kind = Kind.MOMENTS

    def __init__(self, images: ImageSet, device: torch.device) -> None:
        self._images = images
        self._device = device

    def expect(self, shapes: Mapping[str, tuple[int, ...]], terms: Mapping[str, Scalar]) -> int:
        """See `Statistic`."""
        raw = self._coefficients
        _, k = shapes["map"]
        if shapes != {"centre": (raw,), "map": (raw, k)} or not 1 <= k < MOST_FEATURES:
            raise ConfigError(f"Expected a centre [{raw}] and a map [{raw}, k], got {shapes}.")
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
        sums = moment_sums(self._blocks(query), query.features, query.classes or None)
        return sums.to_vector()[None]

    @property
    def _coefficients(self) -> int:
        return coefficient_count(self._images.channels, self._images.size)

    @torch.no_grad()
    def _blocks(self, query: MomentsQuery) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, labels and weights, some records at a time; the last block is filled with zeros."""
        scattering = Scattering().to(self._device)
        times = Counter(self._images.ids)
        weights = torch.tensor([1 / times[i] for i in self._images.ids], dtype=torch.float64)
        centre, mapped = query.centre.to(self._device), query.map.to(self._device)
        for picked in torch.arange(len(self._images)).split(_BATCH):
            images = self._images.images[picked]
            filled = torch.cat([images, images.new_zeros(_BATCH - len(images), *images.shape[1:])])
            pixels = filled.to(self._device).float() / 255
            # In float32; `moment_sums` bounds rows in float64, whatever they are.
            rows = unit_rows_of(scattering(pixels), centre, mapped)[: len(images)]
            yield rows, self._images.labels[picked], weights[picked]
