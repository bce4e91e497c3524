"""What every method on the student side can do, and long training that asks nothing."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from fedtranscribe.models import Classifier, Generator
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.questions.kinds import query_from
from fedtranscribe.questions.question import Query

Show = Callable[[str, int, int], None]
"""Called with a stage of long work, steps done, and steps in all."""


class StateStore(Protocol):
    """A place for one state, outside of checkpoints of the rounds."""

    def load(self) -> dict[str, Any] | None:
        """What was stored last; None at the start."""
        ...

    def save(self, state: dict[str, Any]) -> None:
        """Replace it."""
        ...


@dataclass(frozen=True)
class Combined:
    """All holders' answers to a query, as one: private, so anyone may see and keep it.

    Attributes:
        query_id: the query's id.
        values: [rows, width], the holders' mean or sum.
        noise: std per coordinate of the noise in `values`; for labels, nats that one is worth.
    """

    query_id: str
    values: Tensor
    noise: float


Q = TypeVar("Q", bound=Query)


class Method(Protocol[Q]):
    """Asks, learns from what comes back, and can be stored in between.

    Guarantee:
        None of its own: a function of public values and of private answers, so student and
        generator inherit the guarantee of the answers by post-processing.
    """

    @property
    def student(self) -> Classifier:
        """Trained in place."""
        ...

    @property
    def generator(self) -> Generator | GaussianMixture | None:
        """A network that is trained in place, or a mixture that the answers are."""
        ...

    @property
    def stage(self) -> str:
        """What is counted, in words."""
        ...

    @property
    def rng(self) -> torch.Generator:
        """Source of every random choice; it needs no secrecy."""
        ...

    @property
    def part(self) -> int:
        """Which part of the plan the next query belongs to."""
        ...

    @property
    def round(self) -> int:
        """How many queries have been learned from."""
        ...

    @property
    def rows(self) -> int:
        """How many rows have been learned from."""
        ...

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to ask."""
        ...

    def ask(self) -> Q:
        """The next query."""
        ...

    def learn(self, query: Q, answer: Combined) -> dict[str, float]:
        """Learn from the answer to `query`; public losses, by name."""
        ...

    def finish(self, show: Show) -> None:
        """What the student can learn without asking anything more: free."""
        ...

    def finish_generator(self, show: Show, store: StateStore) -> None:
        """What the generator still has to learn from the finished student: free.

        Args:
            show: receives every step.
            store: where a long training lies, so that an interrupted one goes on.
        """
        ...

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs to go on as if nothing had happened; tensors on CPU."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()` of the same plan."""
        ...


def stored_answers(learned: Iterable[tuple[Query, Combined]]) -> list[dict[str, Any]]:
    """Queries and what came back, as plain values and tensors."""
    return [
        {"query": query.to_dict(), "values": answer.values, "noise": answer.noise}
        for query, answer in learned
    ]


def read_answers(stored: Iterable[dict[str, Any]], kind: type[Q]) -> list[tuple[Q, Combined]]:
    """The inverse of `stored_answers`, where all are of one kind."""
    learned = []
    for answer_file in stored:
        query = query_from(**answer_file["query"])
        assert isinstance(query, kind)
        learned.append((query, Combined(query.id, answer_file["values"], answer_file["noise"])))
    return learned


_KEEP_SECONDS = 20.0


class TrainingSteps(Protocol):
    """Steps that train a generator in place.

    Attributes:
        name: of what is done, in words.
        done: steps taken.
        steps: steps in all.
    """

    name: str
    done: int
    steps: int

    def step(self) -> float:
        """Take the next one; its loss."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs, but for the generator and its random numbers."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()`."""
        ...


def run_training_steps(
    trainings: Sequence[Callable[[], TrainingSteps]],
    generator: nn.Module,
    rng: torch.Generator,
    show: Show,
    store: StateStore,
) -> None:
    """Carry out courses, one after the other; an interrupted one goes on where it was stored.

    Args:
        trainings: make each of them, when its turn comes.
        generator: that they train.
        rng: whose numbers they use.
        show: receives every step.
        store: where the state lies.
    """
    stored = store.load()
    for number, make in enumerate(trainings):
        if stored is not None and number < stored["course"]:
            continue
        training = make()
        if stored is not None:
            generator.load_state_dict(stored["generator"])
            rng.set_state(stored["rng"])
            training.load_state(stored["state"])
            stored = None
        last = time.monotonic()
        while training.done < training.steps:
            training.step()
            show(training.name, training.done, training.steps)
            if time.monotonic() - last > _KEEP_SECONDS or training.done == training.steps:
                store.save(
                    {
                        "course": number,
                        "state": training.state(),
                        "generator": generator.state_dict(),
                        "rng": rng.get_state(),
                    }
                )
                last = time.monotonic()
