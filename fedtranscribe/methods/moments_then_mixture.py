"""Moments for a student, then a mixture of the same records for its generator; a `Method`.

    MomentsMethod ──> student          (what records of a class have in common)
    MixtureMethod ──> GaussianMixture  (what they look like)

Neither learns from the other's answers; both are set by sums, so that a run's time is the holders'.

Guarantee:
    None of its own: functions of public images and of private answers.
"""

from typing import Any

import torch

from fedtranscribe.mechanisms import MomentSums
from fedtranscribe.methods.method import Combined, Kept, Show
from fedtranscribe.methods.mixture import MixtureMethod
from fedtranscribe.methods.moments import MomentsMethod
from fedtranscribe.models import Classifier, Generator
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.query import MixtureQuery, MomentsQuery


class MomentsThenMixture:
    """Asks both, one after the other.

    Args:
        moments: asks first, and sets the student.
        mixture: asks then, and is the generator.
    """

    def __init__(self, moments: MomentsMethod, mixture: MixtureMethod) -> None:
        self._moments = moments
        self._mixture = mixture

    @property
    def student(self) -> Classifier:
        """That of the moments."""
        return self._moments.student

    @property
    def generator(self) -> Generator | GaussianMixture:
        """The mixture; the network of the moments where a run ended before it was complete."""
        return self._mixture.mixture if self._mixture.finished else self._moments.generator

    @property
    def rng(self) -> torch.Generator:
        """That of the moments; a mixture makes no random choice."""
        return self._moments.rng

    @property
    def stage(self) -> str:
        """What is counted."""
        return "sums over records"

    @property
    def part(self) -> int:
        """Each question has a noise of its own."""
        return self.round

    @property
    def round(self) -> int:
        """How many questions have been answered."""
        return self._moments.round + self._mixture.round

    @property
    def rows(self) -> int:
        """An answer is one row."""
        return self.round

    @property
    def finished(self) -> bool:
        """Whether all questions have been answered."""
        return self._moments.finished and self._mixture.finished

    def ask(self) -> MomentsQuery | MixtureQuery:
        """The next question."""
        return self._mixture.ask() if self._moments.finished else self._moments.ask()

    def learn(self, query: Any, answer: Combined) -> dict[str, float]:
        """Keep the answer; the last one about moments sets the student."""
        if not self._moments.finished:
            return self._moments.learn(query, answer)
        self._mixture.learn(query, answer)
        return {}

    def fit(self, beside: MomentSums | None = None) -> None:
        """See `MomentsMethod.fit`."""
        self._moments.fit(beside)

    def finish(self, show: Show) -> None:
        """Nothing: answers have set the student."""

    def finish_generator(self, show: Show, kept: Kept) -> None:
        """Nothing, unless a run ended early: the answers are the generator."""
        if not self._mixture.finished:
            self._moments.finish_generator(show, kept)

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs to go on as if nothing had happened; tensors on CPU."""
        return {"moments": self._moments.state(), "mixture": self._mixture.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()` of the same plan."""
        self._moments.load_state(state["moments"])
        self._mixture.load_state(state["mixture"])
