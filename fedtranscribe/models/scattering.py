"""Fixed wavelet features of an image, which no record has shaped."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedtranscribe.models.classifier import parts, shrunk


def correlate(maps: Tensor, kernels: Tensor, stride: int) -> Tensor:
    """Every channel with every kernel; edges are reflected.

    Args:
        maps: float [n, ch, s, s].
        kernels: [q, 1, p, p], p odd; constants, for they get no gradient.
        stride: between two places.

    Returns:
        [n, ch · q, ⌈s / stride⌉, ⌈s / stride⌉].
    """
    n, channels, size, _ = maps.shape
    single = reflected(maps.reshape(n * channels, 1, size, size), kernels.shape[-1] // 2)
    found = _Correlation.apply(single, kernels, stride)
    return found.reshape(n, channels * len(kernels), *found.shape[-2:])


def reflected(maps: Tensor, left: int) -> Tensor:
    """`maps` [n, 1, s, s] with `left` more entries on every side, mirrored at the edges."""
    # As often as it takes where the image is smaller than half a kernel.
    while left > 0:
        step = min(left, maps.shape[-1] - 1)
        maps = F.pad(maps, (step,) * 4, mode="reflect")
        left -= step
    return maps


class _Correlation(torch.autograd.Function):
    """conv2d of [m, 1, s, s] with [q, 1, p, p], without padding."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, kernels: Tensor, stride: int) -> Tensor:
        ctx.save_for_backward(kernels)
        ctx.stride, ctx.size = stride, maps.shape[-1]
        return F.conv2d(maps, kernels, stride=stride)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, None, None]:
        (kernels,) = ctx.saved_tensors
        phases = _phases(kernels, ctx.stride)
        found = F.conv2d(gradients[0], phases, padding=phases.shape[-1] - 1)
        whole = F.pixel_shuffle(found, ctx.stride)[..., : ctx.size, : ctx.size]
        # What no kernel reached has no gradient.
        missing = ctx.size - whole.shape[-1]
        return F.pad(whole, (0, missing, 0, missing)), None, None


def _phases(kernels: Tensor, stride: int) -> Tensor:
    """Kernels [stride², q, r, r] that turn gradients into those of each phase of the input.

    Entry a · stride + b of the input's gradient is Σ_u gradient[a − u] · kernel[u · stride + b],
    along either axis: a convolution for every b.
    """
    count, _, side, _ = kernels.shape
    steps = -(-side // stride)
    whole = F.pad(kernels[:, 0], (0, steps * stride - side) * 2)
    parts = whole.unflatten(2, (steps, stride)).unflatten(1, (steps, stride))
    phases = parts.permute(2, 4, 0, 1, 3).reshape(stride**2, count, steps, steps)
    return phases.flip(-1, -2)


_ORIENTATIONS = 8
_SLANT = 0.5  # width of a wavelet along its wave over that across
_FINE, _COARSE = 0.8, 1.6  # std of the envelopes, in pixels; half as fine is an octave lower
_AVERAGE = 1.6
_STRIDE = 4
_POOLED_SIDE = 8  # at most so many places a side, however large the images
_TINY = 1e-12
# Images whose maps stay in a processor's cache; a sixth faster than 200 at a time.
_TOGETHER = 40


_MAPS = 81  # of each channel
_GROUP = 3  # maps that are normalised together


class NormalisedScattering(nn.Module):
    """Images [n, ch, s, s] in [0, 1] -> `Scattering`'s coefficients [n, d], whatever the contrast.

    In each image, every three maps that follow each other are brought to mean zero and variance
    one, or less where there is next to none, as Tramèr and Boneh (2021) do for linear classifiers.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scattering = Scattering()
        self.maps = _MAPS * channels

    def forward(self, images: Tensor) -> Tensor:
        """float [n, ch, s, s] -> float [n, d]."""
        found = self.scattering(images).unflatten(1, (self.maps, -1))
        return F.group_norm(found, self.maps // _GROUP).flatten(1)


class Scattering(nn.Module):
    """Images [n, ch, s, s] in [0, 1] -> scattering coefficients [n, d] of two scales.

    Large images are brought to 64 pixels a side.

    Per channel 81 maps: the average, 16 of first order, 64 of second.
    """

    fine: Tensor
    coarse: Tensor
    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        angles = [math.pi * i / _ORIENTATIONS for i in range(_ORIENTATIONS)]
        fine = [_wavelet(_FINE, angle, 3 * math.pi / 4) for angle in angles]
        coarse = [_wavelet(_COARSE, angle, 3 * math.pi / 8) for angle in angles]
        # Constants of the code, so no part of the weights.
        self.register_buffer("fine", torch.cat(fine)[:, None], persistent=False)
        self.register_buffer("coarse", torch.cat(coarse)[:, None], persistent=False)
        self.register_buffer("average", _bell(_AVERAGE), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """float [n, ch, s, s] -> float [n, d]."""
        return torch.cat([self._coefficients(part) for part in parts(images, _TOGETHER)])

    def _coefficients(self, images: Tensor) -> Tensor:
        images = shrunk(images)
        fine = _modulus(images, self.fine, 1)
        coarse = _modulus(images, self.coarse, 2)
        second = _modulus(fine, self.coarse, 2)
        maps = [
            _averaged(images, self.average, _STRIDE),
            _averaged(fine, self.average, _STRIDE),
            _averaged(coarse, self.average, _STRIDE // 2),
            _averaged(second, self.average, _STRIDE // 2),
        ]
        joined = torch.cat(maps, dim=1)
        if joined.shape[-1] > _POOLED_SIDE:
            joined = F.adaptive_avg_pool2d(joined, _POOLED_SIDE)
        return joined.flatten(1)


def _wavelet(std: float, angle: float, frequency: float) -> Tensor:
    """A Morlet wavelet, real and imaginary part [2, p, p]; its mean is zero."""
    half = math.ceil(5 * std)
    axis = torch.arange(-half, half + 1, dtype=torch.float64)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    along = x * math.cos(angle) + y * math.sin(angle)
    across = y * math.cos(angle) - x * math.sin(angle)
    envelope = torch.exp(-(along.square() + (_SLANT * across).square()) / (2 * std**2))
    envelope = envelope / envelope.sum()
    wave = envelope * torch.cos(frequency * along)
    real = wave - envelope * wave.sum()
    return torch.stack([real, envelope * torch.sin(frequency * along)]).float()


def _bell(std: float) -> Tensor:
    """A Gaussian line [p] of sum one."""
    half = math.ceil(4 * std)
    line = torch.exp(-torch.arange(-half, half + 1, dtype=torch.float64).square() / (2 * std**2))
    return (line / line.sum()).float()


def _averaged(maps: Tensor, line: Tensor, stride: int) -> Tensor:
    """Every channel under a Gaussian window: [n, q, ⌈s / stride⌉, ⌈s / stride⌉].

    The window is a product of two lines, one for each axis.
    """
    return _weighted(_weighted(maps, line, stride).transpose(2, 3), line, stride).transpose(2, 3)


def _weighted(maps: Tensor, line: Tensor, stride: int) -> Tensor:
    """Rows of maps [n, q, s, …] under a line of weights, edges mirrored.

    Term by term: a matrix product may round by where in memory an image lies, and so by its place
    in the batch.
    """
    padded = _mirrored(maps, len(line) // 2)
    last = padded.shape[2] - len(line)
    total = padded[:, :, : last + 1 : stride] * line[0]
    for i in range(1, len(line)):
        total = total + padded[:, :, i : last + i + 1 : stride] * line[i]
    return total


def _mirrored(maps: Tensor, more: int) -> Tensor:
    """Maps [n, q, s, …] with so many more rows on either side, mirrored at the edges."""
    while more > 0:
        step = min(more, maps.shape[2] - 1)
        maps = F.pad(maps, (0, 0, step, step), mode="reflect")
        more -= step
    return maps


def _modulus(images: Tensor, kernels: Tensor, stride: int) -> Tensor:
    """|x ∗ ψ| for pairs of real and imaginary kernels: [n, ch · q / 2, …]."""
    real, imaginary = correlate(images, kernels, stride).unflatten(1, (-1, 2)).unbind(2)
    # The tiny number keeps the gradient finite where nothing is seen.
    return torch.addcmul(real.square() + _TINY, imaginary, imaginary).sqrt()
