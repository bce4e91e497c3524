"""What a teacher's noisy answer about one synthetic row teaches a student."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtranscribe.questions.gradients import RowGradient
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.rows import ImageQuery, gather_rows, unit_rows

# How sure the reference teacher of `reference_rows` is of its class.
_REFERENCE_CONFIDENCE = 0.9


def reference_rows(query: ImageQuery, gradient: RowGradient) -> Tensor:
    """The unit row that a teacher sure of class j would answer, for every class j: [n, c, k].

    Made from the public query alone, so that the student side can weigh a noisy row against it.
    """
    if query.student_logits is None:
        raise ValueError("Expected a gradient query; reference rows need the student's logits.")
    n, c = query.student_logits.shape
    spread = (1 - _REFERENCE_CONFIDENCE) / (c - 1)
    teacher = torch.full((c, n, c), spread).log()
    for j in range(c):
        teacher[j, :, j] = torch.tensor(_REFERENCE_CONFIDENCE).log()
    rows = gather_rows(gradient(teacher, query.student_logits), query.index_sets)
    return unit_rows(rows).transpose(0, 1)


def evidence(
    query: ImageQuery, values: Tensor, sharpness: float, classes: int, gradient: RowGradient
) -> Tensor:
    """Log-likelihood of each class given a private answer, up to a constant per row.

    Classes outside a row's index set are separated from those inside, but not from each other: they
    explain a row that names nothing.

    Args:
        query: what was asked.
        values: the answer's values [n, k]; labels of several holders are summed one-hot rows.
        sharpness: 1/s² for noise of std s per coordinate; for `label` the mechanism's ε0.
        classes: width c of the student's output.
        gradient: what the holder differentiates; used by `gradient` queries only.

    Returns:
        Evidence [n, c] in nats.
    """
    values = values.double()
    if query.kind is Kind.GRADIENT:
        rows = reference_rows(query, gradient)
        match = torch.einsum("nk,nck->nc", values, rows)
        return sharpness * (match - 0.5 * rows.square().sum(-1))
    if query.kind is Kind.LABEL:
        normaliser = math.log((math.expm1(sharpness) + query.k) / query.k)
        inside = sharpness * values - normaliser * values.sum(-1, keepdim=True)
    else:
        inside = sharpness * (values - 0.5)
    return values.new_zeros(query.rows, classes).scatter(1, query.index_sets, inside)


def posterior_labels(
    student_logits: Tensor, row_evidence: Tensor, prior_weight: float, evidence_weight: float
) -> Tensor:
    """ŷ of Eq. 6 as a tempered posterior: softmax(a·log p_s + b·evidence), [n, c] on the simplex.

    Eq. 3's own ŷ = Φ_s − γ_s·row leaves the simplex, and cross-entropy with negative targets is
    unbounded below. Weights below one keep the student from confirming itself and allow for
    teachers that disagree more than the noise alone explains.
    """
    prior = student_logits.double().log_softmax(-1)
    return F.softmax(prior_weight * prior + evidence_weight * row_evidence, dim=-1).float()


# The factor is exp(−slope per record), within these bounds. The exponent was chosen among 1, 1.5
# and 2 times the slope, on training records that were set aside: see docs/utility.md.
_LIMIT = 1.0
# Chosen by pairs of digits side by side, ten classes.
_OF_SEVERAL = 0.3


@dataclass(frozen=True)
class Slope:
    """How the sum of all records' losses changes with the scale of a head."""

    value: float  # as measured
    noise: float  # std of what is noise in it


def calibrated_scale(slopes: Sequence[Slope], records: float, *, multilabel: bool = False) -> float:
    """The factor for a student's logits.

    A slope that may well be noise counts less, by the share of its square that is signal.

    Args:
        slopes: at heads near the student's, each with noise of its own.
        records: about how many there are; below 1, as a noisy count may be, it counts as 1.
        multilabel: whether a record's loss is that of several decisions.
    """
    count = len(slopes) * max(records, 1.0)
    slope = sum(each.value for each in slopes) / count
    noise = math.hypot(*(each.noise for each in slopes)) / count
    power = slope**2 + noise**2
    if power == 0:
        return 1.0
    exponent = -slope * slope**2 / power * (_OF_SEVERAL if multilabel else 1)
    return math.exp(min(max(exponent, -_LIMIT), _LIMIT))
