"""Dead leaves: public colour or grey images drawn by a formula, with the edges of photographs.

Discs and rectangles of random place, size, slant and shade fall on each other. Sizes follow a power
law, so that the images have the same statistics at every scale, as photographs do (Lee, Mumford and
Huang 2001). What is learned from them suits photographs, and no person's data stand behind it.
"""

import math

import torch
from torch import Tensor

_LEAVES = 120
_SMALLEST, _LARGEST = 1.5 / 32, 16 / 32  # radii, in image sides
_MARGIN = 1 / 4  # leaves whose centre lies outside of the image, in image sides
_LEAST_ASPECT = 0.3
_TINT = 0.25  # std of a channel about the leaf's grey
_SLOPE = 0.64  # std of its shading, per image side
_MOST, _PIXELS = 500, 500 * 32**2  # that are drawn at a time


def draw_leaves(n: int, channels: int, size: int, rng: torch.Generator) -> Tensor:
    """Draw n images.

    Args:
        n: how many.
        channels: 1, or 3 for colour.
        size: height and width in pixels.
        rng: source of all choices.

    Returns:
        uint8 images [n, channels, size, size].
    """
    chunk = max(1, min(_MOST, _PIXELS // size**2))
    parts = [_draw_chunk(min(chunk, n - i), channels, size, rng) for i in range(0, n, chunk)]
    return torch.cat(parts)


def _draw_chunk(n: int, channels: int, size: int, rng: torch.Generator) -> Tensor:
    axis = (torch.arange(size) + 0.5) / size
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    image = _shade(n, channels, x - 0.5, y - 0.5, rng)
    for _ in range(_LEAVES):
        along, across, distance = _leaf(n, x, y, rng)
        radius = _radii(n, rng)[:, None, None]
        # An edge is one pixel wide.
        cover = ((radius - distance) * size + 0.5).clamp(0, 1)[:, None]
        image = image * (1 - cover) + cover * _shade(n, channels, along, across, rng)
    return (image * 255).round().to(torch.uint8)


def _leaf(n: int, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Of every pixel, its place along and across a leaf, and its distance from the centre."""
    centre = torch.rand(n, 2, 1, 1, generator=rng) * (1 + 2 * _MARGIN) - _MARGIN
    angle = torch.rand(n, 1, 1, generator=rng) * math.pi
    aspect = _LEAST_ASPECT + (1 - _LEAST_ASPECT) * torch.rand(n, 1, 1, generator=rng)
    right, down = x - centre[:, 0], y - centre[:, 1]
    along = right * angle.cos() + down * angle.sin()
    across = down * angle.cos() - right * angle.sin()
    squeezed = across / aspect
    square = torch.rand(n, 1, 1, generator=rng) < 0.5
    corner = torch.maximum(along.abs(), squeezed.abs())
    return along, across, torch.where(square, corner, torch.hypot(along, squeezed))


def _radii(n: int, rng: torch.Generator) -> Tensor:
    """With a density that falls with the cube of the radius, [n]."""
    few, many = _LARGEST**-2, _SMALLEST**-2
    return (many + (few - many) * torch.rand(n, generator=rng)).rsqrt()


def _shade(n: int, channels: int, along: Tensor, across: Tensor, rng: torch.Generator) -> Tensor:
    """A colour about some grey, brighter towards one side, [n, channels, s, s]."""
    grey = torch.rand(n, 1, generator=rng)
    colour = (grey + _TINT * torch.randn(n, channels, generator=rng)).clamp(0, 1)
    slopes = _SLOPE * torch.randn(2, n, 1, 1, generator=rng)
    shading = slopes[0] * along + slopes[1] * across
    return (colour[:, :, None, None] + shading[:, None]).clamp(0, 1)
