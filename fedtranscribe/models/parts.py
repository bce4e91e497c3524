"""Batches in parts, where fixed features are computed some images at a time."""

from collections.abc import Sequence

import torch
from torch import Tensor


def parts(images: Tensor, size: int) -> Sequence[Tensor]:
    """So many images each; all at once while a network is exported, whose batches have any size.

    Args:
        images: [n, ...].
        size: of a part, but for the last one.
    """
    return [images] if torch.compiler.is_exporting() else images.split(size)
