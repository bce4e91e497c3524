"""How a network learns to predict noise: public batches, random time steps, and the loss."""

import torch
from torch import Tensor

from fedtranscribe.mechanisms.draws import Draws
from fedtranscribe.models.unet import Denoiser


def noise_losses(denoiser: Denoiser, x_t: Tensor, t: Tensor, labels: Tensor, z: Tensor) -> Tensor:
    """The squared error of the guess of z for each row [n], as a mean over pixels.

    DP-SAD's Eq. 2; dp-promise's Algorithm 1, line 12.
    """
    return (denoiser(x_t, t, labels) - z).square().flatten(1).mean(1)


def random_steps(times: range, x_0: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """A time step and standard normal noise for each row, on the images' device.

    Args:
        times: the steps to draw from.
        x_0: [n, c, h, w]; only its shape and device matter.
        draws: random numbers of the n rows.

    Returns:
        int64 [n] and float32 [n, c, h, w].
    """
    t, z = draws.integers(times), draws.normal(x_0.shape[1:])
    return t.to(x_0.device), z.to(x_0.device)


def random_rows(
    public: tuple[Tensor, ...], rows: int, rng: torch.Generator, device: torch.device
) -> tuple[Tensor, ...]:
    """The same rows of public tensors, drawn with repetition, on a device."""
    shape = (rows,)
    picked = torch.randint(len(public[0]), shape, generator=rng, device=rng.device).cpu()
    return tuple(tensor[picked].to(device) for tensor in public)
