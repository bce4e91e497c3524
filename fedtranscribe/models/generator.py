"""The generator of synthetic images: a small DCGAN."""

import torch
from torch import Tensor, nn

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.classifier import fixed_randomness, xavier_

# Side of the first map and how often it is doubled.
_PLANS = {28: (7, 2), 32: (8, 2), 64: (8, 3)}
GENERATED = tuple(_PLANS)
"""Sides that images of a `Generator` can have."""


class Generator(nn.Module):
    """Latent vectors -> images in [0, 1].

    One linear layer to a 7x7 or 8x8 map, then transposed convolutions that double the side and
    halve the width. Batch statistics are harmless here: the generator never sees a record.
    """

    def __init__(
        self, latent_dim: int, channels: int, size: int, width: int = 64, seed: int = 0
    ) -> None:
        super().__init__()
        if size not in _PLANS:
            raise ConfigError(
                f"Expected image size={size} to be one of {', '.join(map(str, _PLANS))} "
                f"for the generator; resize the images."
            )
        for label, value in (("latent_dim", latent_dim), ("channels", channels), ("width", width)):
            if value < 1:
                raise ConfigError(f"Expected {label}={value} >= 1.")
        self.latent_dim = latent_dim
        self.channels = channels
        self.size = size
        self.width = width
        with fixed_randomness(seed):
            self.layers = _layers(latent_dim, channels, size, width)
            xavier_(self)

    def forward(self, z: Tensor) -> Tensor:
        """float [n, latent_dim] -> float [n, channels, size, size] in [0, 1]."""
        return torch.sigmoid(self.layers(z))


def _layers(latent_dim: int, channels: int, size: int, width: int) -> nn.Sequential:
    side, doublings = _PLANS[size]
    before = width * 2 ** (doublings - 1)
    layers: list[nn.Module] = [
        nn.Linear(latent_dim, before * side * side, bias=False),
        nn.Unflatten(1, (before, side, side)),
        nn.BatchNorm2d(before),
        nn.ReLU(),
    ]
    for _ in range(doublings):
        after = max(1, before // 2)
        layers += [
            nn.ConvTranspose2d(before, after, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        ]
        before = after
    layers.append(nn.Conv2d(before, channels, 3, padding=1))
    return nn.Sequential(*layers)
