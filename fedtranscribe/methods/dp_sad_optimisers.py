"""What takes DP-SAD's steps, and at which rate."""

import math

import torch
from torch import nn
from torch.optim import Optimizer

from fedtranscribe.methods.dp_sad_settings import Optimiser

_ADAM_EPS = 1e-8


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
