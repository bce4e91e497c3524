"""What a private training does and costs, fixed before its first step."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from fedtranscribe.config import SynthesizeSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.models.unet import make_unet
from fedtranscribe.privacy.chain import canonical
from fedtranscribe.privacy.diffusion_noise import CalibrateBy, calibrated
from fedtranscribe.privacy.published import Published
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.trainers.stages import Trainer, TrainerSettings, TrainingInputs

_MOST_STEPS = 1_000_000


@dataclass(frozen=True)
class DataFacts:
    """What is public about the private data."""

    data: str  # its name
    records: int  # how many ids there are; images that share one are one record
    classes: int  # how many classes there are
    channels: int  # 1 for grey, 3 for colour
    size: int  # of an image's sides
    positional_ids: bool = False  # whether records are known by row number only

    @property
    def dimensions(self) -> int:
        """Numbers in an image, d."""
        return self.channels * self.size**2


@dataclass(frozen=True)
class TrainingPlan:
    """Everything that decides what a training does and costs; public."""

    method: str  # its name
    settings: TrainerSettings  # the method's own
    classes: int  # that the network knows; 0 for an unconditional one
    conditional: bool  # whether its images come by label
    steps: Mapping[str, int]  # optimiser steps by stage, in order
    release: (
        MechanismRelease | None
    )  # what the ledger books; None where the training has no guarantee
    published: Published | None  # what the paper's own formula prints; None without noise
    words: tuple[str, ...]  # what was picked, a line each
    # what a private start asks, as plain values; None without one
    start: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """What was resolved, as plain values; holds everything that decides the outcome."""
        release = None if self.release is None else self.release.to_json()
        values = {
            "method": self.method,
            "settings": asdict(self.settings),
            "unet": self.settings.unet.value,
            "classes": self.classes,
            "steps": dict(self.steps),
            "release": release,
            "start": self.start,
        }
        return json.loads(json.dumps(values))

    def digest(self, **also: str | int | None) -> str:
        """SHA-256 of the plan and of what is named besides; binds a query id in the ledger."""
        return hashlib.sha256(canonical({**self.to_json(), **also})).hexdigest()


class Recipe(Protocol):
    """How a user's settings become those of a method, and who trains by them."""

    def public_data(self, settings: SynthesizeSettings, facts: DataFacts) -> str | None:
        """Name of the public images to begin with where the user names none; None for none."""
        ...

    def resolve(
        self, settings: SynthesizeSettings, facts: DataFacts, *, with_start: bool = False
    ) -> TrainerSettings:
        """The method's settings, still without noise; ConfigError for what cannot be.

        With a private start the public images are labelled samples that show the records.
        """
        ...

    def conditional(
        self, settings: SynthesizeSettings, facts: DataFacts, resolved: Any
    ) -> tuple[bool, bool]:
        """Whether networks learn labels, and whether images come by label."""
        ...

    def words(
        self, settings: SynthesizeSettings, facts: DataFacts, resolved: Any, steps: Any, labels: str
    ) -> tuple[str, ...]:
        """What was picked, a line each."""
        ...

    def trainer(
        self, plan: TrainingPlan, facts: DataFacts, inputs: TrainingInputs, seed: int, device: Any
    ) -> Trainer:
        """Fresh networks, from a public seed, and what trains them; checks images and labels."""
        ...


def plan_training(
    recipe: Recipe,
    settings: SynthesizeSettings,
    facts: DataFacts,
    public_records: int,
    start: MechanismRelease | None = None,
) -> TrainingPlan:
    """Resolve everything that is public, noise included."""
    resolved: Any = recipe.resolve(settings, facts, with_start=start is not None)
    wanted = resolved.privacy_plan(facts.records, facts.dimensions)
    counts = resolved.steps(facts.records, public_records)
    steps = {stage.value: count for stage, count in counts.items()}
    if (total := sum(steps.values())) > _MOST_STEPS:
        raise ConfigError(
            f"Expected at most {_MOST_STEPS:,} steps, got {total:,}; ask for fewer epochs or "
            "larger batches."
        )
    learns, by_label = recipe.conditional(settings, facts, resolved)
    classes = facts.classes if learns else 0
    # An impossible side is found before the noise, which takes longer.
    make_unet(resolved.unet, facts.channels, facts.size, classes)
    published = None
    if settings.noise:
        adjacency, by = Adjacency(settings.adjacency), CalibrateBy(settings.calibrate_by)
        before = () if start is None else (start.event(Unit.RECORD, adjacency),)
        wanted = calibrated(wanted, settings.epsilon, settings.delta, adjacency, by, before)
        resolved = replace(resolved, noise_multiplier=wanted.sigma)
        published = wanted.published(settings.delta)
    labels = f"{classes} classes" if classes else "unconditional"
    return TrainingPlan(
        method=settings.method,
        settings=resolved,
        classes=classes,
        conditional=classes > 0 and by_label,
        steps={stage: count for stage, count in steps.items() if count},
        release=resolved.release(facts.records, facts.dimensions),
        published=published,
        words=recipe.words(settings, facts, resolved, steps, labels),
    )
