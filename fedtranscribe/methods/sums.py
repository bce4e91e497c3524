"""Sums over records, one question after the other; a `Method`.

    MomentsMethod ──> student          (what records of a class have in common)
    DescentMethod ──> student          (where it is still wrong), if any rounds are asked
    MixtureMethod ──> GaussianMixture  (what records look like), if one is asked
    ClassMomentsMethod ──> Sharpener   (what its images lack), if class moments are asked

Student and mixture are set by sums, so that their time is the holders'. A sharpener is trained when
all is answered.

Guarantee:
    None of its own: functions of public images and of private answers.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from fedtranscribe.methods.descent import DescentMethod
from fedtranscribe.methods.method import Combined, Show, StateStore, run_training_steps
from fedtranscribe.methods.mixture import MixtureMethod
from fedtranscribe.methods.moments import MomentsMethod
from fedtranscribe.methods.sharpening import ClassMomentsMethod, Sharpening
from fedtranscribe.models import Classifier, Generator
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.models.sharpener import Sharpener
from fedtranscribe.questions.moments import MomentSums
from fedtranscribe.questions.question import SumQuery


class _Asks(Protocol):
    """What asks in its turn."""

    @property
    def round(self) -> int: ...

    @property
    def finished(self) -> bool: ...

    def ask(self) -> SumQuery: ...

    def learn(self, query: Any, answer: Combined) -> dict[str, float]: ...

    def state(self) -> Any: ...

    def load_state(self, state: Any) -> None: ...


class SumsMethod:
    """Asks all of them in turn.

    Args:
        moments: ask first, and set the student.
        descent: goes on from there; None asks nothing more for the student.
        mixture: is the generator; None leaves the network of the moments.
        class_moments: what the mixture's images are sharpened to; None leaves them as they are.
        sharpen_steps: of that training.
    """

    stage = "sums over records"

    def __init__(
        self,
        moments: MomentsMethod,
        descent: DescentMethod | None = None,
        mixture: MixtureMethod | None = None,
        class_moments: ClassMomentsMethod | None = None,
        sharpen_steps: int = 0,
    ) -> None:
        self._moments = moments
        self._descent = descent
        self._mixture = mixture
        self._class_moments = class_moments
        self._sharpen_steps = sharpen_steps
        self._sharpener: Sharpener | None = None
        turns = (moments, descent, mixture, class_moments)
        self._turns: Sequence[_Asks] = [turn for turn in turns if turn is not None]

    @property
    def student(self) -> Classifier:
        """That of the moments."""
        return self._moments.student

    @property
    def logit_scale(self) -> float | None:
        """See `DescentMethod`; None where no gradients have been asked, or not all of them yet."""
        return None if self._descent is None else self._descent.logit_scale

    @property
    def generator(self) -> Generator | GaussianMixture | None:
        """The mixture; the moments' network, if any, where none is asked or not completely yet."""
        if self._mixture is None or not self._mixture.finished:
            return self._moments.generator
        return replace(self._mixture.mixture, sharpener=self._sharpener)

    @property
    def rng(self) -> torch.Generator:
        """That of the moments; the others make no random choice."""
        return self._moments.rng

    @property
    def part(self) -> int:
        """Each question has a noise of its own."""
        return self.round

    @property
    def round(self) -> int:
        """How many questions have been answered."""
        return sum(turn.round for turn in self._turns)

    @property
    def rows(self) -> int:
        """An answer is one row."""
        return self.round

    @property
    def finished(self) -> bool:
        """Whether all questions have been answered."""
        return all(turn.finished for turn in self._turns)

    def ask(self) -> SumQuery:
        """The next question."""
        return self._now.ask()

    def learn(self, query: Any, answer: Combined) -> dict[str, float]:
        """Learn from the answer to `query`; public figures, by name."""
        return self._now.learn(query, answer)

    def fit(self, beside: MomentSums | None = None) -> None:
        """See `MomentsMethod.fit`."""
        self._moments.fit(beside)

    def finish(self, show: Show) -> None:
        """Nothing: answers have set the student."""

    def finish_generator(self, show: Show, store: StateStore) -> None:
        """Train the network of the moments, unless the answers are the generator; sharpen that."""
        mixture = self.generator
        if not isinstance(mixture, GaussianMixture):
            self._moments.finish_generator(show, store)
        elif self._class_moments is not None and self._class_moments.finished:
            sharpener = self._new_sharpener().to(self.student.head.weight.device)
            rng, learned = torch.Generator().manual_seed(0), self._class_moments.learned

            def training() -> Sharpening:
                return Sharpening(
                    sharpener, mixture, self.student, *learned, self._sharpen_steps, rng
                )

            run_training_steps([training], sharpener, rng, show, store)
            # Where noise hides every class, the mixture keeps its texture.
            self._sharpener = sharpener.cpu().eval() if bool(sharpener.known.any()) else None

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs to go on as if nothing had happened; tensors on CPU."""
        sharpener = None if self._sharpener is None else self._sharpener.state_dict()
        return {"turns": [turn.state() for turn in self._turns], "sharpener": sharpener}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()` of the same plan."""
        for turn, stored in zip(self._turns, state["turns"], strict=True):
            turn.load_state(stored)
        if state["sharpener"] is not None:
            self._sharpener = self._new_sharpener().eval()
            self._sharpener.load_state_dict(state["sharpener"])

    def _new_sharpener(self) -> Sharpener:
        student = self.student
        return Sharpener(student.channels, student.size, student.groups)

    @property
    def _now(self) -> _Asks:
        return next(turn for turn in self._turns if not turn.finished)
