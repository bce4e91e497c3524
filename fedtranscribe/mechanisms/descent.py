"""Gradients of a linear classifier's loss: sums over records, of rows times what they missed by.

Sums are exact, as those of `moments`: rows and residuals on a lattice, weights in whole numbers.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from fedtranscribe.mechanisms.bounded import Bound
from fedtranscribe.mechanisms.moments import SUM_BITS, lattice_rows
from fedtranscribe.privacy.units import Adjacency, Unit

GRADIENTS = "loss-gradients"
"""What the vectors are called in ledgers and events."""


def gradients_bound(width: int, classes: int) -> Bound:
    """The bound of Σ u rᵀ over records with ‖u‖ ≤ 1 and ‖r‖ ≤ 1.

    Args:
        width: k, numbers in u.
        classes: numbers in r.

    Guarantee:
        Unit: record, or all records of one id, whose weights add up to one at most. u depends on
        the record and the public query; r on the record, its label and the query, whose classifier
        follows from earlier private answers. A record adds v = u rᵀ with ‖v‖ = ‖u‖ ‖r‖ ≤ 1
        (Frobenius); several records of one id add Σ w v with Σ w ≤ 1, a point of the convex hull of
        such v and zero, whose points lie no further apart than two of its corners.
        Zero-out and add-remove move the sum by ‖v‖ ≤ 1.
        Replace: v' = −v is possible, and nothing lies further apart: 2.
        Here u and r are the truncated rows (`lattice_rows`), so that products and sums are exact.
        A whole holder has no guarantee. Source: full-batch DP-SGD (Abadi et al. 2016), whose
        per-record gradients of a linear layer have exactly this form.
    """
    moves = {Adjacency.ZERO_OUT: 1.0, Adjacency.ADD_REMOVE: 1.0, Adjacency.REPLACE: 2.0}
    return Bound(
        GRADIENTS, width * classes, {Unit.RECORD: moves}, torch.Tensor.double, bits=SUM_BITS
    )


def gradient_sums(
    parts: Iterable[tuple[Tensor, Tensor, Tensor]], width: int, classes: int
) -> Tensor:
    """Add up bounded rows times bounded residuals; NOT private.

    Args:
        parts: rows u [b, k], residuals r [b, classes] and whole weights [b] as from `id_weights`;
            at most 2¹⁶ records in a part.
        width: k.
        classes: how many.

    Returns:
        int64 [k · classes] in units of 2⁻³⁶: Σ u rᵀ, row by row.

    Guarantee:
        Exact, as `moment_sums`: no float64 that is added up reaches 2⁵³.
    """
    total = torch.zeros(width, classes, dtype=torch.int64)
    for rows, residuals, weights in parts:
        weighted = lattice_rows(residuals.cpu()) * weights.double()[:, None]
        total += (lattice_rows(rows.cpu()).T @ weighted).long()
    return total.flatten()
