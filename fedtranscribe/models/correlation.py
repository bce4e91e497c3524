"""Correlating single maps with a bank of kernels; its gradient costs what it costs itself.

torch's own gradient of a convolution with one input channel is ten times slower than it need be on
a CPU: its kernels work on many input channels at once, and here is one. Split by phases of the
stride, it becomes a convolution with many input channels, of equal arithmetic.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


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
