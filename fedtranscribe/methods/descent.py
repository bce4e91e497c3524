"""Rounds of noisy gradients that go on from where moments have set the student.

    head ──holders──> Σ u (softmax(u head) − e_y)ᵀ + noise ──(Σ u uᵀ + ridge)⁻¹──> next head

Ridge regression asks a linear classifier to name every record by one number per class, however far
it is from a mistake. The loss of softmax asks it to be right. From the moments' student, and with
their noisy second moments as the preconditioner, ten rounds are enough. Private second-order
steps for logistic regression are those of Ganesh et al. (2023); here curvature is paid for already.

Guarantee:
    None of its own: a function of private answers.
"""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedtranscribe.methods.method import Combined
from fedtranscribe.methods.moments import MomentsMethod, damped
from fedtranscribe.models import Classifier
from fedtranscribe.query import DescentQuery, Kind

# Of the inverse of Σ u uᵀ, with which a step would be Newton's if every record were as uncertain
# as p (1 − p) = 1/6.
_STEP = 6.0


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

    @property
    def round(self) -> int:
        """How many questions have been answered."""
        return len(self._heads)

    @property
    def finished(self) -> bool:
        """Whether all of them have been."""
        return self.round == self._rounds

    def ask(self) -> DescentQuery:
        """The gradient at the head as it is."""
        last, _ = self._moments.last
        head, name = self._head().float(), f"{self._run}/descent-{self.round}"
        return DescentQuery(name, Kind.DESCENT, last.centre, last.map, last.features, head)

    def learn(self, query: DescentQuery, answer: Combined) -> dict[str, float]:
        """Take a step; after the last one the student is the mean of the later half of heads."""
        gradient = answer.values[0].double().reshape(query.entries, query.classes)
        head = query.head.double() - _STEP * (self._preconditioner @ gradient)
        self._heads.append(head)
        later = self._heads[self._rounds // 2 :] if self.finished else [head]
        student = self._moments.student
        with torch.no_grad():
            student.head.weight.copy_(torch.stack(later).mean(0).T)
            student.head.bias.zero_()
        return {}

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs; the student is stored by the moments."""
        return {"heads": list(self._heads)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()` of the same plan."""
        self._heads = list(state["heads"])

    def _head(self) -> Tensor:
        if self._heads:
            return self._heads[-1]
        return _weights(self._moments.student)

    @cached_property
    def _preconditioner(self) -> Tensor:
        """The inverse of what ridge regression has solved by, [k, k]."""
        return torch.linalg.inv(damped(*self._moments.last))


def _weights(student: Classifier) -> Tensor:
    return student.head.weight.detach().cpu().double().T
