"""What DP-SAD's student and discriminator learn from, row by row (Eqs. 5-12).

    x_0, y ──random r, z──> x_r ──teacher, guided──> x_{ψ,r−1} ──┐ MSE-T
                             │                       μ̃(x_r, x_0) ├ MSE      ──> student
                             └────student──────────> x_{θ,r−1} ──┘ λ ADV

Networks predict noise; "the image of the next time step" (the paper's section 4.1) is its
posterior mean x_{r−1} = (x_r − β_r ẑ/√(1 − ᾱ_r)) / √α_r, and with the true noise for ẑ that is
μ̃(x_r, x_0), the second target of Eq. 10. Losses are means over pixels.

Eqs. 6-9 as printed let both players descend one loss. Here the discriminator ascends it (cross
entropy, [1, 0] for the teacher's output and [0, 1] for the student's, which is one logit), and the
student descends −log φ, which does not fade while it is losing.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtranscribe.mechanisms.draws import Draws
from fedtranscribe.methods.denoising import random_steps
from fedtranscribe.methods.dp_sad.settings import Concatenation, DpSadSettings, Weighting
from fedtranscribe.models.discriminator import Discriminator
from fedtranscribe.models.schedule import Schedule, spread
from fedtranscribe.models.unet import Denoiser, drop_labels


class Rows(NamedTuple):
    """Records at random steps; row i of each tensor depends on record i alone.

    Attributes:
        x_r: float [n, c, h, w].
        r: int64 [n], each in 1..T.
        labels: int64 [n], what the student is told.
        judged: int64 [n], the label that the discriminator is told.
        taught: x_{ψ,r−1}, the guided teacher's output, float [n, c, h, w].
        true: μ̃(x_r, x_0), float [n, c, h, w].
        keep: 1/√α_r, float [n].
        step: β_r/√(α_r (1 − ᾱ_r)), float [n].
        weight: of squared errors, float [n].
    """

    x_r: Tensor
    r: Tensor
    labels: Tensor
    judged: Tensor
    taught: Tensor
    true: Tensor
    keep: Tensor
    step: Tensor
    weight: Tensor


def posterior_mean(x_r: Tensor, noise: Tensor, keep: Tensor, step: Tensor) -> Tensor:
    """x_{r−1} as predicted from the noise in x_r.

    Args:
        x_r: float [n, c, h, w].
        noise: predicted or true, alike.
        keep: 1/√α_r, float [n].
        step: β_r/√(α_r (1 − ᾱ_r)), float [n].
    """
    return spread(keep, x_r) * x_r - spread(step, x_r) * noise


def posterior_factors(schedule: Schedule, r: Tensor) -> tuple[Tensor, Tensor]:
    """`keep` and `step` of `posterior_mean` at steps r, float64 [n] each."""
    r = r.cpu()
    beta, kept = schedule.betas[r - 1], schedule.alpha_bar[r]
    keep = (1 - beta).rsqrt()
    return keep, keep * beta * (1 - kept).rsqrt()


@torch.no_grad()
def guided_noise(teacher: Denoiser, x: Tensor, t: Tensor, labels: Tensor, weight: float) -> Tensor:
    """Eq. 5's argument: (1 + w) ε_ψ(x, y) − w ε_ψ(x).

    Args:
        teacher: ε_ψ.
        x: float [n, c, h, w].
        t: int64 [n], each in 1..T.
        labels: int64 [n], each in 0..null_label.
        weight: w.
    """
    told = teacher(x, t, labels)
    if weight == 0:
        return told
    return (1 + weight) * told - weight * teacher(x, t, torch.full_like(labels, teacher.null_label))


@dataclass(frozen=True, eq=False)
class Course:
    """Takes images to random steps and asks the teacher.

    Attributes:
        settings: public.
        teacher: ε_ψ, which does not learn any more.
        labelled: whether it knows labels; one of unlabelled public images does not.
    """

    settings: DpSadSettings
    teacher: Denoiser
    labelled: bool

    def rows(self, x_0: Tensor, labels: Tensor, draws: Draws) -> Rows:
        """One random step for each image; x_r comes from the forward process (Fig. 2, right).

        Args:
            x_0: float [n, c, h, w] in [-1, 1], on the networks' device.
            labels: int64 [n], there too.
            draws: random numbers of the n rows: r, z and dropped labels.
        """
        settings, teacher = self.settings, self.teacher
        r, z = random_steps(settings.schedule.times, x_0, draws)
        x_r = settings.schedule.noisy(x_0, r, z)
        keep, step = (
            factor.to(x_0.device, x_0.dtype) for factor in posterior_factors(settings.schedule, r)
        )
        null = torch.full_like(labels, teacher.null_label)
        told = drop_labels(labels, teacher.null_label, settings.student_label_drop, draws)
        asked = told if self.labelled else null
        guess = guided_noise(teacher, x_r, r, asked, settings.guidance if self.labelled else 0)
        per_image = settings.weighting is Weighting.IMAGE
        return Rows(
            x_r,
            r,
            told if settings.student_conditioning else null,
            told if settings.discriminator_conditioning else null,
            posterior_mean(x_r, guess, keep, step),
            posterior_mean(x_r, z, keep, step),
            keep,
            step,
            torch.ones_like(step) if per_image else step**-2,
        )


@dataclass(frozen=True, eq=False)
class StudentLoss:
    """Eq. 12 at one random step, for each row by itself.

    Attributes:
        settings: weights of the terms, and what the discriminator is shown.
        discriminator: φ, which does not learn here; None without ADV.
    """

    settings: DpSadSettings
    discriminator: Discriminator | None

    def __call__(self, student: Denoiser, *rows: Tensor) -> Tensor:
        """L_dis + λ L_adv of each row [n]; `rows` as `Rows` has them."""
        batch = Rows(*rows)
        return self.of_output(batch, output_of(student, batch))

    def of_output(self, rows: Rows, output: Tensor) -> Tensor:
        """The same, from the student's output x_{θ,r−1} [n, c, h, w]."""
        settings = self.settings
        loss = torch.zeros_like(rows.step)
        if settings.teacher_weight:
            loss = loss + settings.teacher_weight * rows.weight * _squared(output, rows.taught)
        if settings.data_weight:
            loss = loss + settings.data_weight * rows.weight * _squared(output, rows.true)
        if self.discriminator is not None:
            _, fooled = shown(settings.concatenation, rows.taught, output)
            verdict = self.discriminator(fooled, rows.r, rows.judged)
            loss = loss + settings.adversarial_weight * F.softplus(-verdict)
        return loss


def discriminator_losses(
    discriminator: Discriminator, first: Tensor, second: Tensor, r: Tensor, judged: Tensor
) -> Tensor:
    """Cross entropy of both verdicts for each row [n]: what ascends Eqs. 6-9.

    Args:
        discriminator: φ.
        first: what it should take for the teacher's, as `shown` has it.
        second: what it should take for the student's.
        r: int64 [n].
        judged: int64 [n], labels.
    """
    real = F.softplus(-discriminator(first, r, judged))
    return real + F.softplus(discriminator(second, r, judged))


def shown(way: Concatenation, taught: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """What the discriminator is shown as the teacher's and as the student's, [n, c or 2c, h, w]."""
    if way is Concatenation.BATCH:
        return taught, output
    # Both orders, or else the place alone would tell.
    return torch.cat([taught, output], dim=1), torch.cat([output, taught], dim=1)


def output_of(student: Denoiser, rows: Rows) -> Tensor:
    """x_{θ,r−1} [n, c, h, w]."""
    guess = student(rows.x_r, rows.r, rows.labels)
    return posterior_mean(rows.x_r, guess, rows.keep, rows.step)


def _squared(one: Tensor, other: Tensor) -> Tensor:
    return (one - other).square().flatten(1).mean(1)
