"""What every private diffusion method has to offer, so that one host can run them all."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fedtranscribe.config import SynthesizeSettings
from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError
from fedtranscribe.mechanisms.bits import BitSource
from fedtranscribe.mechanisms.dpsgd import Backend
from fedtranscribe.mechanisms.noise import NoiseSource
from fedtranscribe.methods.staged import Progress
from fedtranscribe.models.diffusion import to_signed
from fedtranscribe.models.sampling import Sampling
from fedtranscribe.models.schedule import Schedule
from fedtranscribe.models.unet import Denoiser, UNetSize
from fedtranscribe.privacy.chain import canonical
from fedtranscribe.privacy.published import Published
from fedtranscribe.privacy.release_plan import Release

_MOST_STEPS = 1_000_000


@dataclass(frozen=True)
class Facts:
    """What is public about the private data.

    Attributes:
        data: its name.
        records: how many ids there are; images that share one are one record.
        classes: how many classes there are.
        channels: 1 for grey, 3 for colour.
        size: of an image's sides.
        positional_ids: whether records are known by row number only.
    """

    data: str
    records: int
    classes: int
    channels: int
    size: int
    positional_ids: bool = False

    @property
    def dimensions(self) -> int:
        """Numbers in an image, d."""
        return self.channels * self.size**2


@dataclass(frozen=True)
class MethodPlan:
    """Everything that decides what a training does and costs; public, fixed before its first step.

    Attributes:
        method: its name.
        settings: the method's own, a dataclass of plain values.
        unet: size of the network.
        classes: that the network knows; 0 for an unconditional one.
        conditional: whether its images come by label.
        schedule: T and betas.
        sampling: how its samples are drawn.
        steps: optimiser steps by stage, in order.
        release: what the ledger books; None where the training has no guarantee.
        sigma: noise multiplier; 0 without noise.
        published: what the paper's own formula prints; None without noise.
        words: what was picked, a line each.
        start: what a private start asks, as plain values; None without one.
    """

    method: str
    settings: Any
    unet: UNetSize
    classes: int
    conditional: bool
    schedule: Schedule
    sampling: Sampling
    steps: Mapping[str, int]
    release: Release | None
    sigma: float
    published: Published | None
    words: tuple[str, ...]
    start: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """What was resolved, as plain values; holds everything that decides the outcome."""
        release = None if self.release is None else self.release.to_json()
        values = {
            "method": self.method,
            "settings": asdict(self.settings),
            "unet": self.unet.value,
            "classes": self.classes,
            "steps": dict(self.steps),
            "release": release,
            "start": self.start,
        }
        return json.loads(json.dumps(values))

    def digest(self, **also: str | int | None) -> str:
        """SHA-256 of the plan and of what is named besides; binds a query id in the ledger."""
        return hashlib.sha256(canonical({**self.to_json(), **also})).hexdigest()


@dataclass(frozen=True, eq=False)
class Material:
    """What a trainer is made from.

    Attributes:
        records: PRIVATE.
        public: public images like `images`; None for no pre-training.
        public_labels: int64, of as many classes as the private ones; None for none.
        noise: OS entropy, or a seeded source in tests.
        bits: the same, for coins of Poisson batches and the records' own random numbers.
        rng: of public batches.
        seed: of the initial weights; public.
        device: where to train.
        backend: of gradients per record.
        physical_batch: records at a time; None measures it.
    """

    records: ImageSet
    public: Tensor | None
    public_labels: Tensor | None
    noise: NoiseSource
    bits: BitSource
    rng: torch.Generator
    seed: int
    device: torch.device
    backend: Backend
    physical_batch: int | None

    @property
    def images(self) -> Tensor:
        """PRIVATE, float32 [N, c, h, w] in [-1, 1]."""
        return to_signed(self.records.images)

    def labels(self, plan: MethodPlan) -> Tensor | None:
        """PRIVATE, int64 [N]; None for an unconditional network."""
        return self.records.labels if plan.classes else None


def expect_steps(steps: Mapping[str, int]) -> None:
    """Refuse a training without end, before its noise is looked for: that takes time as well.

    Raises:
        ConfigError: more steps than any training needs.
    """
    if (total := sum(steps.values())) > _MOST_STEPS:
        raise ConfigError(
            f"Expected at most {_MOST_STEPS:,} steps, got {total:,}; ask for fewer epochs or "
            "larger batches."
        )


class Trainer(Protocol):
    """A training that takes one step at a time and can go on from its own state."""

    @property
    def finished(self) -> bool:
        """Whether every stage is through."""
        ...

    @property
    def release(self) -> Release | None:
        """What it gives away, from the very plan that it trains by; None for no guarantee."""
        ...

    def caveats(self) -> tuple[str, ...]:
        """Why the run is NOT private; empty if it is."""
        ...

    def train(self, steps: int | None = None, progress: Progress = ...) -> bool:
        """Go on by so many steps; whether training is finished."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs: plain values and tensors.

        `physical_batch` in it has records at a time by private training.
        """
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()` of the same plan, or raise ConfigError."""
        ...


class Method(Protocol):
    """How settings become a plan, and a plan becomes a trainer."""

    def public_data(self, settings: SynthesizeSettings, facts: Facts) -> str | None:
        """Name of the public images to start from; None for none."""
        ...

    def plan(
        self,
        settings: SynthesizeSettings,
        facts: Facts,
        public_records: int,
        start: Release | None = None,
    ) -> MethodPlan:
        """Settle everything that is public, noise included; ConfigError for what cannot be.

        Args:
            settings: what was asked for.
            facts: what is public about the private data.
            public_records: how many images there are to start from.
            start: what those images cost, where they are labelled samples of a private start.
        """
        ...

    def trainer(self, plan: MethodPlan, facts: Facts, material: Material) -> Trainer:
        """Make the trainer; checks images and labels, and computes nothing from them."""
        ...

    def network(self, trainer: Trainer) -> Denoiser:
        """The network to be released, once the trainer is finished."""
        ...
