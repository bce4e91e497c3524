"""`shapes`: public images drawn by a formula, so that nobody's data stand behind them.

Light strokes and light, textured polygons on a dark ground. They serve as public images to start
the generator from: a random generator shows teachers nothing that they know, and at ε = 10 there
are too few rows to find out by trial. No class labels belong to them.
"""

import math

import torch
from torch import Tensor

_STROKE_POINTS = 20
_EDGE = 0.03  # softness of every edge, in units of half an image
_STROKE_ODDS = (1.0, 0.6, 0.25)
_POLYGON_ODDS = (1.0, 0.6, 0.5, 0.3)
_MIRRORED = 0.6
_HOLES = 0.2
_CHUNK = 500


def draw_shapes(n: int, channels: int, size: int, rng: torch.Generator) -> Tensor:
    """Draw n images, half strokes and half polygons.

    Args:
        n: how many.
        channels: 1, or 3 with a random tint per image.
        size: height and width in pixels.
        rng: source of all choices.

    Returns:
        uint8 images [n, channels, size, size].
    """
    axis = (torch.arange(size) - (size - 1) / 2) / (size / 2)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    pixels = torch.stack([x, y], -1).view(-1, 2)
    parts = [_draw_chunk(min(_CHUNK, n - i), channels, pixels, rng) for i in range(0, n, _CHUNK)]
    return torch.cat(parts).view(n, channels, size, size)


def _draw_chunk(n: int, channels: int, pixels: Tensor, rng: torch.Generator) -> Tensor:
    strokes = n // 2
    grey = torch.cat([_strokes(strokes, pixels, rng), _polygons(n - strokes, pixels, rng)])
    grey = grey[torch.randperm(n, generator=rng)]
    tint = 1.0 if channels == 1 else 0.3 + 0.7 * torch.rand(n, channels, 1, generator=rng)
    return (grey[:, None] * tint * 255).clamp(0, 255).round().to(torch.uint8)


def _strokes(n: int, pixels: Tensor, rng: torch.Generator) -> Tensor:
    """Up to three cubic Bézier curves per image, [n, pixels] in [0, 1]."""
    image = torch.zeros(n, len(pixels))
    t = torch.linspace(0, 1, _STROKE_POINTS)[:, None]
    basis = torch.cat([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], dim=1)
    for odds in _STROKE_ODDS:
        controls = (torch.rand(n, 4, 2, generator=rng) * 2 - 1) * 0.75
        points = torch.einsum("tk,nkd->ntd", basis, controls)
        distance = torch.cdist(pixels.expand(n, -1, -1), points).amin(-1)
        thickness = 0.06 + 0.12 * torch.rand(n, 1, generator=rng)
        shown = torch.rand(n, 1, generator=rng) < odds
        image = torch.maximum(image, shown * torch.sigmoid((thickness - distance) / _EDGE))
    return image


def _polygons(n: int, pixels: Tensor, rng: torch.Generator) -> Tensor:
    """Up to four convex polygons per image, some mirrored, holed or striped, [n, pixels]."""
    image = torch.zeros(n, len(pixels))
    for layer, odds in enumerate(_POLYGON_ODDS):
        cover = _polygon(n, layer, pixels, rng) * (torch.rand(n, 1, generator=rng) < odds)
        shade = 0.3 + 0.7 * torch.rand(n, 1, generator=rng)
        if layer > 0:
            shade = shade * (torch.rand(n, 1, generator=rng) >= _HOLES)
        image = image * (1 - cover) + cover * shade
    size = math.isqrt(len(pixels))
    square = image.view(n, size, size)
    mirrored = torch.rand(n, 1, 1, generator=rng) < _MIRRORED
    square = torch.where(mirrored, torch.maximum(square, square.flip(-1)), square)
    return square.reshape(n, -1) * _stripes(n, pixels, rng)


def _polygon(n: int, layer: int, pixels: Tensor, rng: torch.Generator) -> Tensor:
    """A convex polygon as an intersection of half-planes; the first is large and central."""
    sides = 4 + 2 * (layer % 2)
    reach, least, spread = (0.15, 0.15, 0.65) if layer == 0 else (0.6, 0.05, 0.4)
    centre = (torch.rand(n, 1, 2, generator=rng) * 2 - 1) * reach
    angle = torch.arange(sides) / sides * 2 * math.pi + torch.rand(n, sides, generator=rng) * 0.8
    normals = torch.stack([angle.cos(), angle.sin()], -1)
    offset = least + spread * torch.rand(n, sides, generator=rng)
    inside = offset[:, None] - torch.einsum("npd,nhd->nph", pixels - centre, normals)
    return torch.sigmoid(inside.amin(-1) / _EDGE)


def _stripes(n: int, pixels: Tensor, rng: torch.Generator) -> Tensor:
    """Sinusoidal shading for half of the images, [n, pixels] in (0, 1]."""
    frequency = (torch.rand(n, 1, 2, generator=rng) * 2 - 1) * 12
    phase = torch.rand(n, 1, generator=rng) * 2 * math.pi
    depth = 0.5 * torch.rand(n, 1, generator=rng) * (torch.rand(n, 1, generator=rng) < 0.5)
    return 1 - depth * (1 + torch.sin((pixels * frequency).sum(-1) + phase))
