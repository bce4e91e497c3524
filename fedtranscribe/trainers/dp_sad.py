"""DP-SAD, Algorithm 1 with sound gradients: stochastic adversarial distillation.

    public images ──Adam──> ψ ──(teacher = dp: x_0, y ──DP-SGD──> ψ)──┐
    x_0, y ──random r──> x_r ──ψ guided, θ──> x_{r−1} ──DP-SGD──> θ <─┤ MSE-T, MSE, λ ADV
    public or synthetic images ──same way──> x_{r−1} ──Adam──> φ <────┘
                                 averaged weights of θ ──DDIM──> images

What differs from the paper, to be sound or where it is silent:

- A record's gradient is clipped over the student's parameters (Eq. 15), and the noise is not
  divided by T. Eq. 17 as printed is in `dp_sad_as_printed.py`, and has no guarantee.
- Gradients are divided by the expected batch of a true Poisson batch, and by C (through Adam's
  constant): the paper's C = 1e-6 with plain SGD would move nothing.
- Networks predict noise; "the image of the next time step" (section 4.1) is its posterior mean
  x_{r−1} = (x_r − β_r ẑ/√(1 − ᾱ_r)) / √α_r. With the true noise for ẑ that is μ̃(x_r, x_0), the
  second target of Eq. 10. Losses are means over pixels.
- Eqs. 6-9 let both players descend one loss. Here the discriminator ascends it, and the student
  descends −log φ, which does not fade while it is losing.
- Weights are averaged. Each stage hands on its averages, and samples come from them.

Guarantee:
    Unit: record (one image and its label). Private data are used only in trainings by DP-SGD, each
    as `plan` says (`DpSgdPlan`, `DpSgdStep`), on Poisson batches of its own:
    - the student's. A record's term is the gradient of its own x_r, its own label, its own random
      numbers, and what teacher and discriminator make of those. They are public, or outputs of the
      trainings here, when the step begins; the teacher's answer on a private x_r is private still,
      and stays in the term.
    - the teacher's, with `teacher=dp`, and the discriminator's, with `discriminator=dp`.
    With `discriminator=outputs` it learns on images that are public (those of a public teacher) or
    synthetic (drawn from the teacher of private records, once), from the outputs of teacher and
    student on those: post-processing. `privacy_plan` is all of this; the ledger books its release.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.classifier import fixed_randomness, xavier_
from fedtranscribe.models.diffusion import Sampling, Schedule, guided_noise, posterior_mean, sample
from fedtranscribe.models.unet import Denoiser, UNetSize, make_unet
from fedtranscribe.privacy.diffusion import Discriminator, DpSadPlan, Teacher
from fedtranscribe.trainers import denoising
from fedtranscribe.trainers.denoising import (
    Ema,
    ImageDiscriminator,
    NoisePrediction,
    noise_losses,
    random_rows,
)
from fedtranscribe.trainers.dp_sad_as_printed import published_caveats, published_step
from fedtranscribe.trainers.per_sample import Inputs
from fedtranscribe.trainers.records import Draws, SharedDraws
from fedtranscribe.trainers.stages import StageTrainer, TrainerSettings, TrainingInputs


class SadStage(StrEnum):
    """Where a run is; in this order."""

    PRETRAINING = "pre-training"  # the teacher, on public images
    TEACHER = "teacher"  # on private records
    STUDENT = "student"  # with the discriminator
    DONE = "done"


@dataclass(frozen=True)
class DpSadSettings(TrainerSettings):
    """Public settings of Algorithm 1; the defaults are the supplement's for MNIST, made sound."""

    noise_multiplier: float  # σ of every private training; 0: no clipping, NOT private
    gradients: Literal["sound", "published"] = "sound"  # published: Eq. 17, NO guarantee
    teacher: Teacher = Teacher.PUBLIC  # DP: after the public images, if there are any
    discriminator: Discriminator = Discriminator.OUTPUTS
    batch: int = 128  # B, expected records per step of every private training
    epochs: float = 100  # of every private training: ⌈epochs n / B⌉ steps
    lr: float = 1e-4  # γ; every rate falls to 0 on a half cosine over its stage
    teacher_lr: float = 1e-4  # on private records
    discriminator_lr: float = 1e-4  # γ_d
    # Of student and discriminator; sgd is lines 6 and 7 as printed, where C = 1e-6 moves nothing.
    optimiser: Literal["adam", "sgd"] = "adam"
    clip: float = 1e-6  # C
    copies: int = 1  # K, pairs of r and noise per record, averaged before clipping
    student_start: Literal["xavier", "teacher"] = "xavier"  # first weights; line 2 has xavier
    guidance: float = 1.8  # w of Eq. 5, of the teacher's outputs; the student learns them guided
    teacher_weight: float = 1.0  # of MSE-T, the first term of Eq. 10
    data_weight: float = 1.0  # of MSE, the second term of Eq. 10
    adversarial_weight: float = 1.0  # λ of Eq. 12; 0 leaves the discriminator out
    # Squared errors of the predicted noise, all steps alike; or of x_{r-1}, as Eq. 10 prints them:
    # 1e-3 of that or less, most at the last steps.
    weighting: Literal["noise", "image"] = "noise"
    student_conditioning: bool = True  # whether the student gets the label
    discriminator_conditioning: bool = True  # it always gets the step
    # 𝒞 of Eq. 8: rows of one batch, judged one by one; or pairs, in both orders.
    concatenation: Literal["batch", "channels"] = "batch"
    label_drop: float = 0.1  # share of the teacher's labels made null, which Eq. 5 needs
    student_label_drop: float = 0.0  # sampling the student with guidance needs some
    pretrain_batch: int = 128  # public images per step of the teacher
    pretrain_epochs: float = 100
    pretrain_lr: float = 1e-4
    discriminator_batch: int = 128  # public or synthetic images per step
    synthetic_images: int = 1024  # drawn from a teacher of private records
    ema_decay: float = 0.999
    unet: UNetSize = UNetSize.SMALL  # teacher and student; the paper's networks are lost (Fig. 6)
    schedule: Schedule = field(default_factory=lambda: Schedule(500, 1e-4, 0.028))
    sampling: Sampling = field(default_factory=lambda: Sampling(500))

    def __post_init__(self) -> None:
        """Refuse what no run could do."""
        rates = ("lr", "teacher_lr", "discriminator_lr", "pretrain_lr")
        batches = ("batch", "pretrain_batch", "discriminator_batch")
        self._expect_counts(*batches, "copies", "synthetic_images")
        self._expect_positive("epochs", "pretrain_epochs", "clip", *rates)
        weights = ("teacher_weight", "data_weight", "adversarial_weight")
        self._expect_not_negative("noise_multiplier", "guidance", *weights)
        self._expect_shares("label_drop", "student_label_drop", "ema_decay")
        if not self.teacher_weight + self.data_weight + self.adversarial_weight:
            raise ConfigError(
                "Expected teacher_weight, data_weight or adversarial_weight > 0: nothing to learn."
            )
        if self.guidance and not self.label_drop:
            raise ConfigError(
                f"Expected label_drop=0 > 0 for guidance={self.guidance}: the teacher never "
                "learns to do without a label; raise it, or set guidance to 0."
            )
        if self.sampling.guidance and not self.student_label_drop:
            raise ConfigError(
                f"Expected student_label_drop=0 > 0 to sample with guidance="
                f"{self.sampling.guidance}; raise it, or leave guidance to the teacher."
            )
        self.sampling.expect_within(self.schedule)

    @property
    def private_teacher(self) -> bool:
        """Whether the teacher is trained on private records, protected or not."""
        return self.teacher is Teacher.DP

    @property
    def private_discriminator(self) -> bool:
        """Whether the discriminator is trained on private records, protected or not."""
        sees_records = self.discriminator is Discriminator.DP or self.gradients == "published"
        return self.adversarial_weight > 0 and sees_records

    def privacy_plan(self, records: int, dimensions: int = 784) -> DpSadPlan:
        """What trains and what is booked, for n records; a batch above n is a ConfigError."""
        return DpSadPlan(
            records,
            self.batch,
            self.epochs,
            self.noise_multiplier,
            self.teacher,
            self.discriminator if self.adversarial_weight else Discriminator.OUTPUTS,
            dilution=self.schedule.steps if self.gradients == "published" else 1,
            clip=self.clip,
            dimensions=dimensions,
            copies=self.copies,
        )

    def steps(self, records: int, public_images: int) -> dict[StrEnum, int]:
        """Optimiser steps of each stage, in order."""
        private = self.privacy_plan(records).training.steps
        if not public_images and not self.private_teacher:
            raise ConfigError(
                "Expected public images for teacher=public: --pretrain-data, or take --teacher dp."
            )
        return {
            SadStage.PRETRAINING: self.pretrain_steps(public_images),
            SadStage.TEACHER: private if self.private_teacher else 0,
            SadStage.STUDENT: private,
        }

    def caveats(self) -> tuple[str, ...]:
        """Why these settings are NOT private; empty if they are."""
        no_noise = "It trains without clipping and noise (noise_multiplier=0)."
        reasons = (no_noise,) if self.noise_multiplier == 0 else ()
        if self.gradients == "sound":
            return reasons
        learners = {"teacher": self.private_teacher, "discriminator": self.private_discriminator}
        unprotected = [name for name, private in learners.items() if private]
        return (*reasons, *published_caveats(self.schedule.steps, unprotected))


# ---------------------------------------------------------------- networks


class SadNetworks(NamedTuple):
    """ε_ψ, ε_θ of the same architecture, and ε_φ (None without ADV), on one device."""

    teacher: Denoiser
    student: Denoiser
    discriminator: ImageDiscriminator | None


def make_networks(
    settings: DpSadSettings, shape: tuple[int, int, int], seed: int = 0, device: Any = "cpu"
) -> SadNetworks:
    """Line 2: student and discriminator with Xavier weights; the teacher has torch's own.

    `shape` is channels, pixels a side, classes; a side that networks cannot have is a ConfigError.
    """
    channels, size, classes = shape
    teacher, student = (make_unet(settings.unet, *shape, seed) for _ in "ψθ")
    with fixed_randomness(seed):
        xavier_(student)
    discriminator = None
    if settings.adversarial_weight:
        seen = 2 * channels if settings.concatenation == "channels" else channels
        discriminator = ImageDiscriminator(seen, size, classes, seed).to(device)
    return SadNetworks(teacher.to(device), student.to(device), discriminator)


# ---------------------------------------------------------------- Eqs. 5 to 12, row by row


class Rows(NamedTuple):
    """Records at random steps; row i of each tensor depends on record i alone."""

    x_r: Tensor  # float [n, c, h, w]
    r: Tensor  # int64 [n], each in 1..T
    labels: Tensor  # int64 [n], the student's
    judged: Tensor  # int64 [n], the discriminator's labels
    taught: Tensor  # x_{ψ,r−1}, the guided teacher's output, float [n, c, h, w]
    true: Tensor  # μ̃(x_r, x_0), float [n, c, h, w]
    keep: Tensor  # 1/√α_r, float [n]
    step: Tensor  # β_r/√(α_r (1 − ᾱ_r)), float [n]
    weight: Tensor  # of squared errors, float [n]


def distillation_rows(
    settings: DpSadSettings, teacher: Denoiser, labelled: bool, x_0: Tensor, y: Tensor, draws: Draws
) -> Rows:
    """One random step r for each image x_0 [n, c, h, w]; x_r as in Fig. 2, right.

    A teacher that is not `labelled`, of unlabelled public images, is asked without labels.
    """
    r, z = denoising.random_steps(settings.schedule.times, x_0, draws)
    x_r = settings.schedule.noisy(x_0, r, z)
    keep, step = (f.to(x_0.device, x_0.dtype) for f in settings.schedule.posterior(r))
    null = torch.full_like(y, teacher.null_label)
    y = denoising.drop_labels(y, teacher.null_label, settings.student_label_drop, draws)
    asked, w = (y, settings.guidance) if labelled else (null, 0.0)
    with torch.no_grad():
        guess = guided_noise(teacher, x_r, r, asked, w)  # Eq. 5
    return Rows(
        x_r,
        r,
        y if settings.student_conditioning else null,
        y if settings.discriminator_conditioning else null,
        posterior_mean(x_r, guess, keep, step),
        posterior_mean(x_r, z, keep, step),
        keep,
        step,
        torch.ones_like(step) if settings.weighting == "image" else step**-2,
    )


def output_of(student: Denoiser, rows: Rows) -> Tensor:
    """x_{θ,r−1} [n, c, h, w]."""
    guess = student(rows.x_r, rows.r, rows.labels)
    return posterior_mean(rows.x_r, guess, rows.keep, rows.step)


@dataclass(frozen=True, eq=False)
class StudentLoss:
    """Eq. 12 at one random step, L_dis + λ L_adv, for each row by itself."""

    settings: DpSadSettings
    discriminator: nn.Module | None  # φ, which does not learn here

    def __call__(self, student: Denoiser, *rows: Tensor) -> Tensor:
        """Losses [n]; `rows` as `Rows` has them."""
        batch = Rows(*rows)
        return self.of_output(batch, output_of(student, batch))

    def of_output(self, rows: Rows, output: Tensor) -> Tensor:
        """The same, from the student's output x_{θ,r−1} [n, c, h, w]."""
        settings = self.settings
        loss = torch.zeros_like(rows.step)
        if settings.teacher_weight:  # Eq. 10, MSE-T
            loss = loss + settings.teacher_weight * rows.weight * _squared(output, rows.taught)
        if settings.data_weight:  # Eq. 10, MSE
            loss = loss + settings.data_weight * rows.weight * _squared(output, rows.true)
        if self.discriminator is not None:  # Eqs. 8 and 9
            _, fooled = concatenated(settings, rows.taught, output)
            verdict = self.discriminator(fooled, rows.r, rows.judged)
            loss = loss + settings.adversarial_weight * F.softplus(-verdict)
        return loss


def discriminator_losses(
    discriminator: nn.Module, first: Tensor, second: Tensor, r: Tensor, judged: Tensor
) -> Tensor:
    """What ascends Eqs. 6-9 [n]: cross entropy, [1, 0] for the teacher's `first`, else [0, 1]."""
    real = F.softplus(-discriminator(first, r, judged))
    return real + F.softplus(discriminator(second, r, judged))


def concatenated(settings: DpSadSettings, taught: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """𝒞 of Eq. 8: the teacher's and the student's side, [n, c or 2c, h, w] each."""
    if settings.concatenation == "batch":
        return taught, output
    # Both orders, or else the place alone would give it away.
    return torch.cat([taught, output], dim=1), torch.cat([output, taught], dim=1)


def _squared(one: Tensor, other: Tensor) -> Tensor:
    return (one - other).square().flatten(1).mean(1)


# ---------------------------------------------------------------- Algorithm 1


class DpSad(StageTrainer[SadStage, DpSadSettings]):
    """Distils a diffusion model, in place; unlabelled public images teach without labels."""

    def __init__(
        self, networks: SadNetworks, settings: DpSadSettings, inputs: TrainingInputs
    ) -> None:
        super().__init__(networks.student, settings, inputs)
        labelled = inputs.public_labels is not None
        self._facts["public_labels"] = labelled
        self._teacher, self._discriminator = networks.teacher, networks.discriminator
        self._teacher_ema = Ema(networks.teacher, settings.ema_decay)
        times, drop = settings.schedule.times, settings.label_drop
        self._prediction = NoisePrediction(self._teacher, settings.schedule, times, drop)
        labelled = labelled or settings.private_teacher
        self._rows = partial(distillation_rows, settings, self._teacher, labelled)
        self._noisy, sound = settings.noise_multiplier > 0, settings.gradients == "sound"
        self._protected = self._noisy and sound
        self.plan = self.privacy_plan.training
        where = self.images, self.plan, self._protected, self.device
        self._private = self._records = inputs.private_records(*where)
        self._begin()

    def _ready(self, stage: SadStage) -> dict[str, Optimizer]:
        settings, teacher, judge = self.settings, self._teacher, self._discriminator
        learns = stage in (SadStage.PRETRAINING, SadStage.TEACHER)
        teacher.train(learns).requires_grad_(learns)
        self._pool = None
        # What gradients on private records were clipped to: they count as divided by it.
        clip = settings.clip if self._protected else 1.0
        if learns:
            public = stage is SadStage.PRETRAINING
            name, divisor = ("pretrain_lr", 1.0) if public else ("teacher_lr", clip)
            return {name: denoising.make_optimiser(teacher, divisor)}
        if stage is SadStage.DONE:
            return {}
        sgd = settings.optimiser == "sgd"
        divisor = settings.clip if self._noisy else 1.0
        optimisers = {"lr": denoising.make_optimiser(self.denoiser, divisor, sgd=sgd)}
        if judge is not None:
            divisor = clip if settings.private_discriminator else 1.0
            optimisers["discriminator_lr"] = denoising.make_optimiser(judge, divisor, sgd=sgd)
            judge.requires_grad_(False)
            if not (settings.private_discriminator or settings.private_teacher):
                self._pool = self.public
        return optimisers

    def _take_over(self) -> None:
        settings, teacher = self.settings, self._teacher
        teacher.load_state_dict(self._teacher_ema.network.state_dict())
        self._teacher_ema.restart(teacher)
        if self.stage is not SadStage.STUDENT:
            return
        if settings.student_start == "teacher":
            self.denoiser.load_state_dict(teacher.state_dict())
            self.ema.restart(self.denoiser)
        unpaid = self._discriminator is not None and not settings.private_discriminator
        if unpaid and settings.private_teacher:  # then the discriminator sees what it draws
            labels = torch.arange(settings.synthetic_images) % max(1, teacher.classes)
            how = settings.schedule, labels, settings.sampling, self._rng
            self._pool = sample(teacher, *how), labels

    def _rated(self, name: str) -> Optimizer:
        """The optimiser whose first rate is the setting of that name, at this step's rate."""
        optimiser, total = self._optimisers[name], self.steps_of(self.stage)
        denoising.set_rate(optimiser, getattr(self.settings, name), self.done, total)
        return optimiser

    def _pretraining_step(self) -> None:
        """The teacher on public images, which the paper takes for granted (Eqs. 2 and 5)."""
        batch, optimiser = self.settings.pretrain_batch, self._rated("pretrain_lr")
        x_0, labels = random_rows(self.public, batch, self._rng, self.device)
        rows = self._prediction.rows(x_0, labels, SharedDraws(self._rng, batch))
        denoising.descend(optimiser, noise_losses(self._teacher, *rows), batch)
        self._teacher_ema.update_parameters(self._teacher)

    def _teacher_step(self) -> None:
        """Line 1: the teacher on private records, with or without protection."""
        optimiser, rows = self._rated("teacher_lr"), self._prediction.rows
        self._private.step("teacher", self.done, self._teacher, noise_losses, rows, optimiser)
        self._teacher_ema.update_parameters(self._teacher)

    def _student_step(self) -> None:
        """Lines 4-7: the student's step, then the discriminator's."""
        optimiser, student, done = self._rated("lr"), self.denoiser, self.done
        loss = StudentLoss(self.settings, self._discriminator)
        if self._protected or not self._noisy:  # Eq. 15
            self._private.step("student", done, student, loss, self._rows, optimiser)
        else:  # Eq. 17 as printed; NOT private
            parts = (self._rows(*part) for part in self._private.parts("student", done))
            outputs = ((output_of(student, rows), partial(loss.of_output, rows)) for rows in parts)
            noise = self._private.noise.for_query(f"student/{done}")
            published_step(student, outputs, optimiser, noise, self.plan, self.settings.schedule)
        self.ema.update_parameters(student)
        if self._discriminator is not None:
            self._discriminator_step(self._discriminator)

    def _discriminator_step(self, judge: ImageDiscriminator) -> None:
        """Line 7, on outputs for the pool: post-processing; without one, by DP-SGD on records."""

        def compared(x_0: Tensor, labels: Tensor, draws: Draws) -> Inputs:
            rows = self._rows(x_0, labels, draws)
            with torch.no_grad():
                output = output_of(self.denoiser, rows)
            return *concatenated(self.settings, rows.taught, output), rows.r, rows.judged

        optimiser, loss = self._rated("discriminator_lr"), discriminator_losses
        judge.requires_grad_(True)
        if self._pool is None:
            self._private.step("discriminator", self.done, judge, loss, compared, optimiser)
        else:
            batch = self.settings.discriminator_batch
            x_0, labels = random_rows(self._pool, batch, self._rng, self.device)
            rows = compared(x_0, labels, SharedDraws(self._rng, batch))
            denoising.descend(optimiser, loss(judge, *rows), batch)
        # The student's loss looks through it, and must not gather gradients for it.
        judge.requires_grad_(False)

    def _parts(self) -> dict[str, Any]:
        own = {"teacher": self._teacher, "teacher_ema": self._teacher_ema}
        return super()._parts() | own | {"discriminator": self._discriminator}

    def _own_state(self) -> dict[str, Any]:
        return {"drawn": self._pool if self.settings.private_teacher else None}

    def _load_own_state(self, state: dict[str, Any]) -> None:
        self._pool = self._pool or state["drawn"]

    def _step(self) -> tuple[Callable[[], None], str]:
        if self.stage is SadStage.PRETRAINING:
            return self._pretraining_step, "pretrain_batch"
        teaching = self.stage is SadStage.TEACHER
        return self._teacher_step if teaching else self._student_step, "physical_batch"
