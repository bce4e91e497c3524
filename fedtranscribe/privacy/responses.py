"""The privacy loss of labels by randomised response, exact on its own lattice {−ε0, 0, ε0}."""

import math
from functools import lru_cache

import numpy as np

from fedtranscribe.privacy.closed_forms import root
from fedtranscribe.privacy.label_events import RandomizedResponse

GRID = 1e-4
"""Width of the grid of losses wherever the fourth digit of ε matters to anybody."""

_FFT_ERROR = 16 * 2.0**-52
"""Probability that a composition by FFT may misplace per answer, ten times what is seen against
exact binomials; counted as certain disclosure."""

MOST_RESPONSES = 2**21
"""Labels by randomised response whose loss is found exactly: an FFT of about four times as many."""


class ResponseLoss:
    """The privacy loss of many randomised responses, exact on multiples of ε0.

    Args:
        event: at least two classes and ε0 > 0.

    Guarantee
        One answer's loss is +ε0 with the truth's probability, −ε0 with that of the one class that
        the other data set calls the truth, and 0 else, which is the whole distribution; adaptive
        composition adds independent losses. δ(ε) = E[(1 − e^{ε − loss})+] is then a plain sum.
    """

    def __init__(self, event: RandomizedResponse) -> None:
        q = math.exp(event.log_other)
        p = math.exp(event.log_other + event.epsilon0)
        n = event.count
        size = 2 ** math.ceil(math.log2(2 * n + 1))
        one = np.zeros(size)
        one[0], one[1], one[2] = q, (event.classes - 2) * q, p
        mass = np.fft.irfft(np.fft.rfft(one) ** n, size)[: 2 * n + 1]
        self.mass = np.maximum(mass, 0.0)
        self.losses = event.epsilon0 * np.arange(-n, n + 1)
        self.certain = max(0.0, 1 - float(self.mass.sum())) + n * _FFT_ERROR

    def delta(self, epsilon: float) -> float:
        """δ at ε."""
        if epsilon >= self.losses[-1]:
            return 0.0
        above = self.losses > epsilon
        gains = -np.expm1(epsilon - self.losses[above])
        return min(1.0, float(self.mass[above] @ gains) + self.certain)

    def epsilon(self, delta: float) -> float:
        """The smallest ε >= 0 whose δ is at most delta; never above the sum of all ε0."""
        if self.delta(0.0) <= delta:
            return 0.0
        pure = float(self.losses[-1])
        if self.certain >= delta:
            return pure
        return root(lambda epsilon: self.delta(epsilon) - delta, 0.0, pure)


@lru_cache(maxsize=64)
def response_loss(event: RandomizedResponse) -> ResponseLoss:
    """The loss of all labels of an event."""
    return ResponseLoss(event)
