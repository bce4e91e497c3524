"""Long training that costs nothing: a step at a time, and stored now and then."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from fedtranscribe.methods.method import Kept, Show
from fedtranscribe.models import Generator

_KEEP_SECONDS = 20.0


class Course(Protocol):
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


def run_courses(
    courses: Sequence[Callable[[], Course]],
    generator: Generator,
    rng: torch.Generator,
    show: Show,
    kept: Kept,
) -> None:
    """Carry out courses, one after the other; an interrupted one goes on where it was stored.

    Args:
        courses: make each of them, when its turn comes.
        generator: that they train.
        rng: whose numbers they use.
        show: receives every step.
        kept: where the state lies.
    """
    stored = kept.load()
    for number, make in enumerate(courses):
        if stored is not None and number < stored["course"]:
            continue
        course = make()
        if stored is not None:
            generator.load_state_dict(stored["generator"])
            rng.set_state(stored["rng"])
            course.load_state(stored["state"])
            stored = None
        last = time.monotonic()
        while course.done < course.steps:
            course.step()
            show(course.name, course.done, course.steps)
            if time.monotonic() - last > _KEEP_SECONDS or course.done == course.steps:
                kept.save(
                    {
                        "course": number,
                        "state": course.state(),
                        "generator": generator.state_dict(),
                        "rng": rng.get_state(),
                    }
                )
                last = time.monotonic()
