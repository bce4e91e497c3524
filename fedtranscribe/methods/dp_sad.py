"""DP-SAD, Algorithm 1 with sound gradients: stochastic adversarial distillation.

    public images ──Adam──> ψ ──(teacher = dp: x_0, y ──DP-SGD──> ψ)──┐
    x_0, y ──random r──> x_r ──ψ guided, θ──> x_{r−1} ──DP-SGD──> θ <─┤ MSE-T, MSE, λ ADV
    public or synthetic images ──same way──> x_{r−1} ──Adam──> φ <────┘
                                 averaged weights of θ ──DDIM──> images

Where the paper is unsound or silent we follow the project's decisions:

- A record's gradient is clipped over the student's parameters, and the noise is not divided by T;
  Eq. 17 as printed is in `dp_sad_published.py`, and has no guarantee.
- Gradients are divided by the expected batch of a true Poisson batch, and by C (through Adam's
  constant): the paper's C = 1e-6 with plain SGD would move nothing.
- Every network predicts noise; losses, guidance and both players' objectives: `dp_sad_losses.py`.
- Weights are averaged. Each stage hands on its averages, and samples come from them.
- Without noise (σ = 0) gradients are not clipped either, marked not private.

Guarantee:
    Unit: record (one image and its label). Nothing of the private data is used but in trainings by
    DP-SGD, each as `plan` says (`DpSgdPlan`, `DpSgdStep`), on Poisson batches of its own:
    - the student's. A record's term is the gradient of its own x_r, its own label, and what teacher
      and discriminator make of those. They are public, or outputs of the trainings here, when the
      step begins; the teacher's answer on a private x_r is private still, and stays in the term.
    - the teacher's, with `teacher=dp`, and the discriminator's, with `discriminator=dp`.
    With `discriminator=outputs` it learns on images that are public (those of a public teacher) or
    synthetic (drawn from the teacher of private records, once), from the outputs of teacher and
    student on those: post-processing. `settings.privacy_plan` is all of this, for the accountant.
    Noise and coins come from `noise` and `bits`; `caveats` says why a run is not private, if it is
    not. Nothing is reported but counts of steps. A step that a crash undid draws again, so what was
    written after the checkpoint must not have left the holder.
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
from fedtranscribe.mechanisms.dpsgd import Backend, DpSgdPlan
from fedtranscribe.mechanisms.noise import NoiseSource
from fedtranscribe.methods.dp_promise_inputs import check_images, checked_labels
from fedtranscribe.methods.dp_sad_adversary import Adversary
from fedtranscribe.methods.dp_sad_losses import Course, StudentLoss
from fedtranscribe.methods.dp_sad_networks import Networks, make_networks
from fedtranscribe.methods.dp_sad_optimisers import make_optimiser, set_rate
from fedtranscribe.methods.dp_sad_private import PrivateRecords
from fedtranscribe.methods.dp_sad_published import published_step
from fedtranscribe.methods.dp_sad_settings import (
    Concatenation,
    DpSadSettings,
    Gradients,
    Optimiser,
    Start,
    Weighting,
    paper_settings,
    tiny_settings,
)
from fedtranscribe.methods.dp_sad_teacher import TeacherTraining
from fedtranscribe.models.ema import Ema
from fedtranscribe.models.sampling import sample
from fedtranscribe.models.unet import Denoiser

__all__ = [
    "Concatenation",
    "DpSad",
    "DpSadSettings",
    "Gradients",
    "Networks",
    "Optimiser",
    "Stage",
    "Start",
    "Weighting",
    "make_networks",
    "paper_settings",
    "tiny_settings",
]

# stage, steps done, steps in all
Progress = Callable[[str, int, int], None]


class Stage(StrEnum):
    """Where a run is; in this order."""

    PRETRAINING = "pre-training"  # the teacher, on public images
    TEACHER = "teacher"  # on private records
    STUDENT = "student"  # with the discriminator
    DONE = "done"


def silent(stage: str, done: int, total: int) -> None:
    """Show nothing."""


class DpSad:
    """Distils a private diffusion model in one place, and samples from it.

    Args:
        networks: of `make_networks`; trained in place, on their own device.
        settings: public.
        images: private, float32 [n, c, h, w] in [-1, 1] (`models.diffusion.to_signed`).
        labels: private, int64 [n]; None for networks of 0 classes.
        public: public images like `images`; None for none, where the teacher is private.
        public_labels: int64, of the same classes; None makes a public teacher unconditional.
        noise: of DP-SGD: OS entropy, or a seeded source in tests.
        bits: coins of the Poisson batches: OS entropy, or a seeded source in tests.
        rng: every other random choice: r, z, label drop, public batches. It needs no secrecy;
            give one on the accelerator for speed.
        backend: of the per-record gradients.
        physical_batch: records at a time in DP-SGD; None measures it.

    Attributes:
        stage: what the next step belongs to.
        done: steps of it that were taken.
        denoiser: the student.
        ema: its `network` holds the student's averaged weights.
        plan: each private training as DP-SGD.

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
        backend: Backend = Backend.FUNCTIONAL,
        physical_batch: int | None = None,
    ) -> None:
        student = networks.student
        check_images(images, student, "private")
        if public is None and not settings.private_teacher:
            raise ConfigError(
                "Expected public images for teacher=public; give some, or take teacher=dp."
            )
        if public is not None:
            check_images(public, student, "public")
        self.settings = settings
        self.denoiser = student.train()
        self._discriminator, self._rng = networks.discriminator, rng
        shown = _public_images(public, public_labels, student)
        self._teacher = TeacherTraining(networks.teacher, settings, shown, rng)
        self._public_count, self._labelled = len(shown[0]), public_labels is not None
        private = settings.private_steps(len(images))
        self._steps = {
            Stage.PRETRAINING: settings.pretrain_steps(self._public_count),
            Stage.TEACHER: private if settings.private_teacher else 0,
            Stage.STUDENT: private,
        }
        self.plan = DpSgdPlan(
            len(images),
            settings.batch,
            private,
            settings.noise_multiplier,
            settings.clip,
            settings.copies,
        )
        noisy, sound = settings.noise_multiplier > 0, settings.gradients is Gradients.SOUND
        self._protected, self._as_printed = noisy and sound, noisy and not sound
        self._seeded = not (noise.private and bits.private)
        self._records = PrivateRecords(
            images,
            checked_labels(labels, len(images), student),
            self.plan,
            protected=self._protected,
            noise=noise,
            bits=bits,
            backend=backend,
            physical_batch=physical_batch,
            device=next(student.parameters()).device,
        )
        self.ema = Ema(student, settings.ema_decay)
        self._enter(Stage.PRETRAINING)
        self._go_on()

    def caveats(self) -> tuple[str, ...]:
        """Why this run is NOT private; empty if it is."""
        settings, reasons = self.settings, []
        if settings.noise_multiplier == 0:
            reasons.append("It trains without clipping and noise (noise_multiplier=0).")
        if settings.gradients is Gradients.PUBLISHED:
            reasons.append(
                "Eq. 17 as published has no guarantee: it clips in image space, and the Jacobian "
                "behind that depends on the private image, without a bound; the noise is divided "
                f"by T={settings.schedule.steps}, what a record adds is not."
            )
            learners = {
                "teacher": settings.private_teacher,
                "discriminator": settings.private_discriminator,
            }
            reasons += [
                f"The {name} learns from private records without any protection."
                for name, private in learners.items()
                if private
            ]
        if self._seeded:
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
        """Images of the student's averaged weights: free post-processing.

        Args:
            labels: int64 [n]; without student conditioning they change nothing.
            rng: source of x_T and ξ; never the one of the training, whose position tells the sizes
                of secret batches.
            progress: called with (images done, images in all).

        Returns:
            float32 [n, c, h, w] in [-1, 1].
        """
        settings = self.settings
        if not settings.student_conditioning:
            labels = torch.full_like(labels, self.denoiser.null_label)
        return sample(
            self.ema.network, settings.schedule, labels, settings.sampling, rng, progress=progress
        )

    # ---------------------------------------------------------------- stages

    def _enter(self, stage: Stage) -> None:
        """Who learns in a stage."""
        settings = self.settings
        self.stage, self.done = stage, 0
        self._optimiser = self._adversary = None
        self._teacher.stop()
        # What gradients on private records were clipped to.
        clip = settings.clip if self._protected else 1.0
        if stage is Stage.PRETRAINING:
            self._teacher.begin(1.0)
        elif stage is Stage.TEACHER:
            self._teacher.begin(clip)
        elif stage is Stage.STUDENT:
            as_printed = settings.clip if self._as_printed else clip
            self._optimiser = make_optimiser(settings.optimiser, self.denoiser, as_printed)
            if self._discriminator is not None:
                divisor = clip if settings.private_discriminator else 1.0
                self._adversary = Adversary(self._discriminator, settings, self._rng, divisor)

    def _go_on(self) -> None:
        """Enter the next stage that has steps, when this one is through."""
        if self.finished or self.done < self._steps[self.stage]:
            return
        if self.stage is not Stage.STUDENT:
            self._teacher.settle()
        later = list(Stage)[list(Stage).index(self.stage) + 1 :]
        self._enter(next(s for s in later if s is Stage.DONE or self._steps[s]))
        if self.stage is Stage.STUDENT:
            if self.settings.start is Start.TEACHER:
                self.denoiser.load_state_dict(self._teacher.network.state_dict())
                self.ema.restart(self.denoiser)
            if self._adversary is not None and not self.settings.private_discriminator:
                self._adversary.pool = self._teacher.pool()

    def _one_step(self) -> None:
        done, total = self.done, self._steps[self.stage]
        try:
            if self.stage is Stage.PRETRAINING:
                self._teacher.public_step(done, total)
            elif self.stage is Stage.TEACHER:
                self._teacher.private_step(done, total, self._records)
            else:
                self._student_step(done, total)
        except torch.OutOfMemoryError:
            batch = "pretrain_batch" if self.stage is Stage.PRETRAINING else "physical_batch"
            raise ConfigError(
                f"Memory ran out in {self.stage}; lower {batch}, or take a smaller U-Net."
            ) from None

    def _student_step(self, done: int, total: int) -> None:
        """Lines 4-7: the student's step, then the discriminator's."""
        assert self._optimiser is not None
        set_rate(self._optimiser, self.settings.lr, done, total)
        labelled = self.settings.private_teacher or self._labelled
        course = Course(self.settings, self._teacher.network, labelled, self._rng)
        loss = StudentLoss(self.settings, self._discriminator)
        if self._as_printed:
            self._published_step(loss, course)
        else:
            self._records.step("student", done, self.denoiser, loss, course.rows, self._optimiser)
        self.ema.update(self.denoiser)
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

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs to go on as if nothing had happened: plain values, tensors.

        The tensors are those in use: write them before the next step.
        Steps done after it and then again are steps that nobody accounted for: once this has left
        the holder, what follows from it may be computed once only.
        """
        judge = self._discriminator
        return {
            "plan": self._public_plan(),
            "stage": self.stage.value,
            "done": self.done,
            "denoiser": self.denoiser.state_dict(),
            "optimiser": None if self._optimiser is None else self._optimiser.state_dict(),
            "ema": self.ema.state(),
            "teacher": self._teacher.state(),
            "discriminator": None if judge is None else judge.state_dict(),
            "adversary": None if self._adversary is None else self._adversary.state(),
            "physical_batch": dict(self._records.measured),
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
        if self._discriminator is not None:
            self._discriminator.load_state_dict(state["discriminator"])
        self.ema.load_state(state["ema"])
        self._enter(Stage(state["stage"]))
        self.done = state["done"]
        self._teacher.load_state(state["teacher"])
        if self._optimiser is not None:
            self._optimiser.load_state_dict(state["optimiser"])
        if self._adversary is not None:
            if not (self.settings.private_discriminator or self.settings.private_teacher):
                self._adversary.pool = self._teacher.pool()
            self._adversary.load_state(state["adversary"])
        self._records.measured = dict(state["physical_batch"])
        self._rng.set_state(state["rng"].cpu())

    def _public_plan(self) -> dict[str, Any]:
        """All that has to be the same in a run that goes on."""
        facts = {**asdict(self.settings), "records": self.plan.records}
        facts["public_images"] = self._public_count
        facts["public_labels"] = self._labelled
        return json.loads(json.dumps(facts))


def _public_images(
    images: Tensor | None, labels: Tensor | None, student: Denoiser
) -> tuple[Tensor, Tensor]:
    """Images [m, …] and labels [m]; null labels where there are none, m = 0 without images."""
    if images is None:
        images = torch.empty(0, student.channels, student.size, student.size)
    if labels is None:
        return images, torch.full((len(images),), student.null_label)
    return images, checked_labels(labels, len(images), student)
