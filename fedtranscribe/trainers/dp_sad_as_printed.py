"""Eq. 17 of DP-SAD as printed: clipped in image space, times the Jacobian, noise over T.

    ḡ = 1/B Σ_i CLIP(∂L_i/∂x_{θ,i,r−1}, C) · ∂x_{θ,i,r−1}/∂θ + N(0, σ²C²)/(B T)

There is NO guarantee; it is here for research, and so that tests can show what is wrong with it:

- The Jacobian is a function of the private x_r and not a post-processing of what was clipped. What
  one record adds to the sum has the norm of C times the Jacobian's, which nothing bounds: it grows
  with the student's weights and inputs.
- Behind an affine layer the record's own x_r stands in the gradient, for everybody to read: the
  sum's row j is a multiple of it, and clipping changes the multiple only.
- The teacher and the discriminator, which had no protection, stand in every term: one record that
  is replaced changes all of them.
- 1/T divides the noise and not what one record adds: the multiplier is σ/T.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from fedtranscribe.models.diffusion import Schedule
from fedtranscribe.noise.sources import NoiseSource
from fedtranscribe.privacy.diffusion import DpSgdPlan
from fedtranscribe.trainers.per_sample import trainable

LossOfOutput = Callable[[Tensor], Tensor]
"""x_{θ,r−1} [n, c, h, w] -> losses [n]."""


def published_caveats(time_steps: int, unprotected: Iterable[str]) -> tuple[str, ...]:
    """Why a run as printed is NOT private; `unprotected` networks learn from records as well."""
    return (
        "Eq. 17 as published has no guarantee: it clips in image space, and the Jacobian behind "
        "that depends on the private image, without a bound; the noise is divided by "
        f"T={time_steps}, the contribution of a record is not.",
        *(
            f"The {name} learns from private records without any protection."
            for name in unprotected
        ),
    )


def add_published(output: Tensor, loss: LossOfOutput, clip: float) -> None:
    """Add Eq. 17's sum over these rows, without noise, to the gradients of who made the output."""
    leaf = output.detach().requires_grad_()
    (in_image_space,) = torch.autograd.grad(loss(leaf).sum(), leaf)
    norms = in_image_space.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    output.backward(in_image_space / (norms / clip).clamp(min=1))


def published_step(
    student: nn.Module,
    outputs: Iterable[tuple[Tensor, LossOfOutput]],
    optimiser: torch.optim.Optimizer,
    noise: NoiseSource,
    plan: DpSgdPlan,
    schedule: Schedule,
) -> None:
    """One step of Algorithm 1, line 6, over the student's outputs and their losses."""
    optimiser.zero_grad()
    for output, loss in outputs:
        add_published(output, loss, plan.clip)
    # Each copy counts as a row: K times the batch, and of the noise to be divided by it.
    batch, std = plan.batch * plan.multiplicity, plan.noise_std * plan.multiplicity
    for parameter in trainable(student).values():
        drawn = noise.gaussian(parameter.shape, std / schedule.steps).to(parameter)
        total = drawn if parameter.grad is None else parameter.grad + drawn
        parameter.grad = total / batch
    optimiser.step()
