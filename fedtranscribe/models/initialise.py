"""Where the first weights come from."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def fixed_randomness(seed: int) -> Iterator[None]:
    """Draw initial weights from `seed` alone, and leave the global generator as it was.

    torch's layers know no generator of their own, hence the detour.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def xavier_(module: nn.Module) -> None:
    """Xavier-uniform weights and zero biases in place, as DPSD sets up both of its networks."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
