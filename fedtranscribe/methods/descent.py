"""Rounds of noisy gradients that go on from where moments have set the student.

    head ──holders──> Σ u (softmax(u head) − e_y)ᵀ + noise ──(Σ u uᵀ + ridge)⁻¹──> next head

Ridge regression asks a linear classifier to name every record by one number per class, however far
it is from a mistake. The loss of softmax asks it to be right. From the moments' student, and with
their noisy second moments as the preconditioner, 10 or 20 rounds are enough. Private second-order
steps for logistic regression are those of Ganesh et al. (2023); here curvature is paid for already.

Guarantee:
    None of its own: a function of private answers.
"""

from dataclasses import astuple
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedtranscribe.methods.distillation import Slope, calibrated_scale
from fedtranscribe.methods.method import Combined
from fedtranscribe.methods.moments import (
    MomentsMethod,
    damped,
    label_shares,
    records_in,
    weighted_share,
)
from fedtranscribe.models import Classifier
from fedtranscribe.questions.descent import DescentQuery
from fedtranscribe.questions.question import Kind

# Of the inverse of Σ u uᵀ, with which a step would be Newton's if every record were as uncertain
# as p (1 − p) = 1/6.
_STEP = 6.0
_LONGEST_STEP = 24.0


class DescentMethod:
    """Student side of the rounds.

    Args:
        moments: have set the student; their last answer is the preconditioner.
        rounds: how many gradients to ask.
        run: prefix of query ids, unique for the ledger.
    """

    def __init__(self, moments: MomentsMethod, rounds: int, run: str) -> None:
        self._moments = moments
        self._rounds = rounds
        self._run = run
        self._heads: list[Tensor] = []
        self._slopes: list[Slope] = []

    @property
    def round(self) -> int:
        """How many questions have been answered."""
        return len(self._heads)

    @property
    def finished(self) -> bool:
        """Whether all of them have been."""
        return self.round == self._rounds

    @property
    def logit_scale(self) -> float | None:
        """What the finished student's logits are scaled by; None until then."""
        if not self.finished:
            return None
        last, answer = self._moments.last
        records, slopes = self._share * records_in(last, answer), self._slopes[self._rounds // 2 :]
        return calibrated_scale(slopes, records, multilabel=last.multilabel)

    def ask(self) -> DescentQuery:
        """The gradient at the head as it is."""
        last, _ = self._moments.last
        head, name = self._head().float(), f"{self._run}/descent-{self.round}"
        weights = self._moments.class_weights.float()
        of_rows, products = (last.centre, last.map, last.features), last.products
        more = head, weights, last.multilabel
        return DescentQuery(name, Kind.DESCENT, *of_rows, *more, products=products)

    def learn(self, query: DescentQuery, answer: Combined) -> dict[str, float]:
        """Take a step; after the last one the student is the mean of the later half of heads.

        That mean is scaled by what the later answers say of its confidence.
        """
        gradient = answer.values[0].double().reshape(query.entries, query.classes)
        at = query.head.double()
        self._slopes.append(Slope(float((at * gradient).sum()), answer.noise * float(at.norm())))
        head = at - self._steps * (self._preconditioner @ gradient)
        self._heads.append(head)
        scale, student = self.logit_scale, self._moments.student
        if scale is not None:
            head = scale * torch.stack(self._heads[self._rounds // 2 :]).mean(0)
        with torch.no_grad():
            student.head.weight.copy_(head.T)
            student.head.bias.zero_()
        return {}

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs; the student is stored by the moments."""
        return {"heads": list(self._heads), "slopes": [astuple(slope) for slope in self._slopes]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()` of the same plan."""
        self._heads = list(state["heads"])
        self._slopes = [Slope(*slope) for slope in state["slopes"]]

    def _head(self) -> Tensor:
        if self._heads:
            return self._heads[-1]
        return _weights(self._moments.student)

    @cached_property
    def _steps(self) -> Tensor:
        """Of each class; of several labels a rare one is less uncertain, and takes longer steps."""
        query, answer = self._moments.last
        if not query.multilabel:
            return torch.full((query.classes,), _STEP, dtype=torch.float64)
        shares = label_shares(query, answer)
        return (2 / (shares * (1 - shares))).clamp_max(_LONGEST_STEP)

    @cached_property
    def _preconditioner(self) -> Tensor:
        """The inverse of what ridge regression has solved by, [k, k]."""
        return torch.linalg.inv(damped(*self._moments.last, self._share))

    @cached_property
    def _share(self) -> float:
        """Of the records, that is left by the weights of their classes."""
        return weighted_share(*self._moments.last, self._moments.class_weights)


def _weights(student: Classifier) -> Tensor:
    return student.head.weight.detach().cpu().double().T
