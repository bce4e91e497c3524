"""Gradients: the mean over teachers of their normalised gradients (DPSD Eq. 3)."""

from collections.abc import Callable
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedtranscribe.models.teachers import Teachers
from fedtranscribe.noise.mechanisms import Mechanism, gaussian_mechanism
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import RowAnswer
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.rows import (
    ImageQuery,
    OfTeachers,
    RowBound,
    mean_rows,
    mean_rows_bound,
)

# λ of Eq. 2, set to 8 in the paper's experiments.
DKD_BALANCE = 8.0

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


class MeanGradients(OfTeachers):
    """The mean over shards of bounded gradients of a distillation loss, by the student's logits.

    Args:
        teachers: an ensemble on disjoint shards of the holder's records.
        row_gradient: ∂L_t/∂Φ_s of Eq. 3; benchmarks pass classic distillation.
        bound: unit rows as in Eq. 3, or clipping for the paper's ablation; both lie in the same
            ball, for which `mean_rows_bound` holds.
    """

    kind = Kind.GRADIENT

    def __init__(
        self,
        teachers: Teachers,
        *,
        row_gradient: RowGradient | None = None,
        bound: Literal[RowBound.UNIT, RowBound.CLIP] = RowBound.UNIT,
    ) -> None:
        super().__init__(teachers)
        self._row_gradient = row_gradient or gradient_of(decoupled_distillation)
        self._bound = bound

    def mechanism(self, query: ImageQuery, plan: NoisePlan) -> Mechanism:
        """See `Statistic`."""
        bound = mean_rows_bound(self._teachers.facts.shards, RowAnswer.GRADIENT, query.k)
        return gaussian_mechanism(bound, plan)

    def values(self, query: ImageQuery) -> Tensor:
        """See `Statistic`."""
        student = query.student_logits
        assert student is not None  # ImageQuery refuses it otherwise
        logits = self._teachers.logits(query.images)
        rows = (self._row_gradient(shard, student) for shard in logits)
        return mean_rows(rows, query.index_sets, self._teachers.facts.shards, self._bound)
