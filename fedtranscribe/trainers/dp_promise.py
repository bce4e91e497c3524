"""dp-promise, Algorithm 1 with a sound Phase I.

    public images ──Adam, all t──> z_θ ──freeze time embedding──┐      null label, no cost (*)
    x_0 ──noise once──> x_S ──Adam, t > S──────────────────────>│      null label, Phase I
    x_0, y ──DP-SGD, t <= S────────────────────────────────────>│      Phase II
                                        averaged weights <──────┘──DDIM──> images, Algorithm 2

(*) With their labels, where they are samples of the records that were paid for before.

What differs from the paper, to be sound or where it is silent:

- Phase I as printed gives its images away: z together with x_t gives back x_0 exactly, and both are
  in the gradient. No bound on x_t says anything about it. The sound one draws x_S and never looks
  back: for t > S

      x_t = √(ᾱ_t/ᾱ_S) x_S + √(1 − ᾱ_t/ᾱ_S) z′,  target z′/√w,  w = (1 − ᾱ_t/ᾱ_S)/(1 − ᾱ_t).

  E[z′ | x_t, x_0] = √w z, so that the minimiser is E[z | x_t] as before. The target grows without
  bound towards t = S; squared errors are weighted by w, which makes them those of a guess of z′. At
  S itself nothing is left, so S belongs to Phase II, where one time step more costs nothing.
  (Training on noisy data only is in the literature: Daras et al., arXiv 2404.10177.)
- Gradients are divided by the expected batch, never by |I|, which the noise's scale would reveal.
- Labels stay out of Phase I: it uses the null label, as pre-training does.
- Pre-training hands on its averaged weights. These start anew with Phase II, and samples come from
  them.
- The time embedding is frozen after pre-training; without pre-training it has to learn.
- Losses are means over pixels, and C is measured against those; the paper writes sums.
- Without noise (σ = 0) gradients are not clipped either: the paper's ε = ∞, marked not private.

Guarantee:
    Unit: record (one image and its label). Nothing of the private data is used but
    - Phase I, per step: the set of x_S of the records in a Poisson batch, without labels
      (`NoisyRecords`). `FRESH` releases once per inclusion, sub-sampled by m_1/n; `CACHED` once
      per record for ever, not amplified. The batch is put into a secret order first: time steps,
      z′ and what Adam does with the rows, rounding included, treat them all alike, and are
      post-processing of the set.
    - Phase II: DP-SGD on (x_0, y), as `plan` says (`DpSgdPlan`, `DpSgdStep`).
    `privacy_plan` is both, under one adjacency; the ledger books its `release`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.diffusion import Sampling, Schedule, spread
from fedtranscribe.models.unet import Denoiser, UNetSize
from fedtranscribe.noise.gaussian import on_grid
from fedtranscribe.noise.sources import NoiseSource
from fedtranscribe.privacy.diffusion import DpPromisePlan, DpSgdPlan
from fedtranscribe.trainers.denoising import (
    NoisePrediction,
    descend,
    noise_losses,
    random_rows,
    random_steps,
)
from fedtranscribe.trainers.private_steps import PoissonBatches, shuffled
from fedtranscribe.trainers.records import KEY_WORDS, OwnDraws, RecordImages, SharedDraws
from fedtranscribe.trainers.stages import StageTrainer, TrainerSettings, TrainingInputs


class PromiseStage(StrEnum):
    """Where a run is; in this order."""

    PRETRAINING = "pre-training"
    PHASE1 = "phase I"
    PHASE2 = "phase II"
    DONE = "done"


class PhaseOne(StrEnum):
    """Which Phase I: the guarantee depends on it."""

    SOUND = "sound"  # a function of x_S and fresh noise alone
    PUBLISHED = "published"  # Algorithm 1 as printed: NO guarantee, for research


class NoisyImages(StrEnum):
    """When Phase I draws x_S; each draw is a release, and the guarantee depends on how many."""

    FRESH = "fresh"  # once per inclusion in a Poisson batch
    CACHED = "cached"  # once per record, for any number of epochs


@dataclass(frozen=True)
class DpPromiseSettings(TrainerSettings):
    """Public settings of Algorithms 1 and 2; the defaults are the paper's for MNIST."""

    noise_multiplier: float  # σ of Phase II; with 0 nothing is private
    boundary: int = 900  # S in 1..T+1; T + 1 leaves Phase I out: DP-SGD over all steps
    phase1: PhaseOne = PhaseOne.SOUND
    noisy_images: NoisyImages = NoisyImages.FRESH
    phase1_batch: int = 32  # m_1, expected records per step
    phase1_epochs: float = 3  # N_1 = ⌈epochs n / m_1⌉
    phase1_lr: float = 3e-4  # η_1
    phase2_batch: int = 4096  # m_2, expected records per step
    phase2_epochs: float = 50  # N_2 = ⌈epochs n / m_2⌉
    phase2_lr: float = 6e-4  # η_2
    copies: int = 32  # K, pairs of t and noise per record, averaged before clipping
    clip: float = 1e-2  # C
    label_drop: float = 0.1  # share of Phase II's labels that become the null label
    pretrain_batch: int = 128  # public images per step
    pretrain_epochs: float = 50
    pretrain_lr: float = 2e-4
    pretrain_labels: bool = False  # whether pre-training uses labels, those of the records then
    freeze_time_embedding: bool = True  # as pre-training made it; without pre-training it learns
    ema_decay: float = 0.999
    unet: UNetSize = UNetSize.SMALL
    schedule: Schedule = field(default_factory=Schedule)  # T and betas
    sampling: Sampling = field(default_factory=Sampling)  # T', ρ and w of Algorithm 2

    def __post_init__(self) -> None:
        """Refuse what no run could do."""
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
        self._expect_counts("phase1_batch", "phase2_batch", "pretrain_batch", "copies")
        self._expect_positive("phase1_epochs", "phase2_epochs", "pretrain_epochs")
        self._expect_positive("phase1_lr", "phase2_lr", "pretrain_lr", "clip")
        self._expect_not_negative("noise_multiplier")
        self._expect_shares("label_drop", "ema_decay")
        self.sampling.expect_within(self.schedule)

    @property
    def phase1_range(self) -> range:
        """Time steps of Phase I. The sound one begins at S + 1: at S there is no fresh noise."""
        first = self.boundary + (self.phase1 is PhaseOne.SOUND)
        return range(first, self.schedule.steps + 1)

    @property
    def phase2_range(self) -> range:
        """All the others. DP-SGD costs the same whichever steps it covers, so S comes here."""
        return range(1, min(self.phase1_range.start, self.schedule.steps + 1))

    def privacy_plan(self, records: int, dimensions: int = 784) -> DpPromisePlan:
        """What trains and what is booked, for n records; a batch above n is a ConfigError."""
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

    def steps(self, records: int, public_images: int) -> dict[StrEnum, int]:
        """Optimiser steps of each stage, in order."""
        plan = self.privacy_plan(records)
        return {
            PromiseStage.PRETRAINING: self.pretrain_steps(public_images),
            PromiseStage.PHASE1: plan.phase1_steps,
            PromiseStage.PHASE2: plan.phase2.steps if self.phase2_range else 0,
        }

    def caveats(self) -> tuple[str, ...]:
        """Why these settings are NOT private; empty if they are."""
        reasons: list[str] = []
        if self.noise_multiplier == 0:
            reasons.append("Phase II trains without clipping and noise (noise_multiplier=0).")
        if self.phase1_range and self.phase1 is PhaseOne.PUBLISHED:
            reasons.append(
                "Phase I as published has no guarantee: target and input together reveal "
                "the private image."
            )
        return tuple(reasons)


# ---------------------------------------------------------------- Phase I


@dataclass(frozen=True, eq=False)
class Regression:
    """Inputs and targets of one batch: the network at (x_t, t) should say `target`."""

    x_t: Tensor  # float [n, c, h, w]
    t: Tensor  # int64 [n]
    target: Tensor  # float [n, c, h, w]
    weight: Tensor  # of each row's squared error, float64 [n]

    def loss(self, denoiser: Denoiser) -> Tensor:
        """Weighted mean squared error of each row [n], with the null label."""
        guess = denoiser(self.x_t, self.t, torch.full_like(self.t, denoiser.null_label))
        error = (guess - self.target).square().flatten(1).mean(1)
        return spread(self.weight, error) * error


def published_regression(schedule: Schedule, x_0: Tensor, t: Tensor, z: Tensor) -> Regression:
    """Lines 4-5 as printed (and any ordinary training): x_t from x_0 and z; the target is z."""
    return Regression(schedule.noisy(x_0, t, z), t, z, torch.ones(len(t)))


def sound_regression(schedule: Schedule, x_s: Tensor, s: int, t: Tensor, z: Tensor) -> Regression:
    """A function of x_S [n, c, h, w] and fresh noise z′ alone, with the same minimiser.

    `t` is int64 [n], each in s+1..T.
    """
    now = schedule.alpha_bar[t.cpu()]
    weight = (1 - now / schedule.alpha_bar[s]) / (1 - now)
    target = z / spread(weight.sqrt(), z)
    return Regression(schedule.noisier(x_s, s, t, z), t, target, weight)


class NoisyRecords:
    """x_S of private images; `draw` is the only way from them into the sound Phase I.

    Args:
        images: by record.
        schedule: T and betas.
        s: S.
        cached: keep the first draw of every record, instead of drawing at each inclusion.

    Attributes:
        cache: float32 [n, c, h, w] once drawn, with `cached`.

    Guarantee:
        Unit: record, with all of its images; one of them is drawn. x_S = √ᾱ_S x_0 + N(0, 1 − ᾱ_S)
        on d coordinates in [-1, 1]. A record that is replaced moves it by at most 2√(d ᾱ_S), one
        that is nulled (⊥ shows a grey image, all 0) by half of that: μ_S = 2√(d ᾱ_S/(1 − ᾱ_S)), or
        half of it, for each row drawn. (Which image was drawn only mixes over such pairs.) Low
        bits of a float64 sum depend on x_0, so x_S is rounded to a public grid, 1/256 of the
        noise's std or finer; the proof is that of `LocalNoise`. No draw is repeated under
        another noise: who draws again releases again.
        The rows have the order of `records`. Unless they are cached, whose cost knows who is who,
        they are released as a SET: the caller gives records in a secret order (`shuffled`), so
        that nothing computed from rows by their place can reveal whose they are.
    """

    def __init__(self, images: RecordImages, schedule: Schedule, s: int, *, cached: bool) -> None:
        signal = float(schedule.alpha_bar[s])
        self._images, self._scale, self._std = images, math.sqrt(signal), math.sqrt(1 - signal)
        self._cached = cached
        self.cache: Tensor | None = None

    def draw(self, records: Tensor, noise: NoiseSource, key: bytes) -> Tensor:
        """x_S [b, c, h, w], float32, of records [b]: fresh, or each one's first with `cached`.

        `key`, secret and fresh, says which of a record's images is drawn.
        """
        if not self._cached:
            return self._noisy(records, noise, key)
        if self.cache is None:
            self.cache = self._noisy(torch.arange(len(self._images)), noise, key)
        return self.cache[records]

    def _noisy(self, records: Tensor, noise: NoiseSource, key: bytes) -> Tensor:
        draws = OwnDraws(key, records, 1, torch.device("cpu"))
        images, _ = self._images.pick(records, draws)
        exact = self._scale * images.double() + noise.gaussian(images.shape, self._std)
        return on_grid(exact, self._std).float()


# ---------------------------------------------------------------- Algorithm 1


class DpPromise(StageTrainer[PromiseStage, DpPromiseSettings]):
    """Trains a diffusion model, in place, on private images."""

    def __init__(
        self, denoiser: Denoiser, settings: DpPromiseSettings, inputs: TrainingInputs
    ) -> None:
        super().__init__(denoiser, settings, inputs)
        self._noise, self._bits = inputs.noise, inputs.bits
        self._noisy_records: NoisyRecords | None = None
        schedule, labels = settings.schedule, settings.pretrain_labels
        drop = settings.label_drop if labels else None
        self._pretraining = NoisePrediction(denoiser, schedule, schedule.times, drop)
        second = settings.phase2_range
        self._phase2 = NoisePrediction(denoiser, schedule, second, settings.label_drop)
        self.plan = self.privacy_plan.phase2 if second else None
        if self.plan is not None:
            protected = self.plan.noise_multiplier > 0
            self._records = inputs.private_records(self.images, self.plan, protected, self.device)
        self._begin()

    def _ready(self, stage: PromiseStage) -> dict[str, Optimizer]:
        settings, phase1 = self.settings, stage is PromiseStage.PHASE1
        pretraining = stage is PromiseStage.PRETRAINING
        pretrained = not pretraining and self.steps_of(PromiseStage.PRETRAINING) > 0
        if pretrained and settings.freeze_time_embedding:
            self.denoiser.freeze_time_embedding()
        self._noisy_records = None
        if phase1:
            cached = settings.noisy_images is NoisyImages.CACHED
            self._noisy_records = NoisyRecords(
                self.images, settings.schedule, settings.boundary, cached=cached
            )
        if stage is PromiseStage.DONE:
            return {}
        rate = "pretrain_lr" if pretraining else "phase1_lr" if phase1 else "phase2_lr"
        trainable = [p for p in self.denoiser.parameters() if p.requires_grad]
        return {"denoiser": Adam(trainable, getattr(settings, rate))}

    def _take_over(self) -> None:
        phase1 = self.steps_of(PromiseStage.PHASE1)
        if self.stage is (PromiseStage.PHASE1 if phase1 else PromiseStage.PHASE2):
            self.denoiser.load_state_dict(self.ema.network.state_dict())
        if self.stage is PromiseStage.PHASE2:
            self.ema.restart(self.denoiser)

    def _one_step(self) -> None:
        super()._one_step()
        self.ema.update_parameters(self.denoiser)

    def _pretraining_step(self) -> None:
        """Ordinary training on public images, all time steps; null label, or `pretrain_labels`."""
        batch = self.settings.pretrain_batch
        x_0, labels = random_rows(self.public, batch, self._rng, self.device)
        rows = self._pretraining.rows(x_0, labels, SharedDraws(self._rng, batch))
        descend(self._optimisers["denoiser"], noise_losses(self.denoiser, *rows), batch)

    def _phase1_step(self) -> None:
        """Lines 2-6: Adam on a Poisson batch of noisy images."""
        settings, schedule = self.settings, self.settings.schedule
        records = self._phase1_batch()
        if not len(records):
            return
        draws = OwnDraws(self._key("rows"), records, 1, self.device)
        if settings.phase1 is PhaseOne.SOUND:
            assert self._noisy_records is not None
            noise = self._noise.for_query(f"{PromiseStage.PHASE1}/{self.done}")
            x_s = self._noisy_records.draw(records, noise, self._key("images")).to(self.device)
            t, z = random_steps(settings.phase1_range, x_s, draws)
            regression = sound_regression(schedule, x_s, settings.boundary, t, z)
        else:
            x_0 = self.images.pick(records, draws)[0].to(self.device)
            t, z = random_steps(settings.phase1_range, x_0, draws)
            regression = published_regression(schedule, x_0, t, z)
        losses = regression.loss(self.denoiser)
        descend(self._optimisers["denoiser"], losses, settings.phase1_batch)

    def _phase1_batch(self) -> Tensor:
        """Line 2: the records of a Poisson batch, in a secret order."""
        plan, batch = self.privacy_plan, self.settings.phase1_batch
        # Only records and batch matter here: there is no noise on gradients.
        coins = DpSgdPlan(plan.records, batch, plan.phase1_steps, 0.0, 1.0)
        step = f"{PromiseStage.PHASE1}/{self.done}"
        drawn = PoissonBatches(coins, self._bits.for_query(step)).draw()
        return shuffled(drawn, self._bits.for_query(f"{step}/order"))

    def _key(self, purpose: str) -> bytes:
        """Of this step of Phase I; drawn afresh, and thrown away."""
        bits = self._bits.for_query(f"{PromiseStage.PHASE1}/{self.done}/{purpose}")
        return bits.words(KEY_WORDS).tobytes()

    def _phase2_step(self) -> None:
        """Lines 8-14, Eq. 12: DP-SGD on a Poisson batch, K copies per record, with labels."""
        assert self._records is not None
        rows, optimiser = self._phase2.rows, self._optimisers["denoiser"]
        name, network = PromiseStage.PHASE2.value, self.denoiser
        self._records.step(name, self.done, network, noise_losses, rows, optimiser)

    def _own_state(self) -> dict[str, Any]:
        return {"x_s": None if self._noisy_records is None else self._noisy_records.cache}

    def _load_own_state(self, state: dict[str, Any]) -> None:
        if self._noisy_records is not None:
            self._noisy_records.cache = state["x_s"]

    def _step(self) -> tuple[Callable[[], None], str]:
        steps = {
            PromiseStage.PRETRAINING: (self._pretraining_step, "pretrain_batch"),
            PromiseStage.PHASE1: (self._phase1_step, "phase1_batch"),
            PromiseStage.PHASE2: (self._phase2_step, "physical_batch"),
        }
        return steps[self.stage]
