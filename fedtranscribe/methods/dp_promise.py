"""dp-promise, Algorithm 1 with a sound Phase I, and Algorithm 2 to sample.

    public images ──Adam, all t──> z_θ ──freeze time embedding──┐      null label, no cost
    x_0 ──noise once──> x_S ──Adam, t > S──────────────────────>│      null label, Phase I
    x_0, y ──DP-SGD, t <= S────────────────────────────────────>│      Phase II
                                        averaged weights <──────┘──DDIM──> images

Where the paper is unsound or silent we follow the project's decisions:

- Phase I as printed gives its images away; the default is the sound one of `dp_promise_phase1.py`,
  over t > S. S itself comes to Phase II, where one time step more costs nothing.
- Gradients are divided by the expected batch, never by |I|, which the noise's scale would reveal.
- Labels stay out of Phase I: it uses the null label, as pre-training does.
- The averaged weights start anew with Phase II, and samples come from them.
- The time embedding is frozen after pre-training; without pre-training it has to learn.
- Losses are means over pixels, and C is measured against those; the paper writes sums.
- Without noise (σ = 0) gradients are not clipped either: the paper's ε = ∞, marked not private.

Guarantee:
    Unit: record (one image and its label). Nothing of the private data is used but
    - Phase I, per step: x_S of the records in a Poisson batch, without labels (`NoisyRecords`).
      `FRESH` releases once per inclusion, sub-sampled by m_1/n; `CACHED` once per record for ever,
      not amplified. Time steps, z′ and what Adam does with x_S are post-processing.
    - Phase II: DP-SGD on (x_0, y), as `plan` says (`DpSgdPlan`, `DpSgdStep`).
    Both have to be accounted under one adjacency (privacy.md §6). Noise and coins come from
    `noise` and `bits`; `caveats` says why a run is not private, if it is not.
    Nothing is reported but counts of steps: a loss on private images is private. A step that a
    crash undid draws again, so what was written after the checkpoint must not have left the holder.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.mechanisms.discrete import BitSource
from fedtranscribe.mechanisms.dpsgd import Backend, DpSgdPlan, DpSgdStep, Inputs, PoissonBatches
from fedtranscribe.mechanisms.noise import NoiseSource
from fedtranscribe.methods.dp_promise_inputs import check_images, checked_labels
from fedtranscribe.methods.dp_promise_phase1 import (
    NoisyRecords,
    Regression,
    published_regression,
    sound_regression,
)
from fedtranscribe.methods.dp_promise_settings import (
    DpPromiseSettings,
    NoisyImages,
    PhaseOne,
    paper_settings,
)
from fedtranscribe.models.ema import Ema
from fedtranscribe.models.sampling import sample
from fedtranscribe.models.unet import Denoiser, drop_labels

__all__ = ["DpPromise", "DpPromiseSettings", "NoisyImages", "PhaseOne", "Stage", "paper_settings"]

# stage, steps done, steps in all
Progress = Callable[[str, int, int], None]

# Rows at a time where no per-record gradient is needed.
_PLAIN_ROWS = 512


class Stage(StrEnum):
    """Where a run is; in this order."""

    PRETRAINING = "pre-training"
    PHASE1 = "phase I"
    PHASE2 = "phase II"
    DONE = "done"


def silent(stage: str, done: int, total: int) -> None:
    """Show nothing."""


class DpPromise:
    """Trains a diffusion model on private images in one place, and samples from it.

    Args:
        denoiser: trained in place, on its own device.
        settings: public.
        images: private, float32 [n, c, h, w] in [-1, 1] (`models.diffusion.to_signed`).
        labels: private, int64 [n]; None for a network of 0 classes.
        public: public images like `images`, or None for no pre-training.
        noise: of x_S and of DP-SGD: OS entropy, or a seeded source in tests.
        bits: coins of the Poisson batches: OS entropy, or a seeded source in tests.
        rng: every other random choice: time steps, z, label drop, public batches. It needs no
            secrecy; give one on the accelerator for speed.
        backend: of the per-record gradients.
        physical_batch: records at a time in Phase II; None measures it.

    Attributes:
        stage: what the next step belongs to.
        done: steps of it that were taken.
        ema: its `network` holds the averaged weights.
        plan: Phase II as DP-SGD, None where Phase II has no time steps.

    Raises:
        ConfigError: images outside [-1, 1] or of another shape than the network's, labels absent
            or foreign, a batch larger than the data. Nothing has been done then.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        settings: DpPromiseSettings,
        *,
        images: Tensor,
        labels: Tensor | None,
        public: Tensor | None,
        noise: NoiseSource,
        bits: BitSource,
        rng: torch.Generator,
        backend: Backend = Backend.FUNCTIONAL,
        physical_batch: int | None = None,
    ) -> None:
        settings.check_records(len(images))
        check_images(images, denoiser, "private")
        if public is not None:
            check_images(public, denoiser, "public")
        self.settings = settings
        self.denoiser = denoiser.train()
        self._images = images
        self._labels = checked_labels(labels, len(images), denoiser)
        self._public = public
        self._noise, self._bits, self._rng = noise, bits, rng
        self._backend, self._physical_batch = backend, physical_batch
        self._device = next(denoiser.parameters()).device
        self._steps = {
            Stage.PRETRAINING: settings.pretrain_steps(0 if public is None else len(public)),
            Stage.PHASE1: settings.phase1_steps(len(images)),
            Stage.PHASE2: settings.phase2_steps(len(images)),
        }
        self.plan = self._phase2_plan()
        self.ema = Ema(denoiser, settings.ema_decay)
        self._enter(Stage.PRETRAINING)
        self._go_on()

    def caveats(self) -> tuple[str, ...]:
        """Why this run is NOT private; empty if it is."""
        reasons: list[str] = []
        if self.settings.noise_multiplier == 0:
            reasons.append("Phase II trains without clipping and noise (noise_multiplier=0).")
        if self._steps[Stage.PHASE1] and self.settings.phase1 is PhaseOne.PUBLISHED:
            reasons.append(
                "Phase I as published has no guarantee: target and input together give the "
                "private image back."
            )
        if not (self._noise.private and self._bits.private):
            reasons.append("Noise or batches come from a seed.")
        return tuple(reasons)

    def steps_of(self, stage: Stage) -> int:
        """Steps that a stage has in all; public."""
        return self._steps.get(stage, 0)

    @property
    def finished(self) -> bool:
        """Whether every stage is through."""
        return self.stage is Stage.DONE

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
            self.ema.update(self.denoiser)
            self.done += 1
            left -= 1
            progress(self.stage.value, self.done, self._steps[self.stage])
            self._go_on()
        return self.finished

    def sample(
        self,
        labels: Tensor,
        rng: torch.Generator,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Tensor:
        """Algorithm 2 with the averaged weights: free post-processing.

        Args:
            labels: int64 [n]; the null label asks for any class.
            rng: source of x_T and ξ; never the one of the training, whose position tells the sizes
                of secret batches.
            progress: called with (images done, images in all).

        Returns:
            float32 [n, c, h, w] in [-1, 1].
        """
        settings = self.settings
        return sample(
            self.ema.network, settings.schedule, labels, settings.sampling, rng, progress=progress
        )

    # ---------------------------------------------------------------- stages

    def _enter(self, stage: Stage) -> None:
        settings = self.settings
        self.stage, self.done = stage, 0
        pretrained = self._steps[Stage.PRETRAINING] > 0
        if stage is not Stage.PRETRAINING and pretrained and settings.freeze_time_embedding:
            self.denoiser.freeze_time_embedding()
        rate = {
            Stage.PRETRAINING: settings.pretrain_lr,
            Stage.PHASE1: settings.phase1_lr,
            Stage.PHASE2: settings.phase2_lr,
        }.get(stage)
        trainable = [p for p in self.denoiser.parameters() if p.requires_grad]
        self._optimiser = None if rate is None else torch.optim.Adam(trainable, rate)
        self._noisy_records = self._step = None
        if stage is Stage.PHASE1:
            cached = settings.noisy_images is NoisyImages.CACHED
            self._noisy_records = NoisyRecords(
                self._images, settings.schedule, settings.boundary, cached=cached
            )

    def _go_on(self) -> None:
        """Enter the next stage that has steps, when this one is through."""
        if self.finished or self.done < self._steps[self.stage]:
            return
        later = list(Stage)[list(Stage).index(self.stage) + 1 :]
        self._enter(next(s for s in later if s is Stage.DONE or self._steps[s]))
        if self.stage is Stage.PHASE2:
            self.ema.restart(self.denoiser)

    def _one_step(self) -> None:
        take, batch = {
            Stage.PRETRAINING: (self._pretraining_step, "pretrain_batch"),
            Stage.PHASE1: (self._phase1_step, "phase1_batch"),
            Stage.PHASE2: (self._phase2_step, "physical_batch"),
        }[self.stage]
        try:
            take()
        except torch.OutOfMemoryError:
            raise ConfigError(
                f"Memory ran out in {self.stage}; lower {batch}, or take a smaller U-Net."
            ) from None

    def _pretraining_step(self) -> None:
        """Ordinary training on public images, all time steps, null label."""
        assert self._public is not None
        batch, schedule = self.settings.pretrain_batch, self.settings.schedule
        picked = self._integers(range(len(self._public)), batch).cpu()
        x_0 = self._public[picked].to(self._device)
        t, z = self._integers(range(1, schedule.steps + 1), batch), self._normal(x_0.shape)
        self._descend(published_regression(schedule, x_0, t, z), batch)

    def _phase1_step(self) -> None:
        """Lines 2-6: Adam on a Poisson batch of noisy images."""
        settings, schedule = self.settings, self.settings.schedule
        indices = self._poisson(Stage.PHASE1, settings.phase1_batch)
        if not len(indices):
            return
        t = self._integers(settings.phase1_range, len(indices))
        if settings.phase1 is PhaseOne.SOUND:
            x_s = self._x_s(indices)
            z = self._normal(x_s.shape)
            regression = sound_regression(schedule, x_s, settings.boundary, t, z)
        else:
            x_0 = self._images[indices].to(self._device)
            regression = published_regression(schedule, x_0, t, self._normal(x_0.shape))
        self._descend(regression, settings.phase1_batch)

    def _phase2_step(self) -> None:
        """Lines 8-14: DP-SGD on a Poisson batch, K copies per record, with labels."""
        assert self._optimiser is not None
        assert self.plan is not None
        indices = self._poisson(Stage.PHASE2, self.plan.batch)
        if self.plan.noise_multiplier == 0:
            self._plain_step(indices)
            return
        step = DpSgdStep(
            self.denoiser,
            self.plan,
            _row_losses,
            self._backend,
            self._noise.for_query(f"{Stage.PHASE2}/{self.done}"),
            self._physical_batch,
            taken=self.done,
        )
        step.step(self._optimiser, self._copies, indices)
        self._physical_batch = step.physical_batch

    def _plain_step(self, indices: Tensor) -> None:
        """Phase II without clipping and noise; NOT private."""
        assert self._optimiser is not None
        assert self.plan is not None
        self._optimiser.zero_grad()
        total = self.plan.batch * self.plan.multiplicity
        for part in indices.split(max(1, _PLAIN_ROWS // self.plan.multiplicity)):
            if len(part):
                rows = (tensor.flatten(0, 1) for tensor in self._copies(part))
                (_row_losses(self.denoiser, *rows).sum() / total).backward()
        self._optimiser.step()

    # ---------------------------------------------------------------- small parts

    def _phase2_plan(self) -> DpSgdPlan | None:
        settings, steps = self.settings, self._steps[Stage.PHASE2]
        if not steps:
            return None
        return DpSgdPlan(
            len(self._images),
            settings.phase2_batch,
            steps,
            settings.noise_multiplier,
            settings.clip,
            settings.copies,
        )

    def _poisson(self, stage: Stage, batch: int) -> Tensor:
        # Only records and batch of a plan matter here: Phase I has no noise on gradients.
        plan = DpSgdPlan(len(self._images), batch, self._steps[stage], 0.0, 1.0)
        return PoissonBatches(plan, self._bits.for_query(f"{stage}/{self.done}")).draw()

    def _x_s(self, indices: Tensor) -> Tensor:
        assert self._noisy_records is not None
        noise = self._noise.for_query(f"{Stage.PHASE1}/{self.done}")
        return self._noisy_records.draw(indices, noise).to(self._device)

    def _copies(self, indices: Tensor) -> Inputs:
        """(x_t, t, y, z) of records, each [b, K, …]: a fresh t and z for every copy."""
        settings, shape = self.settings, (len(indices), self.settings.copies)
        x_0 = self._images[indices].to(self._device)
        t = self._integers(settings.phase2_range, *shape)
        z = self._normal((*shape, *x_0.shape[1:]))
        labels = self._labels[indices].to(self._device).unsqueeze(1).expand(shape)
        labels = drop_labels(labels, self.denoiser.null_label, settings.label_drop, self._rng)
        return settings.schedule.noisy(x_0.unsqueeze(1), t, z), t, labels, z

    def _descend(self, regression: Regression, expected: int) -> None:
        assert self._optimiser is not None
        self._optimiser.zero_grad()
        (regression.loss(self.denoiser).sum() / expected).backward()
        self._optimiser.step()

    def _integers(self, values: range, *shape: int) -> Tensor:
        rng = self._rng
        drawn = torch.randint(values.start, values.stop, shape, generator=rng, device=rng.device)
        return drawn.to(self._device)

    def _normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self._rng, device=self._rng.device).to(self._device)

    # ---------------------------------------------------------------- interrupt and resume

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs to go on as if nothing had happened: plain values, tensors.

        The tensors are those in use: write them before the next step.
        Steps done after it and then again are steps that nobody accounted for: once this has left
        the holder, what follows from it may be computed once only.
        """
        cache = None if self._noisy_records is None else self._noisy_records.cache
        return {
            "plan": self._public_plan(),
            "stage": self.stage.value,
            "done": self.done,
            "denoiser": self.denoiser.state_dict(),
            "optimiser": None if self._optimiser is None else self._optimiser.state_dict(),
            "ema": self.ema.state(),
            "x_s": cache,
            "physical_batch": self._physical_batch,
            "rng": self._rng.get_state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()` of the same plan.

        Raises:
            ConfigError: a checkpoint of other settings or another number of records.
        """
        saved = state["plan"]
        for name, value in self._public_plan().items():
            if saved.get(name) != value:
                raise ConfigError(
                    f"The checkpoint was made with {name}={saved.get(name)}, this run has {value}; "
                    "give the same settings, or start a new run."
                )
        self.denoiser.load_state_dict(state["denoiser"])
        self.ema.load_state(state["ema"])
        self._enter(Stage(state["stage"]))
        self.done = state["done"]
        if self._optimiser is not None:
            self._optimiser.load_state_dict(state["optimiser"])
        if self._noisy_records is not None:
            self._noisy_records.cache = state["x_s"]
        self._physical_batch = state["physical_batch"]
        self._rng.set_state(state["rng"].cpu())

    def _public_plan(self) -> dict[str, Any]:
        """All that has to be the same in a run that goes on."""
        facts = {**asdict(self.settings), "records": len(self._images)}
        facts["public_images"] = 0 if self._public is None else len(self._public)
        return json.loads(json.dumps(facts))


def _row_losses(denoiser: Denoiser, x_t: Tensor, t: Tensor, labels: Tensor, z: Tensor) -> Tensor:
    """Line 12 per row, as a mean over pixels."""
    return (denoiser(x_t, t, labels) - z).square().flatten(1).mean(1)
