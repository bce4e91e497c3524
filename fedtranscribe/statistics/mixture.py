"""Mixture: second moments of the records' low frequencies, block by block, and squares beside."""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError, ModelMismatchError
from fedtranscribe.mechanisms import (
    Bound,
    Mechanism,
    block_products,
    clip_rows,
    exact_product,
    gaussian_mechanism,
    mixture_bound,
    square_sums,
)
from fedtranscribe.mechanisms.blocks import triangle_length
from fedtranscribe.mechanisms.moments import lattice_rows
from fedtranscribe.models.frequencies import frequencies, frequency_count
from fedtranscribe.privacy.noise_plan import NoisePlan
from fedtranscribe.query import CONSTANT, MOST_CUTS, MOST_NUMBERS, Kind, MixtureQuery, Scalar
from fedtranscribe.statistics.record_sums import RecordSums

_BATCH = 256


class Mixture:
    """Sums over the records that show a mixture of Gaussians, one question after the other.

    Args:
        images: the holder's private records.
        sums: over these records, where other sums share it.

    Guarantee:
        The bounds are those of `products_bound` and `squares_bound`. A row, and the block that it
        adds to, depend on the record, its label and the public query alone: all products are exact
        (`frequencies`, `exact_product`, `blocks_of`), the rest is done row by row. Records of one
        id share one record's weight.
    """

    kind = Kind.MIXTURE

    def __init__(self, images: ImageSet, sums: RecordSums | None = None) -> None:
        self._images = images
        self._sums = sums or RecordSums(images)

    def expect(self, shapes: Mapping[str, tuple[int, ...]], terms: Mapping[str, Scalar]) -> int:
        """See `Statistic`."""
        d = self._frequencies
        _, k = shapes["map"]
        classes, cuts, _ = shapes["cuts"]
        allowed = {"centre": (d,), "map": (d, k), "cuts": (classes, cuts, k + 1)}
        if shapes != allowed or classes not in (0, self._images.classes):
            raise ConfigError(
                f"Expected a centre [{d}], a map [{d}, k] and cuts [{self._images.classes}, j, "
                f"k + 1], got {shapes}."
            )
        # An array of no classes takes no bytes, whatever else it claims.
        if cuts > (MOST_CUTS if classes else 0):
            raise ConfigError(f"Expected at most {MOST_CUTS} cuts per class, got {cuts}.")
        if max(1, classes) * 2**cuts * triangle_length(k + 1) > MOST_NUMBERS:
            raise ConfigError(f"Expected at most {MOST_NUMBERS} numbers in an answer.")
        return 1

    def check(self, query: MixtureQuery) -> None:
        """See `Statistic`."""
        images, d = self._images, self._frequencies
        if len(query.centre) != d:
            raise ModelMismatchError(
                f"Expected a centre of {d} frequencies for images of {images.channels}x"
                f"{images.size}x{images.size}, got {len(query.centre)}."
            )
        if query.classes not in (0, images.classes):
            raise ModelMismatchError(
                f"Expected blocks of {images.classes} classes, got {query.classes}."
            )

    def mechanism(self, query: MixtureQuery, plan: NoisePlan) -> Mechanism:
        """See `Statistic`."""
        return gaussian_mechanism(bound_of(query), plan)

    def values(self, query: MixtureQuery) -> Tensor:
        """See `Statistic`."""

        def part(records: range) -> Tensor:
            if query.rest:
                return square_sums(self._rests(query, records), query.width)
            return block_products(self._products(query, records), query.entries, query.blocks)

        return self._sums.total(query, part)[None]

    @property
    def _frequencies(self) -> int:
        return frequency_count(self._images.channels, self._images.size)

    def _products(
        self, query: MixtureQuery, records: range
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        mapping, cuts = query.map.double(), query.cuts.double()
        for found, labels, weights in self._centred(query, records):
            rows = rows_of(found, mapping)[: len(labels)]
            yield rows, blocks_of(rows, labels, cuts), weights

    def _rests(self, query: MixtureQuery, records: range) -> Iterator[tuple[Tensor, Tensor]]:
        axes = query.map.double()
        for found, labels, weights in self._centred(query, records):
            rest = found - exact_product(exact_product(found, axes), axes.T)
            yield (query.rest * rest)[: len(labels)], weights

    def _centred(
        self, query: MixtureQuery, records: range
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Frequencies without the centre [b, d], filled up with black images; labels, weights."""
        centre = query.centre.double()
        for picked, labels, weights in self._sums.blocks(records, _BATCH):
            found = frequencies(self._sums.pixels(picked, _BATCH)) - centre
            yield found, labels, weights


def rows_of(found: Tensor, mapping: Tensor) -> Tensor:
    """ũ, float64 [b, k + 1], before it is clipped: centred frequencies, mapped, and the constant.

    The mapped part is clipped to norm one by itself, so that the constant counts records.
    """
    mapped = clip_rows(exact_product(found, mapping))
    constant = mapped.new_full((len(mapped), 1), CONSTANT)
    return torch.cat([mapped, constant], 1) / math.sqrt(1 + CONSTANT**2)


def blocks_of(rows: Tensor, labels: Tensor, cuts: Tensor) -> Tensor:
    """Which block each row adds to, int64 [b]; see `MixtureQuery`.

    Rows and cuts are truncated to a lattice first, so that a sum of products is exact.
    """
    if not len(cuts):
        return torch.zeros(len(rows), dtype=torch.int64)
    whole = lattice_rows(rows)[:, None] * lattice_rows(cuts)[labels]
    sides = whole.sum(2) > 0
    powers = 2 ** torch.arange(cuts.shape[1])
    return labels * 2 ** cuts.shape[1] + (sides * powers).sum(1)


def bound_of(query: MixtureQuery) -> Bound:
    """The bound of the sums that a query asks for."""
    if query.rest:
        return mixture_bound(query.width, None)
    return mixture_bound(query.entries, query.blocks)
