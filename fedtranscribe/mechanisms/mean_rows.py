"""Mean rows of an ensemble of teachers on disjoint shards: gradients (DPSD Eq. 3) and votes."""

from collections.abc import Iterable

import torch
from torch import Tensor

from fedtranscribe.mechanisms.bounded import Bound
from fedtranscribe.mechanisms.normalize import (
    RowBound,
    clip_rows,
    expect_block,
    gather_rows,
    simplex_rows,
    unit_rows,
)
from fedtranscribe.privacy.calibrate import DIAMETERS, EnsembleLayout
from fedtranscribe.privacy.units import Adjacency, RowAnswer, Unit

_BOUNDS = {RowBound.UNIT: unit_rows, RowBound.CLIP: clip_rows, RowBound.SIMPLEX: simplex_rows}


def mean_rows_bound(shards: int, answer: RowAnswer, k: int) -> Bound:
    """The bound of a holder's mean over p shards of bounded rows.

    Args:
        shards: p, the PUBLIC count of shards, empty ones included.
        answer: what a row is: a unit gradient (diameter 2) or a vote (diameter √2).
        k: classes per row.

    Guarantee:
        Unit: record or holder. Adjacency: replace, zero-out, and add-remove where records have
        persistent ids, so that no other record changes its shard.
        Sensitivity: a record belongs to one shard of p. Its teacher may change at will, so that
        shard's row moves by at most the diameter D of its set, and the holder's mean by D/p; a
        whole holder moves it by D. D = 2 in the unit ball. In {v ≥ 0, Σv ≤ 1} it is √2: for two
        such rows ‖u − v‖² ≤ ‖u‖² + ‖v‖² ≤ ‖u‖₁ + ‖v‖₁ ≤ 2, because u·v ≥ 0; gathering some of
        the coordinates stays inside the set. Adding or removing a holder presumes that an absent
        one answers zero rows.
    """
    own = EnsembleLayout(shards)
    diameter = DIAMETERS[answer]
    moves = {Unit.RECORD: diameter / own.shards, Unit.HOLDER: diameter}
    return Bound(
        f"mean-{answer.value}s",
        k,
        {unit: dict.fromkeys(Adjacency, moved) for unit, moved in moves.items()},
        clip_rows if answer is RowAnswer.GRADIENT else simplex_rows,
    )


def mean_rows(raw: Iterable[Tensor], index_sets: Tensor, shards: int, bound: RowBound) -> Tensor:
    """Mean over shards of their bounded rows, one block of shards in memory at a time.

    Args:
        raw: blocks [s, n, c] of raw rows; an empty shard gives NaN rows.
        index_sets: int64 [n, k], the student's.
        shards: the PUBLIC count of shards, empty ones included; the mean divides by it.
        bound: what every shard's row is brought into. The mean is never normalised again.

    Returns:
        float64 [n, k].

    Raises:
        ValueError: the blocks hold another number of shards, or are of another shape.
    """
    total = torch.zeros(index_sets.shape, dtype=torch.float64)
    seen = 0
    for block in raw:
        expect_block(block, index_sets)
        total += _BOUNDS[bound](gather_rows(block.cpu().double(), index_sets)).sum(0)
        seen += len(block)
    if seen != shards:
        raise ValueError(f"Expected rows of {shards} shards, got {seen}.")
    return total / shards
