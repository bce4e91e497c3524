"""Products of records with public matrices that come out the same wherever a record stands.

A matrix product rounds by its shape and by a row's place in it, since kernels treat their last rows
apart. A hostile question can make everything but rounding cancel, and then the row of one record
follows from how many records stand before it: where one joins, all others move. Whole numbers are
not rounded.
"""

import math

import torch
from torch import Tensor

# Whole numbers up to 2⁵³ are float64 numbers, and so is every sum of them that stays below.
_EXACT = 53


def exact_product(rows: Tensor, matrix: Tensor) -> Tensor:
    """rows @ matrix, to about 2⁻¹⁹ of the largest entries of a row and of a column.

    Args:
        rows: [n, d]; a row that is not finite counts as zero.
        matrix: [d, k], public and finite.

    Returns:
        float64 [n, k].

    Guarantee:
        A row of the result is a function of that row and the matrix alone. Each row and column is
        multiplied by a power of two that follows from its own largest entry, and truncated to whole
        numbers of b bits, 2 b + ⌈log₂ d⌉ ≤ 53: every sum of their products, in any order, fused or
        not, is a whole number of at most 2⁵³.
    """
    bits = (_EXACT - math.ceil(math.log2(max(2, len(matrix))))) // 2
    finite = torch.isfinite(rows).all(1, keepdim=True)
    left, row_units = _whole(torch.where(finite, rows.double(), 0.0), bits, 1)
    right, column_units = _whole(matrix.double(), bits, 0)
    return torch.ldexp(left @ right, row_units + column_units)


def _whole(values: Tensor, bits: int, along: int) -> tuple[Tensor, Tensor]:
    """Whole numbers of so many bits, and the power of two of their unit, by row or by column."""
    _, exponents = torch.frexp(values.abs().amax(along, keepdim=True))
    units = exponents - bits
    return torch.ldexp(values, -units).trunc(), units
