"""Low frequencies of images: an orthonormal public basis in which pictures are short.

A cosine transform (DCT-II) along rows, columns and colour channels. Of every channel the lowest
`MOST_SIDE` x `MOST_SIDE` frequencies are kept: all of them up to 32 pixels a side; larger images
come back smooth.
"""

import math
from functools import lru_cache, reduce

import numpy as np
import torch
from scipy.fft import dct
from torch import Tensor

MOST_SIDE = 32
# Whole numbers up to 2⁵³ are float64 numbers.
_EXACT = 53
# Eyes and networks see less of colour than of brightness.
_COLOUR_WEIGHT = 4


def frequency_count(channels: int, size: int) -> int:
    """d, how many frequencies an image has."""
    return channels * min(size, MOST_SIDE) ** 2


def frequencies(images: Tensor) -> Tensor:
    """Frequencies of images: float64 [n, d], channel by channel.

    Args:
        images: uint8 [n, ch, s, s]; 255 counts as one.

    Guarantee:
        Those of an image are a function of that image alone, wherever it stands. Pixels and the
        transform are whole numbers, so that no sum of their products is rounded, in any order; the
        rest is done entry by entry.
    """
    channels, size = images.shape[1], images.shape[-1]
    bits = (_EXACT - 8 - 2 * math.ceil(math.log2(size))) // 2
    lines, colours = (_lines(size) * 2.0**bits).round(), _matrix(channels)
    rows = (lines @ images.double() @ lines.T) / (255 * 4.0**bits)
    shares = (rows[:, i, None] * colours[:, i, None, None] for i in range(channels))
    return reduce(torch.add, shares).flatten(1)


def images_from(found: Tensor, channels: int, size: int) -> Tensor:
    """Images [n, ch, s, s] of frequencies [n, d]: the inverse, where none was left out."""
    side = min(size, MOST_SIDE)
    lines, colours = _lines(size).to(found), _matrix(channels).to(found)
    squares = found.reshape(-1, channels, side, side)
    return lines.T @ torch.einsum("cd,nchw->ndhw", colours, squares) @ lines


@lru_cache
def lowest(channels: int, size: int, count: int) -> Tensor:
    """Where the `count` lowest frequencies stand, int64 [count]; brightness before colour."""
    side = min(size, MOST_SIDE)
    channel, row, column = torch.meshgrid(
        torch.arange(channels), torch.arange(side), torch.arange(side), indexing="ij"
    )
    weight = torch.where(channel == 0, 1, _COLOUR_WEIGHT)
    height = weight * (row.square() + column.square() + (channel > 0))
    return height.flatten().argsort(stable=True)[:count]


def _lines(size: int) -> Tensor:
    return _matrix(size)[: min(size, MOST_SIDE)]


@lru_cache(maxsize=8)
def _matrix(size: int) -> Tensor:
    """The orthonormal transform, float64 [size, size]."""
    return torch.from_numpy(np.ascontiguousarray(dct(np.eye(size), norm="ortho", axis=0)))
