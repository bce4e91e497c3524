"""Training a diffusion model in stages, one optimiser step at a time; it may stop between any two.

    first stage that has steps ──step, step, …──> next one ──step, …──> end ──averaged──> images
          state() after any step ──> load_state() in another process, and on to the same bytes

What the diffusion methods share around their algorithms. A method says which stages it has, what
takes a step of each, who learns in it, and what a stage takes over from those before.

Guarantee:
    None of its own. Nothing is reported but counts of steps: a loss on private images is private.
    A step that a crash undid draws again, so what was written after the checkpoint must not have
    left the holder.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.ema import Ema
from fedtranscribe.models.sampling import Sampling, sample
from fedtranscribe.models.schedule import Schedule
from fedtranscribe.models.unet import Denoiser

# Of a checkpoint. The first version drew the randomness of private records from a public stream:
# such a training has no guarantee, and is not continued as if it had one.
_VERSION = 3

Progress = Callable[[str, int, int], None]
"""(stage, steps done, steps in all)."""


class DiffusionSettings(Protocol):
    """A frozen dataclass of plain values; what is used of it here."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def ema_decay(self) -> float:
        """Of the averaged weights."""
        ...

    @property
    def schedule(self) -> Schedule:
        """T and betas."""
        ...

    @property
    def sampling(self) -> Sampling:
        """How images are drawn."""
        ...


@dataclass(frozen=True)
class Steps:
    """One stage.

    Attributes:
        count: optimiser steps that it has; public. A stage of none is left out.
        take: method of the trainer that takes the next of them; unbound, since a bound one would
            keep the private images alive in a cycle.
        memory: the setting to lower where memory runs out.
    """

    count: int
    take: Callable[[Any], None]
    memory: str


Stage = TypeVar("Stage", bound=StrEnum)
Settings = TypeVar("Settings", bound=DiffusionSettings)


def silent(stage: str, done: int, total: int) -> None:
    """Show nothing."""


def uncounted(done: int, total: int) -> None:
    """Show nothing."""


class StagedTraining(ABC, Generic[Stage, Settings]):
    """What a method's trainer begins with; the method ends its own `__init__` with `_begin`.

    Args:
        denoiser: the network to be released; trained in place, on its own device.
        settings: public.
        stages: in order.
        end: the stage after them all.
        facts: what besides the settings has to be the same in a run that goes on; public.
        rng: of public batches; nothing that depends on a private record may touch it.

    Attributes:
        settings: as given.
        denoiser: as given.
        ema: its `network` holds the averaged weights.
        stage: what the next step belongs to.
        done: steps of it that were taken.
    """

    stage: Stage
    done: int
    _optimiser: Optimizer | None

    def __init__(
        self,
        denoiser: Denoiser,
        settings: Settings,
        *,
        stages: Mapping[Stage, Steps],
        end: Stage,
        facts: Mapping[str, int],
        rng: torch.Generator,
    ) -> None:
        self.settings: Settings = settings
        self.denoiser = denoiser.train()
        self.ema = Ema(denoiser, settings.ema_decay)
        self._stages, self._end = dict(stages), end
        self._facts, self._rng = facts, rng

    # ---------------------------------------------------------------- what a method says

    @abstractmethod
    def caveats(self) -> tuple[str, ...]:
        """Why this run is NOT private; empty if it is."""

    @abstractmethod
    def _ready(self, stage: Stage) -> Optimizer | None:
        """Make everything ready for a stage that begins or goes on; what trains the denoiser."""

    @abstractmethod
    def _take_over(self) -> None:
        """Give a stage that begins what it has from those before; not when it goes on."""

    @abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """What the method adds to `state()`; `physical_batch` by name of the private training."""

    @abstractmethod
    def _load_own_state(self, state: dict[str, Any]) -> None:
        """Take that back; the stage is ready."""

    # ---------------------------------------------------------------- train and sample

    def steps_of(self, stage: Stage) -> int:
        """Steps that a stage has in all; public."""
        return 0 if stage is self._end else self._stages[stage].count

    @property
    def finished(self) -> bool:
        """Whether every stage is through."""
        return self.stage is self._end

    def train(self, steps: int | None = None, progress: Progress = silent) -> bool:
        """Go on by so many optimiser steps, or to the end; may be called again and again.

        Args:
            steps: at most; None for all that are left.
            progress: called after each step with (stage, steps done, steps in all) and nothing
                else, since a loss on private images is private.

        Returns:
            Whether training is finished.

        Raises:
            ConfigError: memory ran out; says which setting to lower.
        """
        left = math.inf if steps is None else steps
        while left > 0 and not self.finished:
            self._one_step()
            self.done += 1
            left -= 1
            progress(self.stage.value, self.done, self.steps_of(self.stage))
            self._go_on()
        return self.finished

    def sample(
        self,
        labels: Tensor,
        rng: torch.Generator,
        progress: Callable[[int, int], None] = uncounted,
    ) -> Tensor:
        """Images of the averaged weights: free post-processing.

        Args:
            labels: int64 [n]; the null label asks for any class.
            rng: source of x_T and ξ; never the one of the training, whose position reveals the
                sizes of secret batches.
            progress: called with (images done, images in all).

        Returns:
            float32 [n, c, h, w] in [-1, 1].
        """
        settings = self.settings
        return sample(
            self.ema.network, settings.schedule, labels, settings.sampling, rng, progress=progress
        )

    # ---------------------------------------------------------------- from stage to stage

    def _begin(self) -> None:
        self._enter(next(iter(self._stages)))
        self._go_on()

    def _enter(self, stage: Stage) -> None:
        self.stage, self.done = stage, 0
        self._optimiser = self._ready(stage)

    def _go_on(self) -> None:
        """Enter the next stage that has steps, when this one is through."""
        if self.finished or self.done < self.steps_of(self.stage):
            return
        order = list(self._stages)
        later = order[order.index(self.stage) + 1 :]
        self._enter(next((s for s in later if self.steps_of(s)), self._end))
        self._take_over()

    def _one_step(self) -> None:
        steps = self._stages[self.stage]
        try:
            steps.take(self)
        except torch.OutOfMemoryError:
            raise ConfigError(
                f"Memory ran out in {self.stage}; lower {steps.memory}, or take a smaller U-Net."
            ) from None

    # ---------------------------------------------------------------- interrupt and resume

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs to go on as if nothing had happened: plain values, tensors.

        The tensors are those in use: write them before the next step.
        Steps done after it and then again are steps that nobody accounted for: once this has left
        the holder, what follows from it may be computed once only.
        """
        return {
            "plan": self._plan(),
            "stage": self.stage.value,
            "done": self.done,
            "denoiser": self.denoiser.state_dict(),
            "optimiser": None if self._optimiser is None else self._optimiser.state_dict(),
            "ema": self.ema.state_dict(),
            "rng": self._rng.get_state(),
            **self._own_state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()` of the same plan.

        Raises:
            ConfigError: a checkpoint of other settings or another number of records.
        """
        saved = state.get("plan", {})  # none before the mixture of a private start is there
        for name, value in self._plan().items():
            if saved.get(name) != value:
                raise ConfigError(
                    f"The checkpoint was made with {name}={saved.get(name)}, this run has {value}; "
                    "give the same settings, or start a new run."
                )
        self.denoiser.load_state_dict(state["denoiser"])
        self.ema.load_state_dict(state["ema"])
        self._enter(type(self._end)(state["stage"]))
        self.done = state["done"]
        if self._optimiser is not None:
            self._optimiser.load_state_dict(state["optimiser"])
        self._load_own_state(state)
        self._rng.set_state(state["rng"].cpu())

    def _plan(self) -> dict[str, Any]:
        """All that has to be the same in a run that goes on."""
        return json.loads(json.dumps({"version": _VERSION, **asdict(self.settings), **self._facts}))
