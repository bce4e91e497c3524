"""DP-SAD, Algorithm 1 with sound gradients: stochastic adversarial distillation.

    public images ──Adam──> ψ ──(teacher = dp: x_0, y ──DP-SGD──> ψ)──┐
    x_0, y ──random r──> x_r ──ψ guided, θ──> x_{r−1} ──DP-SGD──> θ <─┤ MSE-T, MSE, λ ADV
    public or synthetic images ──same way──> x_{r−1} ──Adam──> φ <────┘
                                 averaged weights of θ ──DDIM──> images

Where the paper is unsound or silent we follow the project's decisions:

- A record's gradient is clipped over the student's parameters, and the noise is not divided by T;
  Eq. 17 as printed is in `as_printed.py`, and has no guarantee.
- Gradients are divided by the expected batch of a true Poisson batch, and by C (through Adam's
  constant): the paper's C = 1e-6 with plain SGD would move nothing.
- Every network predicts noise; losses, guidance and both players' objectives: `losses.py`.
- Weights are averaged. Each stage hands on its averages, and samples come from them.
- Without noise (σ = 0) gradients are not clipped either, marked not private.

Guarantee:
    Unit: record (one image and its label). Nothing of the private data is used but in trainings by
    DP-SGD, each as `plan` says (`DpSgdPlan`, `DpSgdStep`), on Poisson batches of its own:
    - the student's. A record's term is the gradient of its own x_r, its own label, its own random
      numbers, and what teacher and discriminator make of those. They are public, or outputs of the
      trainings here, when the step begins; the teacher's answer on a private x_r is private still,
      and stays in the term.
    - the teacher's, with `teacher=dp`, and the discriminator's, with `discriminator=dp`.
    With `discriminator=outputs` it learns on images that are public (those of a public teacher) or
    synthetic (drawn from the teacher of private records, once), from the outputs of teacher and
    student on those: post-processing. `privacy_plan` is all of this; the ledger books its release.
    Noise and coins come from `noise` and `bits`; `caveats` says why a run is not private, if it is
    not. Nothing is reported but counts of steps. A step that a crash undid draws again, so what was
    written after the checkpoint must not have left the holder.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedtranscribe.errors import ConfigError
from fedtranscribe.mechanisms.bits import BitSource
from fedtranscribe.mechanisms.dpsgd import Backend
from fedtranscribe.mechanisms.noise import NoiseSource
from fedtranscribe.methods.dp_sad.adversary import Adversary
from fedtranscribe.methods.dp_sad.as_printed import published_caveats, published_step
from fedtranscribe.methods.dp_sad.losses import Course, StudentLoss
from fedtranscribe.methods.dp_sad.networks import Networks, make_optimiser, set_rate
from fedtranscribe.methods.dp_sad.settings import (
    DpSadSettings,
    Gradients,
    Start,
)
from fedtranscribe.methods.dp_sad.teacher import TeacherTraining
from fedtranscribe.methods.input_checks import check_images, checked_labels, checked_public
from fedtranscribe.methods.private_records import PrivateRecords
from fedtranscribe.methods.record_images import RecordImages
from fedtranscribe.methods.staged import StagedTraining, Steps, uncounted
from fedtranscribe.privacy.release_plan import Release


class Stage(StrEnum):
    """Where a run is; in this order."""

    PRETRAINING = "pre-training"  # the teacher, on public images
    TEACHER = "teacher"  # on private records
    STUDENT = "student"  # with the discriminator
    DONE = "done"


class DpSad(StagedTraining[Stage, DpSadSettings]):
    """Distils a private diffusion model in one place, and samples from it.

    Args:
        networks: of `make_networks`; trained in place, on their own device.
        settings: public.
        images: private, float32 [N, c, h, w] in [-1, 1] (`models.diffusion.to_signed`).
        labels: private, int64 [N]; None for networks of 0 classes.
        ids: of the images; those that share one are one record. None where each is its own.
        public: public images like `images`; None for none, where the teacher is private.
        public_labels: int64, of the same classes; None makes a public teacher unconditional.
        noise: of DP-SGD: OS entropy, or a seeded source in tests.
        bits: coins of the Poisson batches, and keys of the records' own streams: OS entropy, or
            a seeded source in tests.
        rng: public batches and pools, their time steps and noise; it needs no secrecy.
        backend: of the per-record gradients.
        physical_batch: records at a time in DP-SGD; None measures it.

    Attributes:
        privacy_plan: all private trainings.
        plan: each of them as DP-SGD; the rest are those of `StagedTraining`, with the student for
            the denoiser.

    Raises:
        ConfigError: images outside [-1, 1] or of another shape than the networks', labels absent
            or foreign, a batch larger than the data, no public images for a public teacher.
            Nothing has been done then.
    """

    def __init__(
        self,
        networks: Networks,
        settings: DpSadSettings,
        *,
        images: Tensor,
        labels: Tensor | None,
        public: Tensor | None,
        public_labels: Tensor | None,
        noise: NoiseSource,
        bits: BitSource,
        rng: torch.Generator,
        ids: Sequence[str] | None = None,
        backend: Backend = Backend.FUNCTIONAL,
        physical_batch: int | None = None,
    ) -> None:
        student = networks.student
        check_images(images, student, "private")
        private = RecordImages(images, checked_labels(labels, len(images), student), ids)
        if public is None and not settings.private_teacher:
            raise ConfigError(
                "Expected public images for teacher=public; give some, or take teacher=dp."
            )
        shown = checked_public(public, public_labels, student)
        self.privacy_plan = settings.privacy_plan(len(private), images[0].numel())
        self.plan = self.privacy_plan.training
        super().__init__(
            student,
            settings,
            stages=self._planned(settings, len(shown[0])),
            end=Stage.DONE,
            facts={
                "records": len(private),
                "public_images": len(shown[0]),
                "public_labels": public_labels is not None,
            },
            rng=rng,
        )
        self._teacher = TeacherTraining(networks.teacher, settings, shown, rng)
        self._taught_labels = settings.private_teacher or public_labels is not None
        self._discriminator = networks.discriminator
        self._adversary: Adversary | None = None
        noisy, sound = settings.noise_multiplier > 0, settings.gradients is Gradients.SOUND
        self._protected, self._as_printed = noisy and sound, noisy and not sound
        self._seeded = not (noise.private and bits.private)
        self._records = PrivateRecords(
            private,
            self.plan,
            protected=self._protected,
            noise=noise,
            bits=bits,
            backend=backend,
            physical_batch=physical_batch,
            device=next(student.parameters()).device,
        )
        self._begin()

    @property
    def release(self) -> Release | None:
        """What it gives away; None where it has no guarantee."""
        return self.settings.release(self.privacy_plan.records)

    def caveats(self) -> tuple[str, ...]:
        """Why this run is NOT private; empty if it is."""
        settings, reasons = self.settings, list[str]()
        if settings.noise_multiplier == 0:
            reasons.append("It trains without clipping and noise (noise_multiplier=0).")
        if settings.gradients is Gradients.PUBLISHED:
            reasons += published_caveats(settings)
        if self._seeded:
            reasons.append("Noise or batches come from a seed.")
        return tuple(reasons)

    def sample(
        self,
        labels: Tensor,
        rng: torch.Generator,
        progress: Callable[[int, int], None] = uncounted,
    ) -> Tensor:
        """Images of the student's averaged weights; see `StagedTraining.sample`.

        Without student conditioning labels change nothing.
        """
        if not self.settings.student_conditioning:
            labels = torch.full_like(labels, self.denoiser.null_label)
        return super().sample(labels, rng, progress)

    # ---------------------------------------------------------------- Algorithm 1

    def _planned(self, settings: DpSadSettings, shown: int) -> dict[Stage, Steps]:
        private = self.plan.steps
        again = private if settings.private_teacher else 0
        public = settings.pretrain_steps(shown)
        return {
            Stage.PRETRAINING: Steps(public, DpSad._pretraining_step, "pretrain_batch"),
            Stage.TEACHER: Steps(again, DpSad._teacher_step, "physical_batch"),
            Stage.STUDENT: Steps(private, DpSad._student_step, "physical_batch"),
        }

    def _ready(self, stage: Stage) -> Optimizer | None:
        settings = self.settings
        self._teacher.stop()
        self._adversary = None
        # What gradients on private records were clipped to.
        clip = settings.clip if self._protected else 1.0
        if stage is Stage.PRETRAINING:
            self._teacher.begin(1.0)
        elif stage is Stage.TEACHER:
            self._teacher.begin(clip)
        if stage is not Stage.STUDENT:
            return None
        if self._discriminator is not None:
            divisor = clip if settings.private_discriminator else 1.0
            self._adversary = Adversary(self._discriminator, settings, self._rng, divisor)
        as_printed = settings.clip if self._as_printed else clip
        return make_optimiser(settings.optimiser, self.denoiser, as_printed)

    def _take_over(self) -> None:
        self._teacher.settle()
        if self.stage is not Stage.STUDENT:
            return
        if self.settings.student_start is Start.TEACHER:
            self.denoiser.load_state_dict(self._teacher.network.state_dict())
            self.ema.restart(self.denoiser)
        if self._adversary is not None and not self.settings.private_discriminator:
            self._adversary.pool = self._teacher.pool()

    def _pretraining_step(self) -> None:
        """The teacher on public images, which the paper takes for granted."""
        self._teacher.public_step(self.done, self.steps_of(self.stage))

    def _teacher_step(self) -> None:
        """Line 1: the teacher on private records."""
        self._teacher.private_step(self.done, self.steps_of(self.stage), self._records)

    def _student_step(self) -> None:
        """Lines 4-7: the student's step, then the discriminator's."""
        assert self._optimiser is not None
        done, total = self.done, self.steps_of(self.stage)
        set_rate(self._optimiser, self.settings.lr, done, total)
        course = Course(self.settings, self._teacher.network, self._taught_labels)
        loss = StudentLoss(self.settings, self._discriminator)
        if self._as_printed:
            self._published_step(loss, course)
        else:
            self._records.step("student", done, self.denoiser, loss, course.rows, self._optimiser)
        self.ema.update_parameters(self.denoiser)
        if self._adversary is not None:
            self._adversary.step(done, total, self.denoiser, course, self._records)

    def _published_step(self, loss: StudentLoss, course: Course) -> None:
        """Line 6 with Eq. 17 as printed; NOT private."""
        assert self._optimiser is not None
        published_step(
            self.denoiser,
            loss,
            (course.rows(*part) for part in self._records.parts("student", self.done)),
            self._optimiser,
            self._records.noise.for_query(f"student/{self.done}"),
            # Each copy counts as a row: K times the batch, and of the noise to be divided by it.
            batch=self.plan.batch * self.plan.multiplicity,
            noise_std=self.plan.noise_std * self.plan.multiplicity,
            clip=self.plan.clip,
            time_steps=self.settings.schedule.steps,
        )

    # ---------------------------------------------------------------- interrupt and resume

    def _own_state(self) -> dict[str, Any]:
        judge = self._discriminator
        return {
            "teacher": self._teacher.state(),
            "discriminator": None if judge is None else judge.state_dict(),
            "adversary": None if self._adversary is None else self._adversary.state(),
            "physical_batch": dict(self._records.measured),
        }

    def _load_own_state(self, state: dict[str, Any]) -> None:
        self._teacher.load_state(state["teacher"])
        if self._discriminator is not None:
            self._discriminator.load_state_dict(state["discriminator"])
        if self._adversary is not None:
            if not (self.settings.private_discriminator or self.settings.private_teacher):
                self._adversary.pool = self._teacher.pool()
            self._adversary.load_state(state["adversary"])
        self._records.measured = dict(state["physical_batch"])
