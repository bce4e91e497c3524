"""How fixed features take images: some at a time, and none too large."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE_SEEN = 64
"""Pixels a side that our own features look at, at most; finer texture is averaged away."""


def parts(images: Tensor, size: int) -> Sequence[Tensor]:
    """So many images each; all at once while a network is exported, whose batches have any size.

    Args:
        images: [n, ...].
        size: of a part, but for the last one.
    """
    return [images] if torch.compiler.is_exporting() else images.split(size)


def shrunk(images: Tensor) -> Tensor:
    """Larger images averaged to `SIDE_SEEN` pixels a side; others as they are.

    Args:
        images: float [n, ch, s, s].
    """
    if images.shape[-1] <= SIDE_SEEN:
        return images
    return F.adaptive_avg_pool2d(images, SIDE_SEEN)
