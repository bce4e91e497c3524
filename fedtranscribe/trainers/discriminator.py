"""The network that tells a teacher's images from a student's, given time step and class.

A few strided convolutions with GroupNorm, so that rows never meet. Time step and class come in
twice: as a bias of every level, and in the last product, where an image is compared with what its
class and step look like.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.initialise import fixed_randomness, xavier_

_GROUPS = 8
_WIDEST = 128
# The map that is summed over at the end is no larger than this.
_LAST_SIDE = 4
_LONGEST_WAVE = 10_000


class ImageDiscriminator(nn.Module):
    """φ(x, t, y): how much more likely x is the teacher's than the student's, as a logit.

    Args:
        channels: of what it is shown: those of an image, or twice as many for pairs.
        image_size: pixels a side, 8 or more.
        classes: labels are 0..classes − 1; 0 for an unconditional one.
        seed: fixes the initial weights (Xavier).
        width: channels of the first level; they double down to 128.

    Attributes:
        null_label: the label that says nothing, = classes.

    Raises:
        ConfigError: a count out of range.
    """

    def __init__(
        self, channels: int, image_size: int, classes: int, seed: int = 0, width: int = 16
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("channels", channels, 1),
            ("image size", image_size, 2 * _LAST_SIDE),
            ("classes", classes, 0),
        ):
            if value < least:
                raise ConfigError(f"Expected {name}={value} >= {least} for the discriminator.")
        if width < _GROUPS or width % _GROUPS:
            raise ConfigError(f"Expected width={width} to be a positive multiple of {_GROUPS}.")
        self.null_label = classes
        self._waves = width
        widths = _widths(width, image_size)
        with fixed_randomness(seed):
            self.first = nn.Conv2d(channels, width, 3, padding=1)
            self.levels = nn.ModuleList(
                nn.Conv2d(a, b, 3, stride=2, padding=1)
                for a, b in zip([width, *widths], widths, strict=False)
            )
            self.norms = nn.ModuleList(nn.GroupNorm(_GROUPS, w) for w in widths)
            self.step = nn.Linear(2 * width, widths[-1])
            self.label = nn.Embedding(classes + 1, widths[-1])
            self.biases = nn.ModuleList(nn.Linear(widths[-1], w) for w in widths)
            self.verdict = nn.Linear(widths[-1], 1)
            xavier_(self)

    def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        """Logits; above 0 means the teacher.

        Args:
            x: float [n, channels, size, size].
            t: int64 [n], the step that x was predicted from, each in 1..T.
            labels: int64 [n], each in 0..null_label.

        Returns:
            float [n].
        """
        known = F.silu(self.step(_waves(t, self._waves)) + self.label(labels))
        h = self.first(x)
        for level, norm, bias in zip(self.levels, self.norms, self.biases, strict=True):
            h = F.leaky_relu(norm(level(h)) + bias(known)[..., None, None], 0.2)
        h = h.mean((-2, -1))
        return self.verdict(h).squeeze(-1) + (h * known).sum(-1) / math.sqrt(h.shape[-1])


def _widths(width: int, side: int) -> list[int]:
    """Channels after each halving, until the side is small enough."""
    found: list[int] = []
    while side > _LAST_SIDE:
        side = math.ceil(side / 2)
        width = min(2 * width, _WIDEST)
        found.append(width)
    return found


def _waves(t: Tensor, count: int) -> Tensor:
    """Sines and cosines of a time step at `count` wavelengths, float [n, 2 count]."""
    rates = torch.exp(torch.arange(count, device=t.device) * (-math.log(_LONGEST_WAVE) / count))
    angles = t[..., None].float() * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)
