"""dp-promise, Algorithm 1 with a sound Phase I, and Algorithm 2 to sample.

    public images ──Adam, all t──> z_θ ──freeze time embedding──┐      null label, no cost (*)
    x_0 ──noise once──> x_S ──Adam, t > S──────────────────────>│      null label, Phase I
    x_0, y ──DP-SGD, t <= S────────────────────────────────────>│      Phase II
                                        averaged weights <──────┘──DDIM──> images

(*) With their labels, where they are samples of the records that were paid for before.

Where the paper is unsound or silent we follow the project's decisions:

- Phase I as printed gives its images away; the default is the sound one of `phase1.py`,
  over t > S. S itself comes to Phase II, where one time step more costs nothing.
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
    `privacy_plan` is both, under one adjacency; the ledger books its `release`. Noise and coins
    come from `noise` and `bits`; `caveats` says why a run is not private, if it is not.
    Nothing is reported but counts of steps: a loss on private images is private. A step that a
    crash undid draws again, so what was written after the checkpoint must not have left the holder.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer

from fedtranscribe.mechanisms.bits import BitSource
from fedtranscribe.mechanisms.dpsgd import Backend, DpSgdPlan, Inputs, PoissonBatches
from fedtranscribe.mechanisms.draws import KEY_WORDS, Draws, OwnDraws, SharedDraws
from fedtranscribe.mechanisms.noise import NoiseSource
from fedtranscribe.mechanisms.poisson import shuffled
from fedtranscribe.methods.denoising import noise_losses, random_rows, random_steps
from fedtranscribe.methods.dp_promise.phase1 import (
    NoisyRecords,
    published_regression,
    sound_regression,
)
from fedtranscribe.methods.dp_promise.settings import (
    DpPromiseSettings,
    NoisyImages,
    PhaseOne,
)
from fedtranscribe.methods.input_checks import check_images, checked_labels, checked_public
from fedtranscribe.methods.private_records import PrivateRecords
from fedtranscribe.methods.record_images import RecordImages
from fedtranscribe.methods.staged import StagedTraining, Steps
from fedtranscribe.models.unet import Denoiser, drop_labels
from fedtranscribe.privacy.release_plan import Release


class Stage(StrEnum):
    """Where a run is; in this order."""

    PRETRAINING = "pre-training"
    PHASE1 = "phase I"
    PHASE2 = "phase II"
    DONE = "done"


class DpPromise(StagedTraining[Stage, DpPromiseSettings]):
    """Trains a diffusion model on private images in one place, and samples from it.

    Args:
        denoiser: trained in place, on its own device.
        settings: public.
        images: private, float32 [N, c, h, w] in [-1, 1] (`models.diffusion.to_signed`).
        labels: private, int64 [N]; None for a network of 0 classes.
        ids: of the images; those that share one are one record. None where each is its own.
        public: public images like `images`, or None for no pre-training.
        public_labels: int64, with `pretrain_labels`: of the records' classes.
        noise: of x_S and of DP-SGD: OS entropy, or a seeded source in tests.
        bits: coins of the Poisson batches, and keys of the records' own streams: OS entropy, or
            a seeded source in tests.
        rng: public batches, their time steps and noise; it needs no secrecy.
        backend: of the per-record gradients.
        physical_batch: records at a time in Phase II; None measures it.

    Attributes:
        privacy_plan: both phases.
        plan: Phase II of it, None where Phase II has no time steps; the rest are those of
            `StagedTraining`.

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
        ids: Sequence[str] | None = None,
        backend: Backend = Backend.FUNCTIONAL,
        physical_batch: int | None = None,
        public_labels: Tensor | None = None,
    ) -> None:
        check_images(images, denoiser, "private")
        self._images = RecordImages(images, checked_labels(labels, len(images), denoiser), ids)
        self._public = checked_public(public, public_labels, denoiser)
        records, shown = len(self._images), len(self._public[0])
        self.privacy_plan = settings.privacy_plan(records, images[0].numel())
        super().__init__(
            denoiser,
            settings,
            stages=self._planned(settings, shown),
            end=Stage.DONE,
            facts={"records": records, "public_images": shown},
            rng=rng,
        )
        self._noise, self._bits = noise, bits
        self._device = next(denoiser.parameters()).device
        self._noisy_records: NoisyRecords | None = None
        self.plan = self.privacy_plan.phase2 if settings.phase2_range else None
        self._records = self.plan and PrivateRecords(
            self._images,
            self.plan,
            protected=self.plan.noise_multiplier > 0,
            noise=noise,
            bits=bits,
            backend=backend,
            physical_batch=physical_batch,
            device=self._device,
        )
        self._begin()

    @property
    def release(self) -> Release | None:
        """What it gives away; None where it has no guarantee."""
        return self.settings.release(self.privacy_plan.records, self.privacy_plan.dimensions)

    def caveats(self) -> tuple[str, ...]:
        """Why this run is NOT private; empty if it is."""
        reasons: list[str] = []
        if self.settings.noise_multiplier == 0:
            reasons.append("Phase II trains without clipping and noise (noise_multiplier=0).")
        if self.steps_of(Stage.PHASE1) and self.settings.phase1 is PhaseOne.PUBLISHED:
            reasons.append(
                "Phase I as published has no guarantee: target and input together reveal "
                "the private image."
            )
        if not (self._noise.private and self._bits.private):
            reasons.append("Noise or batches come from a seed.")
        return tuple(reasons)

    # ---------------------------------------------------------------- Algorithm 1

    def _planned(self, settings: DpPromiseSettings, shown: int) -> dict[Stage, Steps]:
        public, plan = settings.pretrain_steps(shown), self.privacy_plan
        first, second = plan.phase1_steps, plan.phase2.steps if settings.phase2_range else 0
        return {
            Stage.PRETRAINING: Steps(public, DpPromise._pretraining_step, "pretrain_batch"),
            Stage.PHASE1: Steps(first, DpPromise._phase1_step, "phase1_batch"),
            Stage.PHASE2: Steps(second, DpPromise._phase2_step, "physical_batch"),
        }

    def _ready(self, stage: Stage) -> Optimizer | None:
        settings = self.settings
        pretrained = self.steps_of(Stage.PRETRAINING) > 0
        if stage is not Stage.PRETRAINING and pretrained and settings.freeze_time_embedding:
            self.denoiser.freeze_time_embedding()
        self._noisy_records = None
        if stage is Stage.PHASE1:
            cached = settings.noisy_images is NoisyImages.CACHED
            self._noisy_records = NoisyRecords(
                self._images, settings.schedule, settings.boundary, cached=cached
            )
        rates = {
            Stage.PRETRAINING: settings.pretrain_lr,
            Stage.PHASE1: settings.phase1_lr,
            Stage.PHASE2: settings.phase2_lr,
        }
        trainable = [p for p in self.denoiser.parameters() if p.requires_grad]
        return Adam(trainable, rates[stage]) if stage in rates else None

    def _take_over(self) -> None:
        first = Stage.PHASE1 if self.steps_of(Stage.PHASE1) else Stage.PHASE2
        if self.stage is first:
            self.denoiser.load_state_dict(self.ema.network.state_dict())
        if self.stage is Stage.PHASE2:
            self.ema.restart(self.denoiser)

    def _one_step(self) -> None:
        super()._one_step()
        self.ema.update_parameters(self.denoiser)

    def _pretraining_step(self) -> None:
        """Ordinary training on public images, all time steps; null label, or `pretrain_labels`."""
        settings, schedule = self.settings, self.settings.schedule
        batch = settings.pretrain_batch
        x_0, labels = random_rows(self._public, batch, self._rng, self._device)
        draws = SharedDraws(self._rng, batch)
        t, z = random_steps(schedule.times, x_0, draws)
        if settings.pretrain_labels:
            labels = drop_labels(labels, self.denoiser.null_label, settings.label_drop, draws)
        self._descend(noise_losses(self.denoiser, schedule.noisy(x_0, t, z), t, labels, z), batch)

    def _phase1_step(self) -> None:
        """Lines 2-6: Adam on a Poisson batch of noisy images."""
        settings, schedule = self.settings, self.settings.schedule
        records = self._phase1_batch()
        if not len(records):
            return
        draws = OwnDraws(self._key("rows"), records, 1, self._device)
        if settings.phase1 is PhaseOne.SOUND:
            x_s = self._x_s(records)
            t, z = random_steps(settings.phase1_range, x_s, draws)
            regression = sound_regression(schedule, x_s, settings.boundary, t, z)
        else:
            x_0 = self._images.shown(records, draws)[0].to(self._device)
            t, z = random_steps(settings.phase1_range, x_0, draws)
            regression = published_regression(schedule, x_0, t, z)
        self._descend(regression.loss(self.denoiser), settings.phase1_batch)

    def _phase2_step(self) -> None:
        """Lines 8-14: DP-SGD on a Poisson batch, K copies per record, with labels."""
        assert self._records is not None
        assert self._optimiser is not None
        self._records.step(
            Stage.PHASE2.value,
            self.done,
            self.denoiser,
            noise_losses,
            self._phase2_rows,
            self._optimiser,
        )

    # ---------------------------------------------------------------- small parts

    def _phase1_batch(self) -> Tensor:
        """The records of a Poisson batch, in a secret order."""
        plan, batch = self.privacy_plan, self.settings.phase1_batch
        # Only records and batch matter here: there is no noise on gradients.
        coins = DpSgdPlan(plan.records, batch, plan.phase1_steps, 0.0, 1.0)
        step = f"{Stage.PHASE1}/{self.done}"
        drawn = PoissonBatches(coins, self._bits.for_query(step)).draw()
        return shuffled(drawn, self._bits.for_query(f"{step}/order"))

    def _x_s(self, records: Tensor) -> Tensor:
        assert self._noisy_records is not None
        noise = self._noise.for_query(f"{Stage.PHASE1}/{self.done}")
        return self._noisy_records.draw(records, noise, self._key("images")).to(self._device)

    def _key(self, purpose: str) -> bytes:
        """Of this step of Phase I; drawn afresh, and thrown away."""
        bits = self._bits.for_query(f"{Stage.PHASE1}/{self.done}/{purpose}")
        return bits.words(KEY_WORDS).tobytes()

    def _descend(self, losses: Tensor, expected: int) -> None:
        assert self._optimiser is not None
        self._optimiser.zero_grad()
        (losses.sum() / expected).backward()
        self._optimiser.step()

    def _phase2_rows(self, x_0: Tensor, labels: Tensor, draws: Draws) -> Inputs:
        """(x_t, t, y, z), for `noise_losses`: a fresh t and z for every copy of a record."""
        settings = self.settings
        t, z = random_steps(settings.phase2_range, x_0, draws)
        labels = drop_labels(labels, self.denoiser.null_label, settings.label_drop, draws)
        return settings.schedule.noisy(x_0, t, z), t, labels, z

    # ---------------------------------------------------------------- interrupt and resume

    def _own_state(self) -> dict[str, Any]:
        return {
            "x_s": None if self._noisy_records is None else self._noisy_records.cache,
            "physical_batch": {} if self._records is None else dict(self._records.measured),
        }

    def _load_own_state(self, state: dict[str, Any]) -> None:
        if self._noisy_records is not None:
            self._noisy_records.cache = state["x_s"]
        if self._records is not None:
            self._records.measured = dict(state["physical_batch"])
