"""FedDPSD with a private start: sums over the records first, then teachers on what is left.

    sums ──> student, generator ──images──> teachers ──noisy answers──> labels ──> student

Teachers are asked about images of the generator: all of them are a mixture's, where the sums made
one; otherwise they are those of a network that the moments have trained. Their answers are
mixed with what the student says of the same images, and the student is set anew: ridge regression
on the records' noisy moments and on the moments of the answered images, side by side.

Guarantee:
    None of its own: functions of public images and of private answers.
"""

from typing import Any

import torch
from torch import Tensor

from fedtranscribe.methods.dpsd import DPSD
from fedtranscribe.methods.method import Combined, Show, StateStore
from fedtranscribe.methods.sums import SumsMethod
from fedtranscribe.models import Classifier, Generator
from fedtranscribe.models.inference import as_bytes
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.questions.moments import MomentSums
from fedtranscribe.questions.question import SumQuery
from fedtranscribe.questions.rows import ImageQuery

_BATCH = 250
# Of the images that teachers are asked about; public.
_POOL_SEED = 0


class TeachersAfterMoments(DPSD):
    """DPSD whose student is set by moments, of records and of answered images.

    Args:
        args, options: of `DPSD`; the student is that of `sums`.
        sums: all of their questions are answered before the first image is asked.
    """

    def __init__(self, *args: Any, sums: SumsMethod, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sums = sums

    def _train_student(
        self, steps: int, *, finishing: bool = False, show: Show = lambda stage, done, total: None
    ) -> float:
        """Set the head anew; the mean square that the answered rows' labels are away from it."""
        labels = self._labels(self._replay.images, self._replay.evidence).cpu().double()
        rows = self._rows_of(self._replay.images)
        self._sums.fit(MomentSums(rows.T @ rows, rows.T @ labels))
        show("student on all answers", 1, 1)
        taught = self._logits(self._replay.images).softmax(-1).double()
        return float((taught - labels).square().sum(1).mean())

    def _rows_of(self, images: Tensor) -> Tensor:
        """Features of images, float64 [n, k]."""
        self.student.eval()
        with torch.no_grad():
            parts = [
                self.student.features(part.to(self._device).float() / 255).cpu()
                for part in images.split(_BATCH)
            ]
        return torch.cat(parts).double()


class SumsThenTeachers:
    """Sums over records, then teachers; a `Method`.

    Args:
        sums: ask first.
        teachers: asks then, about images of the same generator.
        show: receives the generator's training between the two.
        store: where that training lies, so that an interrupted one goes on.
    """

    def __init__(
        self,
        sums: SumsMethod,
        teachers: TeachersAfterMoments,
        show: Show,
        store: StateStore,
    ) -> None:
        self._sums = sums
        self._teachers = teachers
        self._show = show
        self._store = store
        self._has_generator = False

    @property
    def student(self) -> Classifier:
        """Both have the same."""
        return self._teachers.student

    @property
    def generator(self) -> Generator | GaussianMixture | None:
        """Both have the same network; a mixture stays as the sums have made it."""
        return self._sums.generator

    @property
    def rng(self) -> torch.Generator:
        """Both have the same."""
        return self._teachers.rng

    @property
    def stage(self) -> str:
        """Of the caller."""
        return self._now.stage

    @property
    def part(self) -> int:
        """Every question about moments has its own part, all rows have the last."""
        return self._sums.round

    @property
    def round(self) -> int:
        """How many queries have been learned from."""
        return self._sums.round + self._teachers.round

    @property
    def rows(self) -> int:
        """An answer about moments is one row."""
        return self._sums.rows + self._teachers.rows

    @property
    def finished(self) -> bool:
        """Whether both have asked everything."""
        return self._sums.finished and self._teachers.finished

    def ask(self) -> SumQuery | ImageQuery:
        """The next query; the generator is trained before the first one about images."""
        if self._sums.finished and not self._has_generator:
            self._sums.finish_generator(self._show, self._store)
            self._has_generator = True
            self._show_images()
        return self._now.ask()

    def learn(self, query: Any, answer: Combined) -> dict[str, float]:
        """Learn from the answer to `query`; public losses, by name."""
        return self._now.learn(query, answer)

    def finish(self, show: Show) -> None:
        """Set the student once more, on all answers."""
        if self._teachers.rows:
            self._teachers.finish(show)

    def finish_generator(self, show: Show, store: StateStore) -> None:
        """What it lacks if nothing was asked of teachers: a run may stop before."""
        if not self._has_generator:
            self._sums.finish_generator(show, store)

    def _show_images(self) -> None:
        """Have teachers asked about a mixture's images; the same ones after an interrupt."""
        generator = self._sums.generator
        if isinstance(generator, GaussianMixture):
            images, _ = generator.sample(
                self._teachers.settings.rows, torch.Generator().manual_seed(_POOL_SEED)
            )
            self._teachers.ask_about(as_bytes(images))

    @property
    def _now(self) -> SumsMethod | TeachersAfterMoments:
        return self._teachers if self._sums.finished else self._sums

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs to go on as if nothing had happened; tensors on CPU."""
        return {
            "sums": self._sums.state(),
            "teachers": self._teachers.state(),
            "has_generator": self._has_generator,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()` of the same plan."""
        self._sums.load_state(state["sums"])
        # Student and random numbers are the same in both.
        self._teachers.load_state(state["teachers"])
        self._has_generator = state["has_generator"]
        if self._has_generator:
            self._show_images()
