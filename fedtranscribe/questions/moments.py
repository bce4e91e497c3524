"""Moments: sums over all records of their features and of products of these."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError, ModelMismatchError
from fedtranscribe.models.backbones import NO_BACKBONES, Backbones
from fedtranscribe.noise.bounds import Bound
from fedtranscribe.noise.mechanisms import Mechanism, gaussian_mechanism
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions.question import (
    MOST_FEATURES,
    FeaturesQuery,
    Kind,
    Scalar,
    expect_flag,
    expect_products,
)
from fedtranscribe.questions.record_rows import SCRATCH_GIB, RecordRows, expect_labels
from fedtranscribe.questions.records import WEIGHT_BITS, RecordSums
from fedtranscribe.questions.rows import clip_rows
from fedtranscribe.results.progress import Progress, silent

MOMENTS = "moments"
"""What the vectors are called in ledgers and events."""

_ROW_BITS = 13
ROW_UNITS = 2.0**_ROW_BITS
"""In an entry of 1 of a lattice row."""
SUM_BITS = 2 * _ROW_BITS + WEIGHT_BITS
"""Sums are whole numbers of 2⁻³⁶; int64 holds those of 2²⁷ records."""
# Wide against the rounding of a norm in float64, narrow against the lattice.
_INSIDE = 1 - 2.0**-35


@dataclass(frozen=True)
class MomentsQuery(FeaturesQuery):
    """Which moments of the records' rows a holder is asked for.

    Attributes:
        classes: of the sums by class that are asked beside the second moments; 0 leaves them out.
        multilabel: whether records may have several classes; then y is a vector of 0 and 1 that is
            clipped to norm one, so that a record counts as one however many it has.
    """

    classes: int
    multilabel: bool = False

    FORM: ClassVar[str] = " by triangle"

    def __post_init__(self) -> None:
        """Check everything that is public; only the public query may ever be refused."""
        super().__post_init__()
        # A message may hold any scalar: 3.0 and True would pass for numbers of classes.
        if type(self.classes) is not int or self.classes < 0:
            raise ConfigError(f"Expected classes={self.classes!r} as a whole number >= 0.")
        expect_flag(self.multilabel)

    @property
    def width(self) -> int:
        """Numbers in an answer."""
        return vector_length(self.entries, self.classes or None)


@dataclass(frozen=True)
class MomentSums:
    """Sums over records of what is said about their features u and labels y.

    Attributes:
        second: Σ u uᵀ, float64 [k, k], symmetric.
        by_class: Σ u e_yᵀ, float64 [k, classes]; None where labels are left out.
    """

    second: Tensor
    by_class: Tensor | None

    @classmethod
    def from_vector(cls, vector: Tensor, width: int, classes: int | None) -> "MomentSums":
        """The sums out of a vector such as `moment_sums` makes, in ones instead of units.

        Raises:
            ConfigError: the vector is of another length.
        """
        length = vector_length(width, classes)
        if vector.shape != (length,):
            raise ConfigError(f"Expected moments as {length} numbers, got {tuple(vector.shape)}.")
        rows, columns = _upper(width)
        second = torch.zeros(width, width, dtype=torch.float64)
        second[rows, columns] = vector[: len(rows)].double()
        second = second + second.triu(1).T
        by_class = None if classes is None else vector[len(rows) :].double().reshape(width, classes)
        return cls(second, by_class)


def vector_length(width: int, classes: int | None) -> int:
    """D, how many numbers the moments of k = `width` features are."""
    return width * (width + 1) // 2 + width * (classes or 0)


def moments_bound(width: int, classes: int | None) -> Bound:
    """The bound of Σ (u uᵀ, u yᵀ) over records with ‖u‖ ≤ 1 and ‖y‖ ≤ 1.

    Args:
        width: k, numbers in u.
        classes: how many; None leaves labels out.

    Guarantee:
        Unit: record, or all records of one id, whose weights add up to one at most; a replacement
        keeps its id. y is e_c for a record of class c; for one of several classes a vector of norm
        one at most. A record adds v = (u uᵀ, u yᵀ), so ‖v‖² ≤ ‖u‖⁴ + ‖u‖² ≤ 2, and 1 without the
        second part; several records of one id add Σ w v with Σ w ≤ 1: a point of the convex hull of
        such v and zero, and no two points of a hull lie further apart than two of its corners.
        Here u is the truncated row (`lattice_rows`), so that products and sums are exact, and
        nothing has to be added for rounding.
        Zero-out: the record adds nothing any more (a zero row, as a null gradient is; not the row
        of a grey image, for which replace counts). Add-remove: the same, with ids that last, since
        the split into training and held-out records goes by them. Both move the sum by ‖v‖.
        Replace: with s = u·u' and t = y·y', |t| ≤ 1, a pair differs by
        ‖u‖⁴ + ‖u'‖⁴ − 2s² + ‖u‖²‖y‖² + ‖u'‖²‖y'‖² − 2st ≤ 4 − 2s² + 2|s| ≤ 4.5, and without the
        second part by 2 − 2s² ≤ 2 (both squared).
        A whole holder has no guarantee.
        Of a symmetric matrix the upper triangle is sent, in which an entry beside the diagonal
        stands for two: it counts twice in every squared distance, which is then that of the
        matrices (Frobenius), and has noise of 1/√2 the std (`Bound.counts`).
        Beyond 2²⁷ records sums wrap around modulo 2⁶⁴, which costs accuracy only: noise is added
        modulo 2⁶⁴ as well.
    """
    moves = {adjacency: _sensitivity(adjacency, classes is not None) for adjacency in Adjacency}
    length = vector_length(width, classes)
    return Bound(
        MOMENTS,
        length,
        {Unit.RECORD: moves},
        # Sums are bounded as they are added up: every record by itself, in `moment_sums`.
        torch.Tensor.double,
        bits=SUM_BITS,
        counts=_counts(width, classes),
    )


def lattice_rows(rows: Tensor) -> Tensor:
    """Rows of norm at most 1, truncated toward zero: whole numbers of 2⁻¹³, float64 of that shape.

    Guarantee:
        In exact arithmetic ‖u‖ ≤ 1 for every row that comes out, whatever went in: `clip_rows` is
        within k 2⁻⁵² of norm 1, the factor 1 − 2⁻³⁵ brings the row inside for k up to 2¹⁷
        entries, of features or of labels, and truncation toward zero makes no entry larger.
    """
    return (clip_rows(rows) * (_INSIDE * 2**_ROW_BITS)).trunc()


def moment_sums(
    blocks: Iterable[tuple[Tensor, Tensor, Tensor]], width: int, classes: int | None
) -> Tensor:
    """Add up bounded rows, a block at a time; NOT private.

    Args:
        blocks: rows u [b, k], labels int64 [b], or [b, classes] where there may be several, and
            whole weights [b] as from `id_weights`; at most 2¹⁶ records in a block.
        width: k.
        classes: how many; None leaves labels out.

    Returns:
        int64 [D] in units of 2⁻³⁶: the upper triangle of Σ u uᵀ row by row, then Σ u yᵀ.

    Guarantee:
        Exact. With rows in units of 2⁻¹³ and weights in 2⁻¹⁰, a product of a block is below 2³⁶
        units, so that a block's sums stay below 2⁵³ and no float64 rounds; blocks are added up in
        int64.
    """
    second = torch.zeros(width, width, dtype=torch.int64)
    by_class = None if classes is None else torch.zeros(width, classes, dtype=torch.int64)
    for rows, labels, weights in blocks:
        bounded = lattice_rows(rows.cpu())
        weighted = bounded * weights.double()[:, None]
        second += (weighted.T @ bounded).long()
        if by_class is None:
            continue
        if labels.ndim == 2:
            by_class += (weighted.T @ lattice_rows(labels)).long()
        else:
            # A row alone is in units of 2⁻²³ with its weight.
            by_class.index_add_(1, labels, (weighted.T * 2**_ROW_BITS).long())
    triangle = second[_upper(width)]
    return triangle if by_class is None else torch.cat([triangle, by_class.flatten()])


def _sensitivity(adjacency: Adjacency, by_class: bool) -> float:
    if adjacency is Adjacency.REPLACE:
        return math.sqrt(4.5 if by_class else 2.0)
    return math.sqrt(2.0 if by_class else 1.0)


def _upper(width: int) -> tuple[Tensor, Tensor]:
    rows, columns = torch.triu_indices(width, width)
    return rows, columns


@lru_cache(maxsize=1)
def _counts(width: int, classes: int | None) -> Tensor:
    rows, columns = _upper(width)
    triangle = torch.where(rows == columns, 1, 2).to(torch.uint8)
    return torch.cat([triangle, torch.ones(width * (classes or 0), dtype=torch.uint8)])


class Moments:
    """Second moments of the records' features and, if asked, their sums by class.

    Args:
        images: the holder's private records.
        device: as `RecordRows`, and so are `scratch`, `backbones` and `scratch_gib`.
        progress: as `RecordSums`.

    Attributes:
        rows: of the records, which other sums may share.

    Guarantee:
        The bound is that of `moments_bound`; rows are those of `RecordRows`.
    """

    kind = Kind.MOMENTS

    def __init__(
        self,
        images: ImageSet,
        device: torch.device,
        scratch: Path | None = None,
        backbones: Backbones = NO_BACKBONES,
        *,
        scratch_gib: float = SCRATCH_GIB,
        progress: Progress = silent,
    ) -> None:
        self._images = images
        sums = RecordSums(images, scratch, progress, device)
        self.rows = RecordRows(sums, device, scratch, backbones, scratch_gib)

    def expect(self, shapes: Mapping[str, tuple[int, ...]], terms: Mapping[str, Scalar]) -> int:
        """See `Statistic`."""
        raw = self.rows.numbers(terms.get("features"))
        _, k = shapes["map"]
        if shapes != {"centre": (raw,), "map": (raw, k)} or not 1 <= k < MOST_FEATURES:
            raise ConfigError(f"Expected a centre [{raw}] and a map [{raw}, k], got {shapes}.")
        expect_products(terms.get("products", 0), k)
        if terms.get("classes") not in (0, self._images.classes):
            raise ConfigError(f"Expected sums by {self._images.classes} classes.")
        expect_labels(self._images, terms.get("multilabel"))
        return 1

    def check(self, query: MomentsQuery) -> None:
        """See `Statistic`."""
        self.rows.check(query)
        if query.classes not in (0, self._images.classes):
            raise ModelMismatchError(
                f"Expected sums by {self._images.classes} classes, got {query.classes}."
            )
        expect_labels(self._images, query.multilabel)

    def mechanism(self, query: MomentsQuery, plan: NoisePlan) -> Mechanism:
        """See `Statistic`."""
        return gaussian_mechanism(moments_bound(query.entries, query.classes or None), plan)

    def values(self, query: MomentsQuery) -> Tensor:
        """See `Statistic`."""

        def part(records: range) -> Tensor:
            rows = self.rows.blocks(query, records)
            return moment_sums(rows, query.entries, query.classes or None)

        return self.rows.total(query, part)[None]
