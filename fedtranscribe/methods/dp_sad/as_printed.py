"""Eq. 17 as printed: clipped in image space, times the Jacobian, noise over T. NO guarantee.

    ḡ = 1/B Σ_i CLIP(∂L_i/∂x_{θ,i,r−1}, C) · ∂x_{θ,i,r−1}/∂θ + N(0, σ²C²)/(B T)

It is here for research, and so that tests can show what is wrong with it:

- The Jacobian is a function of the private x_r and not a post-processing of what was clipped. What
  one record adds to the sum has the norm of C times the Jacobian's, which nothing bounds: it grows
  with the student's weights and inputs.
- Behind an affine layer the record's own x_r stands in the gradient, for everybody to read: the
  sum's row j is a multiple of it, and clipping changes the multiple only.
- The teacher and the discriminator, which had no protection, stand in every term: one record that
  is replaced changes all of them.
- 1/T divides the noise and not what one record adds: the multiplier is σ/T.
"""

from collections.abc import Iterable

import torch

from fedtranscribe.mechanisms.noise import NoiseSource
from fedtranscribe.mechanisms.per_sample import trainable
from fedtranscribe.methods.dp_sad.losses import Rows, StudentLoss, output_of
from fedtranscribe.methods.dp_sad.settings import DpSadSettings
from fedtranscribe.models.unet import Denoiser


def published_caveats(settings: DpSadSettings) -> tuple[str, ...]:
    """Why a run as printed is NOT private."""
    learners = {
        "teacher": settings.private_teacher,
        "discriminator": settings.private_discriminator,
    }
    return (
        "Eq. 17 as published has no guarantee: it clips in image space, and the Jacobian behind "
        "that depends on the private image, without a bound; the noise is divided by "
        f"T={settings.schedule.steps}, the contribution of a record is not.",
        *(
            f"The {name} learns from private records without any protection."
            for name, private in learners.items()
            if private
        ),
    )


def add_published(student: Denoiser, loss: StudentLoss, rows: Rows, clip: float) -> None:
    """Add Eq. 17's sum over these rows, without noise, to the gradients of the student."""
    output = output_of(student, rows)
    leaf = output.detach().requires_grad_()
    (in_image_space,) = torch.autograd.grad(loss.of_output(rows, leaf).sum(), leaf)
    norms = in_image_space.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    output.backward(in_image_space / (norms / clip).clamp(min=1))


def published_step(
    student: Denoiser,
    loss: StudentLoss,
    parts: Iterable[Rows],
    optimiser: torch.optim.Optimizer,
    noise: NoiseSource,
    *,
    batch: int,
    noise_std: float,
    clip: float,
    time_steps: int,
) -> None:
    """One step of Algorithm 1, line 6.

    Args:
        student: ε_θ.
        loss: Eq. 12.
        parts: the rows of the step.
        optimiser: of the student.
        noise: of N(0, σ²C²).
        batch: B.
        noise_std: σC.
        clip: C.
        time_steps: T.
    """
    optimiser.zero_grad()
    for rows in parts:
        add_published(student, loss, rows, clip)
    for parameter in trainable(student).values():
        drawn = noise.gaussian(parameter.shape, noise_std / time_steps).to(parameter)
        total = drawn if parameter.grad is None else parameter.grad + drawn
        parameter.grad = total / batch
    optimiser.step()
