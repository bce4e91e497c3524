"""What a teacher says about one synthetic row, and how a noisy saying becomes a label.

The holder uses the gradients (DPSD Eq. 2); the student side uses `evidence`, which is
post-processing of private answers and therefore free.
"""

import math
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtranscribe.mechanisms import gather_rows, unit_rows
from fedtranscribe.query import ImageQuery, Kind

# λ of Eq. 2, set to 8 in the paper's experiments.
DKD_BALANCE = 8.0
# How sure the reference teacher of `reference_rows` is of its class.
_REFERENCE_CONFIDENCE = 0.9

DistillationLoss = Callable[[Tensor, Tensor], Tensor]


class RowGradient(Protocol):
    """(teacher logits [..., n, c], student logits [n, c]) -> raw gradients [..., n, c]."""

    def __call__(self, teacher_logits: Tensor, student_logits: Tensor) -> Tensor:
        """Differentiate a distillation loss row by row."""
        ...


def decoupled_distillation(
    teacher_logits: Tensor, student_logits: Tensor, balance: float = DKD_BALANCE
) -> Tensor:
    """Decoupled knowledge distillation, DPSD Eq. 2, per row.

    The printed non-target term divides by 1 − p_{t,j}; we divide by 1 − p_{t,r} as the authors of
    decoupled distillation define it. With two classes that term is identically zero.

    Args:
        teacher_logits: [..., n, c].
        student_logits: [n, c] or of the teacher's shape.
        balance: λ, the weight of the non-target term.

    Returns:
        Losses [..., n], in nats.
    """
    teacher = teacher_logits.log_softmax(-1)
    student = student_logits.log_softmax(-1).expand_as(teacher)
    target = teacher.argmax(-1, keepdim=True)
    others = torch.ones_like(teacher, dtype=torch.bool).scatter(-1, target, False)

    def split(log_p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rest = log_p.masked_fill(~others, -torch.inf).logsumexp(-1, keepdim=True)
        return log_p.gather(-1, target), rest, (log_p - rest).masked_fill(~others, 0.0)

    t_target, t_rest, t_others = split(teacher)
    s_target, s_rest, s_others = split(student)
    target_term = t_target.exp() * (t_target - s_target) + t_rest.exp() * (t_rest - s_rest)
    weights = t_others.exp().masked_fill(~others, 0.0)
    non_target_term = (weights * (t_others - s_others)).sum(-1)
    return target_term.squeeze(-1) + balance * non_target_term


def classic_distillation(teacher_logits: Tensor, student_logits: Tensor) -> Tensor:
    """KL(teacher ‖ student) per row, the paper's baseline in Fig. 6; shapes as above."""
    teacher = teacher_logits.log_softmax(-1)
    student = student_logits.log_softmax(-1).expand_as(teacher)
    return (teacher.exp() * (teacher - student)).sum(-1)


def gradient_of(loss: DistillationLoss) -> RowGradient:
    """∂L_t/∂Φ_s of Eq. 3 with respect to the student's LOGITS, one row independent of the next.

    With respect to probabilities a tiny p_s would dominate every row; with respect to logits each
    row is bounded before it is normalised.
    """

    def gradient(teacher_logits: Tensor, student_logits: Tensor) -> Tensor:
        teacher = teacher_logits.detach().double()
        student = student_logits.detach().double().expand_as(teacher).clone().requires_grad_()
        with torch.enable_grad():
            (row_gradients,) = torch.autograd.grad(loss(teacher, student).sum(), student)
        return row_gradients

    return gradient


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
