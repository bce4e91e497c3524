"""The grid that noisy sums are rounded to before they are released.

Low bits of a float64 sum depend on the private row, whatever the noise; `NoisyMeanRows` proves what
the rounding leaves of that. The grid follows from the public std alone.
"""

import math

from torch import Tensor

_GRID_BITS = 8


def grid_of(std: float) -> float:
    """A power of two, 1/256 of the noise's std or finer."""
    # Wide against float64's spacing, yet it adds less than 1e-6 to the noise's std.
    return math.ldexp(1.0, math.frexp(std)[1] - 1 - _GRID_BITS)


def on_grid(noisy: Tensor, std: float) -> Tensor:
    """A float64 sum of values and noise of that std, rounded to multiples of `grid_of(std)`."""
    grid = grid_of(std)
    return (noisy / grid).round_().mul_(grid)
