"""Training a diffusion model in stages, one optimiser step at a time; it may stop between any two.

    first stage that has steps ──step, step, …──> next one ──step, …──> end ──averaged──> images
          state() after any step ──> load_state() in another process, and on to the same bytes

Guarantee:
    None of its own; a method says what its steps use. Nothing is reported but counts of steps: a
    loss on private images is private. A step that a crash undid draws again, so what was written
    after the checkpoint must not have left the holder.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.diffusion import Sampling, Schedule
from fedtranscribe.models.unet import Denoiser, UNetSize
from fedtranscribe.noise.sources import BitSource, NoiseSource
from fedtranscribe.privacy.diffusion import DpPromisePlan, DpSadPlan, DpSgdPlan
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.results.progress import Progress, silent
from fedtranscribe.trainers.denoising import Ema
from fedtranscribe.trainers.per_sample import Backend
from fedtranscribe.trainers.records import PrivateRecords, RecordImages

# Of a checkpoint.
_VERSION = 4


class Trainer(Protocol):
    """A training that takes one step at a time and can go on from its own state."""

    @property
    def finished(self) -> bool:
        """Whether every stage is through."""
        ...

    @property
    def release(self) -> MechanismRelease | None:
        """What it gives away, from the very plan that it trains by; None for no guarantee."""
        ...

    @property
    def network(self) -> Denoiser:
        """What is to be released, once it is finished."""
        ...

    def caveats(self) -> tuple[str, ...]:
        """Why the run is NOT private; empty if it is."""
        ...

    def train(self, steps: int | None = None, progress: Progress = ...) -> bool:
        """Go on by so many steps, or to the end; whether training is finished."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs: plain values and tensors.

        `physical_batch` in it has records at a time by private training.
        """
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()` of the same plan, or raise ConfigError."""
        ...


class TrainerSettings(ABC):
    """Public settings of a method, a frozen dataclass of plain values."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    noise_multiplier: float
    pretrain_batch: int
    pretrain_epochs: float
    ema_decay: float
    unet: UNetSize
    schedule: Schedule
    sampling: Sampling

    @abstractmethod
    def privacy_plan(self, records: int, dimensions: int = 784) -> DpPromisePlan | DpSadPlan:
        """What trains and what is booked; a run that has `caveats` has no guarantee."""

    @abstractmethod
    def steps(self, records: int, public_images: int) -> dict[StrEnum, int]:
        """Optimiser steps of each stage, in order; a stage of none is left out."""

    @abstractmethod
    def caveats(self) -> tuple[str, ...]:
        """Why these settings are NOT private; empty if they are."""

    def pretrain_steps(self, images: int) -> int:
        """Over all epochs; 0 without public images."""
        return math.ceil(self.pretrain_epochs * images / self.pretrain_batch)

    def release(self, records: int, dimensions: int = 784) -> MechanismRelease | None:
        """What the ledger books; None for a run that has no guarantee."""
        return None if self.caveats() else self.privacy_plan(records, dimensions).release()

    def _expect_counts(self, *names: str) -> None:
        self._expect(names, lambda value: value >= 1, ">= 1")

    def _expect_positive(self, *names: str) -> None:
        self._expect(names, lambda value: 0 < value < math.inf, "> 0 and finite")

    def _expect_not_negative(self, *names: str) -> None:
        self._expect(names, lambda value: 0 <= value < math.inf, ">= 0 and finite")

    def _expect_shares(self, *names: str) -> None:
        self._expect(names, lambda value: 0 <= value < 1, "in [0, 1)")

    def _expect(self, names: Sequence[str], fits: Callable[[float], bool], words: str) -> None:
        for name in names:
            if not fits(value := getattr(self, name)):
                raise ConfigError(f"Expected {name}={value} {words}.")


@dataclass(frozen=True, eq=False)
class TrainingInputs:
    """What a method trains on, and with."""

    images: Tensor  # PRIVATE, float32 [N, c, h, w] in [-1, 1] (`models.diffusion.to_signed`)
    labels: Tensor | None  # PRIVATE, int64 [N]; None for a network of 0 classes
    public: Tensor | None  # public images like `images`; None for no pre-training
    noise: NoiseSource  # on gradients and images: OS entropy, or a seeded source in tests
    # coins of the Poisson batches, and keys of the records' own streams; as `noise`
    bits: BitSource
    rng: torch.Generator  # public batches, their time steps and noise; it needs no secrecy
    # Of the images; those that share one are one record. None where each is its own.
    ids: Sequence[str] | None = None
    public_labels: Tensor | None = None  # int64, of the records' classes; None for none
    backend: Backend = Backend.FUNCTIONAL  # of the per-record gradients
    physical_batch: int | None = None  # records at a time in DP-SGD; None measures it

    def private_records(
        self, images: RecordImages, plan: DpSgdPlan, protected: bool, device: torch.device
    ) -> PrivateRecords:
        """The records, to be trained on by DP-SGD of a plan; without `protected` NOT private."""
        return PrivateRecords(
            images,
            plan,
            protected=protected,
            noise=self.noise,
            bits=self.bits,
            backend=self.backend,
            physical_batch=self.physical_batch,
            device=device,
        )


Stage = TypeVar("Stage", bound=StrEnum)
Settings = TypeVar("Settings", bound=TrainerSettings)


class StageTrainer(ABC, Generic[Stage, Settings]):
    """Trains the network to be released, in place; a method ends its `__init__` with `_begin`."""

    stage: Stage
    done: int

    def __init__(self, denoiser: Denoiser, settings: Settings, inputs: TrainingInputs) -> None:
        _check_images(inputs.images, denoiser, "private")
        labels = _checked_labels(inputs.labels, len(inputs.images), denoiser)
        self.images = RecordImages(inputs.images, labels, inputs.ids)
        # Images and labels; null labels where there are none.
        self.public = _checked_public(inputs.public, inputs.public_labels, denoiser)
        records, public_images = len(self.images), len(self.public[0])
        self.privacy_plan: Any = settings.privacy_plan(records, inputs.images[0].numel())
        self._counts: Mapping[Any, int] = settings.steps(records, public_images)
        # Besides the settings, what has to be the same in a run that goes on.
        self._facts: dict[str, int] = {"records": records, "public_images": public_images}
        self.settings: Settings = settings
        self.denoiser = denoiser.train()
        self.device = next(denoiser.parameters()).device
        self.ema = Ema(denoiser, settings.ema_decay)
        self._rng = inputs.rng
        self._seeded = not (inputs.noise.private and inputs.bits.private)
        self._records: PrivateRecords | None = None

    # ---------------------------------------------------------------- what a method adds

    @abstractmethod
    def _ready(self, stage: Stage) -> dict[str, Optimizer]:
        """Make everything ready for a stage that begins or goes on; its optimisers."""

    @abstractmethod
    def _step(self) -> tuple[Callable[[], None], str]:
        """What takes a step of this stage, and the setting to lower where memory runs out."""

    @abstractmethod
    def _take_over(self) -> None:
        """Give a stage that begins what it has from those before; not when it goes on."""

    @abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """What the method adds to `state()`."""

    @abstractmethod
    def _load_own_state(self, state: dict[str, Any]) -> None:
        """Take that back; the stage is ready."""

    def _parts(self) -> dict[str, Any]:
        """Whatever has a `state_dict`, or None."""
        return {"denoiser": self.denoiser, "ema": self.ema}

    # ---------------------------------------------------------------- train

    @property
    def release(self) -> MechanismRelease | None:
        """What it gives away; None where it has no guarantee."""
        return self.settings.release(self.privacy_plan.records, self.privacy_plan.dimensions)

    @property
    def network(self) -> Denoiser:
        """The averaged weights, which samples are drawn from."""
        return self.ema.network

    def caveats(self) -> tuple[str, ...]:
        """Why this run is NOT private; empty if it is."""
        seeded = ("Noise or batches come from a seed.",) if self._seeded else ()
        return (*self.settings.caveats(), *seeded)

    def steps_of(self, stage: Stage) -> int:
        """Steps that a stage has in all; public."""
        return self._counts.get(stage, 0)

    @property
    def finished(self) -> bool:
        """Whether every stage is through."""
        return self.stage not in self._counts

    def train(self, steps: int | None = None, progress: Progress = silent) -> bool:
        """Go on by so many optimiser steps, or to the end; whether training is finished."""
        left = math.inf if steps is None else steps
        while left > 0 and not self.finished:
            self._one_step()
            self.done += 1
            left -= 1
            progress(self.stage.value, self.done, self.steps_of(self.stage))
            self._go_on()
        return self.finished

    def _begin(self) -> None:
        self._enter(next(iter(self._counts)))
        self._go_on()

    def _enter(self, stage: Stage) -> None:
        self.stage, self.done = stage, 0
        self._optimisers = self._ready(stage)

    def _go_on(self) -> None:
        """Enter the next stage that has steps, or the last one, when this one is through."""
        if self.finished or self.done < self.steps_of(self.stage):
            return
        *stages, end = type(self.stage)
        later = stages[stages.index(self.stage) + 1 :]
        self._enter(next((stage for stage in later if self.steps_of(stage)), end))
        self._take_over()

    def _one_step(self) -> None:
        take, memory = self._step()
        try:
            take()
        except torch.OutOfMemoryError:
            raise ConfigError(
                f"Memory ran out in {self.stage}; lower {memory}, or take a smaller U-Net."
            ) from None

    # ---------------------------------------------------------------- interrupt and resume

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs to go on as if nothing had happened: plain values, tensors.

        The tensors are those in use: write them before the next step.
        Steps done after it and then again are steps that nobody accounted for: once this has left
        the holder, what follows from it may be computed once only.
        """
        parts = {
            name: part.state_dict() for name, part in self._parts().items() if part is not None
        }
        return {
            **parts,
            "plan": self._plan(),
            "stage": self.stage.value,
            "done": self.done,
            "optimisers": {name: each.state_dict() for name, each in self._optimisers.items()},
            "rng": self._rng.get_state(),
            "physical_batch": {} if self._records is None else dict(self._records.measured),
            **self._own_state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()` of the same plan."""
        saved = state.get("plan", {})  # none before the mixture of a private start is there
        for name, value in self._plan().items():
            if saved.get(name) != value:
                raise ConfigError(
                    f"The checkpoint was made with {name}={saved.get(name)}, this run has {value}; "
                    "give the same settings, or start a new run."
                )
        for name, part in self._parts().items():
            if part is not None:
                part.load_state_dict(state[name])
        self._enter(type(self.stage)(state["stage"]))
        self.done = state["done"]
        for name, optimiser in self._optimisers.items():
            optimiser.load_state_dict(state["optimisers"][name])
        if self._records is not None:
            self._records.measured = dict(state["physical_batch"])
        self._load_own_state(state)
        self._rng.set_state(state["rng"].cpu())

    def _plan(self) -> dict[str, Any]:
        """All that has to be the same in a run that goes on."""
        return json.loads(json.dumps({"version": _VERSION, **asdict(self.settings), **self._facts}))


# ---------------------------------------------------------------- what inputs have to be


def _check_images(images: Tensor, denoiser: Denoiser, whose: str) -> None:
    """Shape and range, which sensitivities rest on; a message has nothing of private images."""
    expected = denoiser.channels, denoiser.size, denoiser.size
    if images.dim() != 4 or tuple(images.shape[1:]) != expected or not len(images):
        raise ConfigError(
            f"Expected {whose} images as [n, {', '.join(map(str, expected))}], got "
            f"{list(images.shape)}; resize them, or build the network for them."
        )
    if not images.is_floating_point() or not bool((images.abs() <= 1).all()):
        raise ConfigError(
            f"Expected {whose} images as floats in [-1, 1]; scale pixels 0..255 by /127.5 - 1."
        )


def _checked_labels(labels: Tensor | None, records: int, denoiser: Denoiser) -> Tensor:
    """int64 [n], null labels for an unconditional network."""
    if denoiser.classes == 0:
        return torch.full((records,), denoiser.null_label)
    if labels is None:
        raise ConfigError(
            f"Expected labels for a network of {denoiser.classes} classes; give them, or build "
            "the network with 0 classes."
        )
    if tuple(labels.shape) != (records,) or labels.dtype != torch.int64:
        raise ConfigError(f"Expected labels as int64 [{records}], one per image.")
    if bool((labels < 0).any()) or bool((labels >= denoiser.classes).any()):
        raise ConfigError(f"Expected every label within 0..{denoiser.classes - 1}.")
    return labels


def _checked_public(
    images: Tensor | None, labels: Tensor | None, denoiser: Denoiser
) -> tuple[Tensor, Tensor]:
    """Public images [m, c, h, w] and labels [m], m >= 0; null labels where there are none."""
    if images is None:
        images = torch.empty(0, denoiser.channels, denoiser.size, denoiser.size)
    else:
        _check_images(images, denoiser, "public")
    if labels is None:
        return images, torch.full((len(images),), denoiser.null_label)
    return images, _checked_labels(labels, len(images), denoiser)
