"""Mixture: second moments of the records' low frequencies, block by block."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from fedtranscribe.data.imageset import ImageSet, groups_of
from fedtranscribe.errors import ConfigError, ModelMismatchError
from fedtranscribe.models.mixture import band_count, bands_of, frequencies, frequency_count
from fedtranscribe.noise.bounds import Bound
from fedtranscribe.noise.exact_products import exact_product
from fedtranscribe.noise.mechanisms import Mechanism, gaussian_mechanism
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions.moments import SUM_BITS, lattice_rows
from fedtranscribe.questions.question import MOST_NUMBERS, Kind, Scalar, SumQuery, triangle_length
from fedtranscribe.questions.records import RecordSums
from fedtranscribe.questions.rows import clip_rows

PRODUCTS, ENERGIES = "block-products", "band-energies"
"""What the vectors are called in ledgers and events."""

# One record, or all of one id, moves a sum by this much: see `products_bound`.
_MOVES = {
    Unit.RECORD: {
        Adjacency.ZERO_OUT: 1.0,
        Adjacency.ADD_REMOVE: 1.0,
        Adjacency.REPLACE: math.sqrt(2.0),
    }
}


MOST_CUTS = 8
"""Each doubles the blocks of a class."""


CONSTANT = 0.45
"""b, the last entry of a row for a mixture; with less, noise hides the means of few records."""


@dataclass(frozen=True)
class MixtureQuery(SumQuery):
    """Which second moments of their records' low frequencies a holder is asked for.

    Of a record's frequencies minus `centre`, y, this makes ũ = (y map, b) / √(1 + b²) with the
    mapped part clipped; its products are added up in the block that its label and `cuts` say. With
    `rest` instead, what the map leaves of y, times `rest`, is clipped; its energies are added up,
    the sum of squares for each of `bands_of`.

    Attributes:
        cuts: float32 [classes, j, k + 1]: block 2^j·label + Σ 2^i [ũ · cuts[label, i] > 0], of
            several labels by their group (`groups_of`); one block for everybody where classes = 0.
        rest: 0 for products; otherwise what r is multiplied by, where the map is orthonormal.
        bands: how many energies there are; 0 for products.
    """

    cuts: Tensor
    rest: float
    bands: int

    ARRAYS: ClassVar = {**SumQuery.ARRAYS, "cuts": torch.float32}

    def __post_init__(self) -> None:
        """Check everything that is public; only the public query may ever be refused."""
        super().__post_init__()
        if self.cuts.ndim != 3 or (len(self.cuts) and self.cuts.shape[2] != self.entries):
            raise ConfigError(f"Expected cuts [classes, j, {self.entries}].")
        if self.cuts.shape[1] > (MOST_CUTS if self.classes else 0):
            raise ConfigError(f"Expected at most {MOST_CUTS} cuts per class, none without classes.")
        if type(self.rest) is not float or not 0 <= self.rest < math.inf:
            raise ConfigError(f"Expected rest={self.rest!r} as a finite number >= 0.")
        most = len(self.centre) if self.rest else 0
        if type(self.bands) is not int or not bool(self.rest) <= self.bands <= most:
            raise ConfigError(f"Expected bands={self.bands!r} from {bool(self.rest):d} to {most}.")
        if self.width > MOST_NUMBERS:
            raise ConfigError(f"Expected at most {MOST_NUMBERS} numbers, got {self.width}.")

    @property
    def classes(self) -> int:
        """How many labels tell blocks apart; 0 where they do not."""
        return len(self.cuts)

    @property
    def blocks(self) -> int:
        """How many sums there are."""
        return max(1, self.classes) * 2 ** self.cuts.shape[1]

    @property
    def width(self) -> int:
        """Numbers in an answer."""
        return self.bands or self.blocks * triangle_length(self.entries)


def mixture_bound(width: int, blocks: int | None) -> Bound:
    """`products_bound`, or where no blocks are named `energies_bound`."""
    return energies_bound(width) if blocks is None else products_bound(width, blocks)


def products_bound(width: int, blocks: int) -> Bound:
    """The bound of Σ u uᵀ ⊗ e_c over records with ‖u‖ ≤ 1, c the record's block.

    Args:
        width: k, numbers in u.
        blocks: how many there are.

    Guarantee:
        Unit: record, or all records of one id, whose weights add up to one at most. The block c
        may be any function of the record, its label and earlier private answers: the public query
        says which. A record adds v = u uᵀ ⊗ e_c with ‖v‖ = ‖u‖² ≤ 1, whatever its block is;
        several records of one id add Σ w v with Σ w ≤ 1, a point of the convex hull of such v and
        zero, whose points lie no further apart than two of its corners.
        Zero-out and add-remove move the sum by ‖v‖ ≤ 1.
        Replace: within a block ‖u uᵀ − u' u'ᵀ‖² = ‖u‖⁴ + ‖u'‖⁴ − 2 (u·u')² ≤ 2, across two blocks
        ‖u‖⁴ + ‖u'‖⁴ ≤ 2.
        Here u is the truncated row (`lattice_rows`), so that products and sums are exact. The
        upper triangle of every block is sent; an entry beside the diagonal counts twice in every
        squared distance, and has noise of 1/√2 the std (`Bound.counts`).
        A whole holder has no guarantee. Source: `moments_bound`, without its sums by class.
    """
    return Bound(
        PRODUCTS,
        blocks * triangle_length(width),
        _MOVES,
        torch.Tensor.double,
        bits=SUM_BITS,
        counts=_counts(width, blocks),
    )


def energies_bound(bands: int) -> Bound:
    """The bound of Σ v over records, v_b the sum of r² over the frequencies of band b, ‖r‖ ≤ 1.

    Args:
        bands: how many there are.

    Guarantee:
        Entries of v are nonnegative, and ‖v‖₂ ≤ ‖v‖₁ = ‖r‖₂² ≤ 1, however frequencies are put into
        bands; two such vectors are at most √2 apart. Otherwise as `products_bound`.
    """
    return Bound(ENERGIES, bands, _MOVES, torch.Tensor.double, bits=SUM_BITS)


def block_products(
    parts: Iterable[tuple[Tensor, Tensor, Tensor]], width: int, blocks: int
) -> Tensor:
    """Add up bounded rows' products, each in its block; NOT private.

    Args:
        parts: rows u [b, k], blocks int64 [b] from 0 and whole weights [b] as from `id_weights`;
            at most 2¹⁶ records in a part.
        width: k.
        blocks: how many.

    Returns:
        int64 [D] in units of 2⁻³⁶: the upper triangle of each block's Σ u uᵀ, row by row.

    Raises:
        ConfigError: a block that there is not.

    Guarantee:
        Exact, as `moment_sums`: no float64 that is added up reaches 2⁵³.
    """
    total = torch.zeros(blocks, width, width, dtype=torch.int64)
    for rows, where, weights in parts:
        if len(where) and (int(where.min()) < 0 or int(where.max()) >= blocks):
            raise ConfigError(f"Expected blocks from 0 to {blocks - 1}.")
        bounded = lattice_rows(rows.cpu())
        weighted = bounded * weights.double()[:, None]
        for block in where.unique().tolist():
            here = where == block
            total[block] += (weighted[here].T @ bounded[here]).long()
    rows_, columns = torch.triu_indices(width, width)
    return total[:, rows_, columns].flatten()


def band_energies(parts: Iterable[tuple[Tensor, Tensor]], where: Tensor, bands: int) -> Tensor:
    """Add up bounded rows' squares, band by band; NOT private.

    Args:
        parts: rows r [b, d] and whole weights [b]; at most 2¹⁶ records in a part.
        where: int64 [d], the band of each entry.
        bands: how many.

    Returns:
        int64 [bands] in units of 2⁻³⁶; exact, as `block_products`.
    """
    total = torch.zeros(bands, dtype=torch.int64)
    for rows, weights in parts:
        squares = weights.double() @ lattice_rows(rows.cpu()).square()
        total.index_add_(0, where, squares.long())
    return total


def block_matrices(vector: Tensor, width: int, blocks: int) -> Tensor:
    """The symmetric matrices, float64 [blocks, k, k], out of a vector in ones instead of units.

    Raises:
        ConfigError: the vector is of another length.
    """
    length = blocks * triangle_length(width)
    if vector.shape != (length,):
        raise ConfigError(f"Expected second moments as {length} numbers, got {tuple(vector.shape)}")
    rows, columns = torch.triu_indices(width, width)
    upper = torch.zeros(blocks, width, width, dtype=torch.float64)
    upper[:, rows, columns] = vector.double().reshape(blocks, -1)
    return upper + upper.triu(1).transpose(1, 2)


@lru_cache(maxsize=1)
def _counts(width: int, blocks: int) -> Tensor:
    rows, columns = torch.triu_indices(width, width)
    return torch.where(rows == columns, 1, 2).to(torch.uint8).repeat(blocks)


_BATCH = 256


class Mixture:
    """Sums over the records that show a mixture of Gaussians, one question after the other.

    Args:
        images: the holder's private records.
        sums: over these records, where other sums share it.

    Guarantee:
        The bounds are those of `products_bound` and `energies_bound`. A row, and the block that it
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
        d, groups = self._frequencies, self._images.facts.groups
        _, k = shapes["map"]
        classes, cuts, _ = shapes["cuts"]
        allowed = {"centre": (d,), "map": (d, k), "cuts": (classes, cuts, k + 1)}
        if shapes != allowed or classes not in (0, groups):
            raise ConfigError(
                f"Expected a centre [{d}], a map [{d}, k] and cuts [{groups}, j, k + 1], got "
                f"{shapes}."
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
        classes = images.facts.groups
        if query.classes not in (0, classes):
            raise ModelMismatchError(f"Expected blocks of {classes} classes, got {query.classes}.")
        bands = self._bands()[1]
        if query.bands not in (0, bands):
            raise ModelMismatchError(f"Expected {bands} bands, got {query.bands}.")

    def mechanism(self, query: MixtureQuery, plan: NoisePlan) -> Mechanism:
        """See `Statistic`."""
        return gaussian_mechanism(bound_of(query), plan)

    def values(self, query: MixtureQuery) -> Tensor:
        """See `Statistic`."""

        def part(records: range) -> Tensor:
            if query.rest:
                return band_energies(self._rests(query, records), *self._bands())
            return block_products(self._products(query, records), query.entries, query.blocks)

        return self._sums.total(query, part)[None]

    @property
    def _frequencies(self) -> int:
        return frequency_count(self._images.channels, self._images.size)

    def _bands(self) -> tuple[Tensor, int]:
        shape = self._images.channels, self._images.size
        return bands_of(*shape), band_count(*shape)

    def _products(
        self, query: MixtureQuery, records: range
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        mapping, cuts = query.map.double(), query.cuts.double()
        for found, labels, weights in self._centred(query, records):
            rows = rows_of(found, mapping)
            yield rows, blocks_of(rows, labels, cuts), weights

    def _rests(self, query: MixtureQuery, records: range) -> Iterator[tuple[Tensor, Tensor]]:
        axes = query.map.double()
        for found, _, weights in self._centred(query, records):
            rest = found - exact_product(exact_product(found, axes), axes.T)
            yield query.rest * rest, weights

    def _centred(
        self, query: MixtureQuery, records: range
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Frequencies without the centre [b, d], groups, weights."""
        centre = query.centre.double()
        for picked, labels, weights in self._sums.blocks(records, _BATCH):
            found = frequencies(self._sums.pixels(picked, _BATCH)) - centre
            yield found, groups_of(labels), weights


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
