"""Bounding a row before noise: gather the student's classes first, THEN normalise.

Normalising first and gathering afterwards would be unsound: with a repeated index it released a
row of norm 3.16. A row that is not finite becomes zero, silently, and counts as answered: to
refuse it would reveal something about the teacher.
"""

from enum import StrEnum

import torch
from torch import Tensor

STABILITY = 1e-4
"""h of DPSD Eq. 3."""


class RowBound(StrEnum):
    """How a raw row is brought into the set that the sensitivity is counted for."""

    UNIT = "unit"
    """Normalised, as in Eq. 3: an l2 ball of radius 1."""
    CLIP = "clip"
    """Clipped, the paper's ablation: the same ball."""
    SIMPLEX = "simplex"
    """Votes or probabilities: non-negative, sum at most 1."""


def gather_rows(rows: Tensor, index_sets: Tensor) -> Tensor:
    """The student's classes of every row.

    Args:
        rows: [..., n, c].
        index_sets: int64 [n, k].

    Returns:
        [..., n, k].
    """
    return rows.gather(-1, index_sets.expand(*rows.shape[:-2], *index_sets.shape))


def unit_rows(rows: Tensor, stability: float = STABILITY) -> Tensor:
    """β-normalised rows of Eq. 3 with β = 1: x / (‖x‖₂ + h), float64 of the same shape.

    Guarantee:
        Every row has norm at most 1 in exact arithmetic, since h > 0; the relative room of 1e-6 in
        every sensitivity covers float64 rounding by nine orders of magnitude. Rows are scaled by
        their largest entry first, so that no square overflows.
    """
    rows = _finite(rows)
    largest = rows.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    scaled = rows / largest
    # ‖x‖ + h in units of `largest`; for a tiny row h/largest is huge, and the row becomes zero.
    norm = scaled.norm(dim=-1, keepdim=True) + stability / largest
    return clip_rows(scaled / norm)


def clip_rows(rows: Tensor, bound: float = 1.0) -> Tensor:
    """Rows of norm at most `bound`, shorter ones unchanged; float64 of the same shape."""
    rows = _finite(rows)
    largest = rows.abs().amax(-1, keepdim=True).clamp_min(1.0)
    norm = (rows / largest).norm(dim=-1, keepdim=True) * largest
    return rows / (norm / bound).clamp_min(1.0)


def simplex_rows(rows: Tensor) -> Tensor:
    """Rows with non-negative entries of sum at most 1; probabilities pass unchanged."""
    rows = _finite(rows).clamp_min(0)
    largest = rows.amax(-1, keepdim=True).clamp_min(1.0)
    total = (rows / largest).sum(-1, keepdim=True)
    return rows / largest / torch.maximum(total, 1 / largest)


def expect_block(block: Tensor, index_sets: Tensor) -> None:
    """Refuse a block that is not [s, n, c]: broadcasting would count one shard several times.

    Shapes are public, so an error reveals nothing.

    Raises:
        ValueError: names both shapes.
    """
    if block.ndim != 3 or block.shape[1] != len(index_sets):
        raise ValueError(
            f"Expected a block [shards, {len(index_sets)}, classes], got {tuple(block.shape)}."
        )


def _finite(rows: Tensor) -> Tensor:
    rows = rows.double()
    return torch.where(torch.isfinite(rows).all(-1, keepdim=True), rows, torch.zeros_like(rows))
