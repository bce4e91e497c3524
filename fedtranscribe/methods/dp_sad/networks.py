"""The three networks of DP-SAD: the weights that they start from, and what takes their steps."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from fedtranscribe.methods.dp_sad.settings import Concatenation, DpSadSettings, Optimiser
from fedtranscribe.models.discriminator import Discriminator
from fedtranscribe.models.initialise import fixed_randomness, xavier_
from fedtranscribe.models.unet import Denoiser, make_unet

_ADAM_EPS = 1e-8


@dataclass(frozen=True, eq=False)
class Networks:
    """Teacher, student and discriminator, on one device.

    Attributes:
        teacher: ε_ψ.
        student: ε_θ, of the teacher's architecture.
        discriminator: ε_φ; None without ADV.
    """

    teacher: Denoiser
    student: Denoiser
    discriminator: Discriminator | None


def make_networks(
    settings: DpSadSettings,
    channels: int,
    image_size: int,
    classes: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Networks:
    """Fresh networks: student and discriminator with Xavier weights (Algorithm 1, line 2).

    The teacher has torch's own, from which a U-Net learns faster; the paper leaves them open. Its
    architectures are lost (Fig. 6): teacher and student are dp-promise's U-Nets.

    Args:
        settings: size of the U-Nets, and what the discriminator is shown.
        channels: 1 for grey, 3 for colour.
        image_size: pixels a side: a multiple of 4, of 8 for `large`.
        classes: of the labels; 0 for an unconditional model.
        seed: fixes the weights.
        device: where they are to be.

    Raises:
        ConfigError: a size that the networks cannot have, or diffusers is absent.
    """
    teacher, student = (make_unet(settings.unet, channels, image_size, classes, seed) for _ in "ψθ")
    with fixed_randomness(seed):
        xavier_(student)
    discriminator = None
    if settings.adversarial:
        pairs = settings.concatenation is Concatenation.CHANNELS
        seen = 2 * channels if pairs else channels
        discriminator = Discriminator(seen, image_size, classes, seed).to(device)
    return Networks(teacher.to(device), student.to(device), discriminator)


def make_optimiser(kind: Optimiser, network: nn.Module, divisor: float = 1.0) -> Optimizer:
    """Over all parameters; the rate is set before each step.

    Args:
        kind: Adam, or plain SGD, which divides by nothing.
        network: that learns.
        divisor: what gradients are divided by first, C where they were clipped to it. Adam does not
            see their scale but for its constant, so that is multiplied instead.
    """
    if kind is Optimiser.SGD:
        return torch.optim.SGD(network.parameters())
    return torch.optim.Adam(network.parameters(), eps=_ADAM_EPS * divisor)


def set_rate(optimiser: Optimizer, first: float, done: int, total: int) -> None:
    """The half cosine from `first` at step 0 to 0 after `total` steps (CosineAnnealingLR)."""
    for group in optimiser.param_groups:
        group["lr"] = first * (1 + math.cos(math.pi * done / total)) / 2
