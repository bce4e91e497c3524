"""Moments of private features: sums over records, as one vector that noise can be added to."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.mechanisms.bounded import Bound
from fedtranscribe.mechanisms.normalize import clip_rows
from fedtranscribe.privacy.units import Adjacency, Unit

MOMENTS = "moments"
"""What the vectors are called in ledgers and events."""


@dataclass(frozen=True)
class MomentSums:
    """Sums over records of what is said about their features u and labels y.

    Attributes:
        second: Σ u uᵀ, float64 [k, k], symmetric.
        by_class: Σ u e_yᵀ, float64 [k, classes]; None where labels are left out.
    """

    second: Tensor
    by_class: Tensor | None

    def to_vector(self) -> Tensor:
        """One vector, isometrically: upper triangle, times √2 beside the diagonal, then classes.

        Noise that is isotropic in the vector is isotropic among symmetric matrices (Frobenius
        norm): std τ on the diagonal, τ/√2 on each entry beside it.
        """
        rows, columns = _upper(len(self.second))
        triangle = self.second[rows, columns] * _stretch(rows, columns)
        if self.by_class is None:
            return triangle
        return torch.cat([triangle, self.by_class.flatten()])

    @classmethod
    def from_vector(cls, vector: Tensor, width: int, classes: int | None) -> "MomentSums":
        """The inverse of `to_vector`.

        Raises:
            ConfigError: the vector is of another length.
        """
        length = vector_length(width, classes)
        if vector.shape != (length,):
            raise ConfigError(f"Expected moments as {length} numbers, got {tuple(vector.shape)}.")
        rows, columns = _upper(width)
        second = torch.zeros(width, width, dtype=torch.float64)
        second[rows, columns] = vector[: len(rows)].double() / _stretch(rows, columns)
        second = second + second.triu(1).T
        by_class = None if classes is None else vector[len(rows) :].double().reshape(width, classes)
        return cls(second, by_class)


def vector_length(width: int, classes: int | None) -> int:
    """D, how many numbers the moments of k = `width` features are."""
    return width * (width + 1) // 2 + width * (classes or 0)


def moments_bound(width: int, classes: int | None) -> Bound:
    """The bound of Σ (u uᵀ, u e_yᵀ) over records with ‖u‖ ≤ 1.

    Args:
        width: k, numbers in u.
        classes: how many; None leaves labels out.

    Guarantee:
        Unit: record, or all records of one id, whose weights add up to one; a replacement keeps
        its id. A record adds
        v = (u uᵀ, u e_yᵀ) with ‖u‖ ≤ 1, so ‖v‖² = ‖u‖⁴ + ‖u‖² ≤ 2, and 1 without the second part;
        several records of one id add an average of such v, which lies no further out.
        Zero-out: the record adds nothing any more (a zero row, as a null gradient is; not the row
        of a grey image, for which replace counts). Add-remove: likewise, with ids that last, since
        the split into training and held-out records goes by them. Both move the sum by ‖v‖.
        Replace: with s = u·u', a pair of one class
        differs by ‖u‖⁴ + ‖u'‖⁴ − 2s² + ‖u‖² + ‖u'‖² − 2s ≤ 4 − 2s² − 2s ≤ 4.5, a pair of two
        classes by 4 − 2s² ≤ 4, and without the second part by 2 − 2s² ≤ 2 (all squared).
        A whole holder has no guarantee. `MomentSums.to_vector` keeps all distances.
        Rounding to a public grid after the noise (`LocalNoise`): entries of a sum over n records
        reach n, and their absolute values add up to k n at most, so that all edges of the grid
        together shift ε by about k n 2⁻⁵² / grid: below 1e-4 for k = 501, n = 10⁶, τ = 0.8.
    """
    moves = {adjacency: _sensitivity(adjacency, classes is not None) for adjacency in Adjacency}
    # Sums are bounded as they are added up: every record by itself, in `moment_sums`.
    length = vector_length(width, classes)
    return Bound(MOMENTS, length, {Unit.RECORD: moves}, torch.Tensor.double, exact=True)


def moment_sums(
    blocks: Iterable[tuple[Tensor, Tensor, Tensor]], width: int, classes: int | None
) -> MomentSums:
    """Add up bounded rows, a block at a time; NOT private.

    Args:
        blocks: rows u [b, k], labels int64 [b] and weights [b]. Weights of one person's records
            add up to one at most, so that a person counts like a record.
        width: k.
        classes: how many; None leaves labels out.
    """
    second = torch.zeros(width, width, dtype=torch.float64)
    by_class = None if classes is None else torch.zeros(width, classes, dtype=torch.float64)
    for rows, labels, weights in blocks:
        bounded = clip_rows(rows.cpu())
        weighted = bounded * weights.double()[:, None]
        second += weighted.T @ bounded
        if by_class is not None:
            by_class.index_add_(1, labels, weighted.T)
    return MomentSums((second + second.T) / 2, by_class)


def _sensitivity(adjacency: Adjacency, by_class: bool) -> float:
    if adjacency is Adjacency.REPLACE:
        return math.sqrt(4.5 if by_class else 2.0)
    return math.sqrt(2.0 if by_class else 1.0)


def _upper(width: int) -> tuple[Tensor, Tensor]:
    rows, columns = torch.triu_indices(width, width)
    return rows, columns


def _stretch(rows: Tensor, columns: Tensor) -> Tensor:
    return torch.where(rows == columns, 1.0, math.sqrt(2)).double()
