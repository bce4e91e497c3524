"""How sure a student may be of itself, from answers that it has anyway: free.

The gradient of the loss at a head W says, too, how the loss changes when all logits grow:

    d/ds Σ ℓ(s · W) at s = 1   =   ⟨W, Σ u (softmax(u W) − e_y)ᵀ⟩   =   ⟨W, answer⟩ − noise

so that every round of gradients is also a measurement of the student's confidence. Where the slope
per record is below zero, logits are too small for the accuracy that the student has. One factor on
all logits (temperature scaling; Guo et al. 2017) changes no label.

Guarantee:
    None of its own: functions of private answers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# The factor is exp(−slope per record), within these bounds. The exponent was chosen among 1, 1.5
# and 2 times the slope, on training records that were set aside: see docs/utility.md.
_LIMIT = 1.0


@dataclass(frozen=True)
class Slope:
    """How the sum of all records' losses changes with the scale of a head.

    Attributes:
        value: as measured.
        noise: std of what is noise in it.
    """

    value: float
    noise: float


def calibrated_scale(slopes: Sequence[Slope], records: float) -> float:
    """The factor for a student's logits.

    A slope that may well be noise counts less, by the share of its square that is signal.

    Args:
        slopes: at heads near the student's, each with noise of its own.
        records: about how many there are; below 1, as a noisy count may be, it counts as 1.

    Returns:
        Between 1/e and e; above 1 where the student is not sure enough.
    """
    count = len(slopes) * max(records, 1.0)
    slope = sum(each.value for each in slopes) / count
    noise = math.hypot(*(each.noise for each in slopes)) / count
    power = slope**2 + noise**2
    if power == 0:
        return 1.0
    exponent = -slope * slope**2 / power
    return math.exp(min(max(exponent, -_LIMIT), _LIMIT))
