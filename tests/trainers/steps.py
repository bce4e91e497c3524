"""One private step at a time, with the coin of one record held in hand."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtranscribe.noise.sources import BitSource, SeededBits


class NoNoise:
    """Adds nothing, so that a step's gradient is its clipped sum; NOT private."""

    private = False

    def for_query(self, query_id: str) -> "NoNoise":
        return self

    def uniform(self, shape: Sequence[int]) -> Tensor:
        raise AssertionError

    def gaussian(self, shape: Sequence[int], std: float) -> Tensor:
        return torch.zeros(tuple(shape), dtype=torch.float64)


class HeldCoin:
    """Seeded coins, but for those of the first record in one step, which are as it is told.

    Args:
        query: the step, `<training>/<number>`.
        inside: whether the first record takes part.
        seed: of all other coins.
    """

    private = False

    def __init__(self, query: str, inside: bool, seed: int = 0) -> None:
        self._query, self._inside, self._seeded = query, inside, SeededBits(seed)

    def for_query(self, query_id: str) -> BitSource:
        if query_id == self._query:
            return _First(self._seeded.for_query(query_id), self._inside)
        return self._seeded.for_query(query_id)

    def words(self, count: int) -> NDArray[np.uint64]:
        raise AssertionError


class _First:
    private = False

    def __init__(self, bits: BitSource, inside: bool) -> None:
        self._bits, self._inside = bits, inside

    def for_query(self, query_id: str) -> BitSource:
        raise AssertionError

    def words(self, count: int) -> NDArray[np.uint64]:
        words = self._bits.words(count).copy()
        # A record is in when its word modulo n is below m: 0 always is, and n − 1 never.
        words[0] = 0 if self._inside else count - 1
        return words


def sum_of(network: nn.Module, batch: int) -> Tensor:
    """The sum that the last step divided by its expected batch, as one vector."""
    gradients = [p.grad.flatten() for p in network.parameters() if p.grad is not None]
    return torch.cat(gradients).double() * batch


def moved_by(step: Callable[[bool], Tensor]) -> float:
    """How far the first record moves the sum of a step, everybody else's coins being fixed."""
    return float((step(True) - step(False)).norm())
