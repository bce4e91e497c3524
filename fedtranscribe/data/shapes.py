"""Public images drawn by a formula, and random views of images."""

import math

import torch
import torch.nn.functional as F
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
        drawn = torch.rand(n, 1, generator=rng) < odds
        image = torch.maximum(image, drawn * torch.sigmoid((thickness - distance) / _EDGE))
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
    parts = [_draw_leaves(min(chunk, n - i), channels, size, rng) for i in range(0, n, chunk)]
    return torch.cat(parts)


def _draw_leaves(n: int, channels: int, size: int, rng: torch.Generator) -> Tensor:
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


_TURN = 0.25  # radians either way
_SCALE = 0.2
_SHIFT = 0.2  # of half an image
_NOISE = 0.3


def augment(images: Tensor, strength: float, rng: torch.Generator) -> Tensor:
    """One random view of each image.

    Args:
        images: float [n, ch, h, w] in [0, 1].
        strength: 0 gives the images back, 1 is the default range.
        rng: source of the choices, on CPU.

    Returns:
        float [n, ch, h, w] in [0, 1].
    """
    if strength == 0:
        return images

    def uniform(*shape: int) -> Tensor:
        """Uniform in [-strength, strength]."""
        return ((torch.rand(*shape, generator=rng) * 2 - 1) * strength).to(images.device)

    n = len(images)
    turn, scale, shift = uniform(n) * _TURN, 1 + uniform(n) * _SCALE, uniform(n, 2) * _SHIFT
    cos, sin = scale * turn.cos(), scale * turn.sin()
    affine = torch.stack(
        [torch.stack([cos, -sin, shift[:, 0]], 1), torch.stack([sin, cos, shift[:, 1]], 1)], 1
    )
    where = F.affine_grid(affine, list(images.shape), align_corners=False)
    views = F.grid_sample(images, where, padding_mode="border", align_corners=False)
    contrast = 1 - 0.2 * strength + 0.4 * uniform(n, 1, 1, 1)
    views = views * contrast + 0.2 * uniform(n, 1, 1, 1) + 0.08 * strength
    grain = torch.randn(views.shape, generator=rng).to(images.device)
    return (views + _NOISE * uniform(n, 1, 1, 1).abs() * grain).clamp(0, 1)
