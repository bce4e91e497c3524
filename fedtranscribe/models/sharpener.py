"""A small U-Net that gives the blurred images of a mixture their strokes and edges."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtranscribe.models.classifier import fixed_randomness

_WIDTH, _GROUPS = 32, 8
_NOISE = 8
# Pixels are held so far from 0 and 1, whose logits are infinite.
_EDGE = 0.02


class Sharpener(nn.Module):
    """Images, their classes and noise -> images; what it adds to their logits is zero at first.

    Classes that it does not know stay as they are.

    Args:
        channels: of the images.
        size: pixels a side, 8 at least.
        classes: of the task.
        seed: of the weights.
    """

    known: Tensor

    def __init__(self, channels: int, size: int, classes: int, seed: int = 0) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("known", torch.ones(classes, dtype=torch.bool))
        with fixed_randomness(seed):
            self.classes = nn.Embedding(classes, _WIDTH)
            self.first = nn.Conv2d(channels + _NOISE, _WIDTH, 3, padding=1)
            self.down = nn.ModuleList(_convolution(stride=2) for _ in range(2))
            self.up = nn.ModuleList(_convolution(stride=1) for _ in range(3))
            self.norms = nn.ModuleList(nn.GroupNorm(_GROUPS, _WIDTH) for _ in range(6))
            self.last = nn.Conv2d(_WIDTH, channels, 3, padding=1)
        for zero in self.last.parameters():
            nn.init.zeros_(zero)

    def forward(self, images: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
        """Sharper images.

        Args:
            images: float [n, ch, s, s] in [0, 1].
            labels: int64 [n].
            noise: float [n, 8, s, s], standard normal.

        Returns:
            float [n, ch, s, s] in [0, 1].
        """
        about = self.classes(labels)[:, :, None, None]
        found = [self._activated(0, self.first(torch.cat([2 * images - 1, noise], 1)) + about)]
        for i, layer in enumerate(self.down):
            found.append(self._activated(1 + i, layer(found[-1])))
        inner = found.pop()
        inner = inner + self._activated(3, self.up[0](inner))
        for i, beside in enumerate(reversed(found)):
            inner = F.interpolate(inner, size=beside.shape[-2:]) + beside
            inner = self._activated(4 + i, self.up[1 + i](inner))
        within = images.clamp(_EDGE, 1 - _EDGE)
        sharper = torch.sigmoid(within.logit() + self.last(inner))
        return torch.where(self.known[labels][:, None, None, None], sharper, images)

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        """Of the numbers that make two images out of one."""
        return _NOISE, self.size, self.size

    def _activated(self, i: int, values: Tensor) -> Tensor:
        return F.silu(self.norms[i](values))


def _convolution(stride: int) -> nn.Conv2d:
    return nn.Conv2d(_WIDTH, _WIDTH, 3, padding=1, stride=stride)
