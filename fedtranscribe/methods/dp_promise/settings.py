"""Settings of a dp-promise run, the paper's values, and the checks before any work."""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.sampling import Sampling
from fedtranscribe.models.schedule import Schedule
from fedtranscribe.models.unet import UNetSize
from fedtranscribe.privacy.diffusion import DpPromisePlan
from fedtranscribe.privacy.release_plan import Release


class PhaseOne(StrEnum):
    """Which Phase I: the guarantee depends on it."""

    SOUND = "sound"  # a function of x_S and fresh noise alone
    PUBLISHED = "published"  # Algorithm 1 as printed: NO guarantee, for research


class NoisyImages(StrEnum):
    """When Phase I draws x_S; each draw is a release, and the guarantee depends on how many."""

    FRESH = "fresh"  # once per inclusion in a Poisson batch
    CACHED = "cached"  # once per record, for any number of epochs


@dataclass(frozen=True)
class DpPromiseSettings:
    """Public settings of Algorithms 1 and 2; the defaults are the paper's for MNIST.

    Attributes:
        noise_multiplier: σ of Phase II; 0 trains without clipping and noise, and is NOT private.
        boundary: S in 1..T+1. T + 1 leaves Phase I out: DP-SGD over all steps.
        phase1: sound, or as printed.
        noisy_images: whether Phase I draws x_S afresh or keeps one per record.
        phase1_batch: m_1, expected records per step.
        phase1_epochs: passes over the data; steps are ⌈epochs n / m_1⌉.
        phase1_lr: η_1.
        phase2_batch: m_2, expected records per step.
        phase2_epochs: passes over the data; steps are ⌈epochs n / m_2⌉.
        phase2_lr: η_2.
        copies: K, pairs of t and noise per record, averaged before clipping.
        clip: C.
        label_drop: share of Phase II's labels that become the null label.
        pretrain_batch: public images per step.
        pretrain_epochs: passes over the public images.
        pretrain_lr: of pre-training.
        pretrain_labels: whether pre-training uses labels, which are those of the records then;
            the paper's is not.
        freeze_time_embedding: leave it as pre-training made it; without pre-training it learns.
        ema_decay: of the averaged weights.
        unet: size of the network.
        schedule: T and betas.
        sampling: T', ρ and w.
    """

    noise_multiplier: float
    boundary: int = 900
    phase1: PhaseOne = PhaseOne.SOUND
    noisy_images: NoisyImages = NoisyImages.FRESH
    phase1_batch: int = 32
    phase1_epochs: float = 3
    phase1_lr: float = 3e-4
    phase2_batch: int = 4096
    phase2_epochs: float = 50
    phase2_lr: float = 6e-4
    copies: int = 32
    clip: float = 1e-2
    label_drop: float = 0.1
    pretrain_batch: int = 128
    pretrain_epochs: float = 50
    pretrain_lr: float = 2e-4
    pretrain_labels: bool = False
    freeze_time_embedding: bool = True
    ema_decay: float = 0.999
    unet: UNetSize = UNetSize.SMALL
    schedule: Schedule = field(default_factory=Schedule)
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        """Refuse what no run could do.

        Raises:
            ConfigError: names the value and the fix.
        """
        self._check_boundary()
        for name in ("phase1_batch", "phase2_batch", "pretrain_batch", "copies"):
            if getattr(self, name) < 1:
                raise ConfigError(f"Expected {name}={getattr(self, name)} >= 1.")
        for name in (
            *("phase1_epochs", "phase2_epochs", "pretrain_epochs"),
            *("phase1_lr", "phase2_lr", "pretrain_lr", "clip"),
        ):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"Expected {name}={getattr(self, name)} > 0 and finite.")
        if not 0 <= self.noise_multiplier < math.inf:
            raise ConfigError(f"Expected noise_multiplier={self.noise_multiplier} >= 0 and finite.")
        for name in ("label_drop", "ema_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"Expected {name}={getattr(self, name)} in [0, 1).")
        if self.sampling.steps > self.schedule.steps:
            raise ConfigError(
                f"Expected sampling steps={self.sampling.steps} <= T={self.schedule.steps}; "
                "lower them."
            )

    def _check_boundary(self) -> None:
        last, none = self.schedule.steps, self.schedule.steps + 1
        if not 1 <= self.boundary <= none:
            raise ConfigError(
                f"Expected boundary S={self.boundary} in 1..{none}; {none} leaves Phase I out."
            )
        if self.boundary == last and self.phase1 is PhaseOne.SOUND:
            raise ConfigError(
                f"Expected boundary S={last} < T={last}: x_S alone teaches nothing about step S, "
                f"so Phase I would be empty; lower it, or take {none} to leave Phase I out."
            )

    # ---------------------------------------------------------------- time steps of each phase

    @property
    def phase1_range(self) -> range:
        """Time steps of Phase I. The sound one begins at S + 1: at S there is no fresh noise."""
        first = self.boundary + (self.phase1 is PhaseOne.SOUND)
        return range(first, self.schedule.steps + 1)

    @property
    def phase2_range(self) -> range:
        """All the others. DP-SGD costs the same whichever steps it covers, so S comes here."""
        last = self.schedule.steps
        return range(1, min(self.phase1_range.start, last + 1))

    # ---------------------------------------------------------------- optimiser steps

    def pretrain_steps(self, images: int) -> int:
        """Over all epochs; 0 without public images."""
        return math.ceil(self.pretrain_epochs * images / self.pretrain_batch)

    def privacy_plan(self, records: int, dimensions: int = 784) -> DpPromisePlan:
        """What trains and what is booked; a run that has `caveats` has no guarantee.

        Args:
            records: n.
            dimensions: numbers in an image, d.

        Raises:
            ConfigError: a batch larger than the data.
        """
        has_phase1 = bool(self.phase1_range)
        return DpPromisePlan(
            records,
            dimensions,
            self.boundary,
            self.phase2_batch,
            self.phase2_epochs,
            self.noise_multiplier,
            self.phase1_batch if has_phase1 else None,
            self.phase1_epochs if has_phase1 else None,
            cached=has_phase1 and self.noisy_images is NoisyImages.CACHED,
            clip=self.clip,
            copies=self.copies,
            time_steps=self.schedule.steps,
            beta_first=self.schedule.first,
            beta_last=self.schedule.last,
        )

    def release(self, records: int, dimensions: int) -> Release | None:
        """What the ledger books; None for a run that has no guarantee."""
        printed = self.phase1 is PhaseOne.PUBLISHED and bool(self.phase1_range)
        if self.noise_multiplier == 0 or printed:
            return None
        return self.privacy_plan(records, dimensions).release()


def paper_settings(dataset: str, noise_multiplier: float) -> DpPromiseSettings:
    """The settings of dp-promise's section 6.2; what it leaves open has our defaults.

    MNIST and Fashion-MNIST are conditional; the others are unconditional: build their network
    with 0 classes. At 64x64 the paper takes phase1_batch = 16 instead for ε of 1 and 5.

    Args:
        dataset: mnist, fashion-mnist, celeba-32, celeba-64 or cifar-10.
        noise_multiplier: σ, calibrated to the ε wanted.

    Raises:
        ConfigError: no such profile.
    """
    grey = DpPromiseSettings(noise_multiplier)
    colour = replace(grey, boundary=925, phase2_lr=3e-4, copies=4, unet=UNetSize.LARGE)
    profiles = {
        "mnist": grey,
        "fashion-mnist": replace(grey, pretrain_epochs=1000, unet=UNetSize.MEDIUM),
        "celeba-32": replace(colour, phase1_epochs=2),
        "celeba-64": replace(colour, boundary=950, phase1_epochs=1, phase2_epochs=15),
        "cifar-10": colour,
    }
    if dataset not in profiles:
        raise ConfigError(
            f"The paper has no settings for {dataset!r}; choose one of {', '.join(profiles)}."
        )
    return profiles[dataset]
