"""Second moments by block: every record adds to one block only, whichever that is.

So any number of blocks, one per class or per component of a mixture, costs what a single one
costs. Sums are exact, as those of `moments`: rows on a lattice, weights in whole numbers.
"""

import math
from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.mechanisms.bounded import Bound
from fedtranscribe.mechanisms.moments import SUM_BITS, lattice_rows
from fedtranscribe.privacy.units import Adjacency, Unit

PRODUCTS, SQUARES = "block-products", "squares"
"""What the vectors are called in ledgers and events."""

# One record, or all of one id, moves a sum by this much: see `products_bound`.
_MOVES = {
    Unit.RECORD: {
        Adjacency.ZERO_OUT: 1.0,
        Adjacency.ADD_REMOVE: 1.0,
        Adjacency.REPLACE: math.sqrt(2.0),
    }
}


def triangle_length(width: int) -> int:
    """Numbers in the upper triangle of a symmetric matrix."""
    return width * (width + 1) // 2


def mixture_bound(width: int, blocks: int | None) -> Bound:
    """`products_bound`, or where no blocks are named `squares_bound`."""
    return squares_bound(width) if blocks is None else products_bound(width, blocks)


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


def squares_bound(width: int) -> Bound:
    """The bound of Σ r² over records, entry by entry, with ‖r‖ ≤ 1.

    Args:
        width: d, numbers in r.

    Guarantee:
        A record adds v = r² with ‖v‖₂ = ‖r‖₄² ≤ ‖r‖₂² ≤ 1; entries are nonnegative, so that two
        such vectors are at most √2 apart. Otherwise as `products_bound`.
    """
    return Bound(SQUARES, width, _MOVES, torch.Tensor.double, bits=SUM_BITS)


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


def square_sums(parts: Iterable[tuple[Tensor, Tensor]], width: int) -> Tensor:
    """Add up bounded rows' squares; NOT private.

    Args:
        parts: rows r [b, d] and whole weights [b]; at most 2¹⁶ records in a part.
        width: d.

    Returns:
        int64 [d] in units of 2⁻³⁶; exact.
    """
    total = torch.zeros(width, dtype=torch.int64)
    for rows, weights in parts:
        total += (weights.double() @ lattice_rows(rows.cpu()).square()).long()
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
