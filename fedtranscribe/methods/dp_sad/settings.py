"""Settings of a DP-SAD run, the paper's values, and the checks before any work."""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.sampling import Sampling
from fedtranscribe.models.schedule import Schedule
from fedtranscribe.models.unet import UNetSize
from fedtranscribe.privacy.diffusion import Discriminator, DpSadPlan, Teacher
from fedtranscribe.privacy.release_plan import Release


class Gradients(StrEnum):
    """How a record's gradient is bounded: the guarantee depends on it."""

    SOUND = "sound"  # clipped over the student's parameters, noise as it is
    PUBLISHED = "published"  # Eq. 17 as printed: NO guarantee, for research


class Weighting(StrEnum):
    """What weighs the squared errors of Eq. 10 at step r."""

    NOISE = "noise"  # as errors of the predicted noise: all steps alike
    IMAGE = "image"  # as printed, of x_{r-1}: 1e-3 of that or less, most at the last steps


class Concatenation(StrEnum):
    """What 𝒞 of Eq. 8 makes of both outputs."""

    BATCH = "batch"  # rows of one batch, judged one by one
    CHANNELS = "channels"  # pairs, in both orders; which half is the teacher's


class Optimiser(StrEnum):
    """What takes the student's and the discriminator's steps."""

    ADAM = "adam"  # on gradients divided by C
    SGD = "sgd"  # Algorithm 1, lines 6 and 7, as printed: C = 1e-6 moves nothing


class Start(StrEnum):
    """The student's first weights."""

    XAVIER = "xavier"  # Algorithm 1, line 2
    TEACHER = "teacher"  # the teacher's, which are public or private already


@dataclass(frozen=True)
class DpSadSettings:
    """Public settings of Algorithm 1; the defaults are the paper's for MNIST, made sound.

    Attributes:
        noise_multiplier: σ of every private training; 0 trains without clipping and noise, and is
            NOT private.
        gradients: sound, or as printed. As printed, a teacher from private records and the
            discriminator have no protection at all.
        teacher: from public images, or from the private records by DP-SGD (after the public
            images, if there are any).
        discriminator: learns from what is public or private already, or from the private records
            by DP-SGD of its own.
        batch: B, expected records per step of every private training.
        epochs: passes over the data of every private training; steps are ⌈epochs n / B⌉.
        lr: γ, of the student. All rates fall to 0 on a half cosine over their stage.
        teacher_lr: of the teacher on private records.
        discriminator_lr: γ_d.
        optimiser: of student and discriminator.
        clip: C.
        copies: K, pairs of r and noise per record, averaged before clipping; the paper has 1.
        student_start: the student's first weights.
        guidance: w of Eq. 5, of the teacher's outputs; the student learns them guided.
        teacher_weight: of MSE-T, the first term of Eq. 10; 0 leaves it out.
        data_weight: of MSE, the second term; 0 leaves it out.
        adversarial_weight: λ of Eq. 12; 0 leaves the discriminator out.
        weighting: of both squared errors.
        student_conditioning: whether the student gets the label.
        discriminator_conditioning: whether the discriminator gets the label; it always gets
            the step.
        concatenation: what the discriminator is shown.
        label_drop: share of the teacher's labels that become the null label, which Eq. 5 needs.
        student_label_drop: of the student's; sampling it with guidance needs some.
        pretrain_batch: public images per step.
        pretrain_epochs: passes over the public images.
        pretrain_lr: of the teacher on public images.
        discriminator_batch: public or synthetic images per step of the discriminator.
        synthetic_images: drawn from a teacher of private records, for the discriminator.
        ema_decay: of the averaged weights.
        unet: size of teacher and student.
        schedule: T and betas.
        sampling: how the student's images are drawn.
    """

    noise_multiplier: float
    gradients: Gradients = Gradients.SOUND
    teacher: Teacher = Teacher.PUBLIC
    discriminator: Discriminator = Discriminator.OUTPUTS
    batch: int = 128
    epochs: float = 100
    lr: float = 1e-4
    teacher_lr: float = 1e-4
    discriminator_lr: float = 1e-4
    optimiser: Optimiser = Optimiser.ADAM
    clip: float = 1e-6
    copies: int = 1
    student_start: Start = Start.XAVIER
    guidance: float = 1.8
    teacher_weight: float = 1.0
    data_weight: float = 1.0
    adversarial_weight: float = 1.0
    weighting: Weighting = Weighting.NOISE
    student_conditioning: bool = True
    discriminator_conditioning: bool = True
    concatenation: Concatenation = Concatenation.BATCH
    label_drop: float = 0.1
    student_label_drop: float = 0.0
    pretrain_batch: int = 128
    pretrain_epochs: float = 100
    pretrain_lr: float = 1e-4
    discriminator_batch: int = 128
    synthetic_images: int = 1024
    ema_decay: float = 0.999
    unet: UNetSize = UNetSize.SMALL
    schedule: Schedule = field(default_factory=lambda: Schedule(500, 1e-4, 0.028))
    sampling: Sampling = field(default_factory=lambda: Sampling(500))

    def __post_init__(self) -> None:
        """Refuse what no run could do.

        Raises:
            ConfigError: names the value and the fix.
        """
        for name in (
            "batch",
            "pretrain_batch",
            "discriminator_batch",
            "copies",
            "synthetic_images",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"Expected {name}={getattr(self, name)} >= 1.")
        for name in (
            *("epochs", "pretrain_epochs", "clip"),
            *("lr", "teacher_lr", "discriminator_lr", "pretrain_lr"),
        ):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"Expected {name}={getattr(self, name)} > 0 and finite.")
        for name in (
            *("noise_multiplier", "guidance"),
            *("teacher_weight", "data_weight", "adversarial_weight"),
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"Expected {name}={getattr(self, name)} >= 0 and finite.")
        for name in ("label_drop", "student_label_drop", "ema_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"Expected {name}={getattr(self, name)} in [0, 1).")
        self._check_together()

    def _check_together(self) -> None:
        if not self.teacher_weight + self.data_weight + self.adversarial_weight:
            raise ConfigError(
                "Expected teacher_weight, data_weight or adversarial_weight > 0: with none of "
                "them the student has nothing to learn."
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
        if self.sampling.steps > self.schedule.steps:
            raise ConfigError(
                f"Expected sampling steps={self.sampling.steps} <= T={self.schedule.steps}; "
                "lower them."
            )

    @property
    def adversarial(self) -> bool:
        """Whether there is a discriminator."""
        return self.adversarial_weight > 0

    @property
    def private_teacher(self) -> bool:
        """Whether the teacher is trained on private records, protected or not."""
        return self.teacher is Teacher.DP

    @property
    def private_discriminator(self) -> bool:
        """Whether the discriminator is trained on private records, protected or not."""
        as_printed = self.gradients is Gradients.PUBLISHED
        return self.adversarial and (as_printed or self.discriminator is Discriminator.DP)

    def pretrain_steps(self, images: int) -> int:
        """Over all epochs; 0 without public images."""
        return math.ceil(self.pretrain_epochs * images / self.pretrain_batch)

    def privacy_plan(self, records: int, dimensions: int = 784) -> DpSadPlan:
        """What trains and what is booked; a run that has `caveats` has no guarantee.

        Args:
            records: n.
            dimensions: numbers in an image.

        Raises:
            ConfigError: the batch is larger than the data.
        """
        printed = self.gradients is Gradients.PUBLISHED
        return DpSadPlan(
            records,
            self.batch,
            self.epochs,
            self.noise_multiplier,
            self.teacher,
            self.discriminator if self.adversarial else Discriminator.OUTPUTS,
            dilution=self.schedule.steps if printed else 1,
            clip=self.clip,
            dimensions=dimensions,
            copies=self.copies,
        )

    def release(self, records: int) -> Release | None:
        """What the ledger books; None for a run that has no guarantee."""
        if self.noise_multiplier == 0 or self.gradients is Gradients.PUBLISHED:
            return None
        return self.privacy_plan(records).release()


def paper_settings(
    dataset: str, noise_multiplier: float, gradients: Gradients = Gradients.SOUND
) -> DpSadSettings:
    """The settings of the paper's supplement; networks and what else it leaves open are ours.

    Args:
        dataset: mnist, fashion-mnist or celeba (with hair colour or gender as the label, at 32, 64
            or 128 pixels a side).
        noise_multiplier: σ, calibrated to the ε wanted.
        gradients: sound; or Algorithm 1 as printed, with an unprotected teacher, plain SGD, and
            errors of images.

    Raises:
        ConfigError: no such profile.
    """
    sizes = {
        "mnist": UNetSize.SMALL,
        "fashion-mnist": UNetSize.MEDIUM,
        "celeba": UNetSize.LARGE,
    }
    if dataset not in sizes:
        raise ConfigError(
            f"The paper has no settings for {dataset!r}; choose one of {', '.join(sizes)}."
        )
    ours = DpSadSettings(noise_multiplier, unet=sizes[dataset])
    if gradients is Gradients.SOUND:
        return ours
    return replace(
        ours,
        gradients=gradients,
        teacher=Teacher.DP,
        optimiser=Optimiser.SGD,
        weighting=Weighting.IMAGE,
    )


def tiny_settings(noise_multiplier: float) -> DpSadSettings:
    """For a few thousand small grey images on two cores: a private teacher, few epochs.

    The teacher may start from public images; alone those teach too little of another data set.

    Args:
        noise_multiplier: σ, calibrated to the ε wanted; 0 for a run without privacy, which takes
            small batches, as noise does not ask for large ones.
    """
    private = noise_multiplier > 0
    return DpSadSettings(
        noise_multiplier,
        teacher=Teacher.DP,
        batch=256 if private else 64,
        # What two cores do in a quarter of an hour.
        epochs=5 if private else 8,
        lr=1e-3,
        teacher_lr=1e-3,
        discriminator_lr=1e-3,
        student_start=Start.TEACHER,
        pretrain_batch=64,
        pretrain_epochs=20,
        pretrain_lr=2e-3,
        discriminator_batch=32,
        synthetic_images=512,
        ema_decay=0.99,
        unet=UNetSize.TINY,
        sampling=Sampling(25),
    )
