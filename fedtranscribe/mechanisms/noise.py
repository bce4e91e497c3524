"""Where randomness that protects people comes from: the operating system, never a seed."""

import hashlib
import math
import os
from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

_MANTISSA = 53


class NoiseSource(Protocol):
    """Draws noise on the CPU in float64.

    Attributes:
        private: whether a run that used it may call itself private.
    """

    private: bool

    def for_query(self, query_id: str) -> "NoiseSource":
        """The source to use for one query."""
        ...

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Uniform numbers inside (0, 1), float64."""
        ...

    def gaussian(self, shape: Sequence[int], std: float) -> Tensor:
        """Normal numbers of mean 0, float64."""
        ...


class OsNoise:
    """Noise from the operating system's CSPRNG.

    Guarantee:
        Each number is Φ⁻¹((k + ½) / 2⁵³) for a uniform 53-bit k: symmetric, and cut off at 8.2
        standard deviations, a mass of 2⁻⁵³ each side. Over 10⁹ numbers that adds less than 3e-7
        of total variation, and far less at the sizes used here (a 24-bit Box-Muller stops at 5.77,
        which is more than δ = 1e-5 allows).
        Floating-point noise is on no uniform grid; the answer is rounded to float32 before it is
        released, which hides the low bits of the float64 sum but is no proof of its own.
    """

    private = True

    def for_query(self, query_id: str) -> Self:
        """The same source: OS entropy does not repeat."""
        return self

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Uniform numbers inside (0, 1), float64."""
        return _to_unit(os.urandom(8 * math.prod(shape)), shape)

    def gaussian(self, shape: Sequence[int], std: float) -> Tensor:
        """Normal numbers of mean 0, float64."""
        return std * _quantiles(self.uniform(shape))


class SeededNoise:
    """Repeatable noise for tests; whatever it touches is NOT private.

    Args:
        seed: any number.
        label: tells holders apart, so that two of them never draw the same noise.
    """

    private = False

    def __init__(self, seed: int, label: str = "") -> None:
        self._seed = seed
        self._label = label
        digest = hashlib.blake2b(f"{seed}/{label}".encode(), digest_size=16).digest()
        self._rng = np.random.default_rng(int.from_bytes(digest, "big"))

    def for_query(self, query_id: str) -> "SeededNoise":
        """Noise that depends on seed, label and query alone, in whatever order queries come."""
        return SeededNoise(self._seed, f"{self._label}/{query_id}")

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Uniform numbers inside (0, 1), float64."""
        return _to_unit(self._rng.bytes(8 * math.prod(shape)), shape)

    def gaussian(self, shape: Sequence[int], std: float) -> Tensor:
        """Normal numbers of mean 0, float64."""
        return std * _quantiles(self.uniform(shape))


def _to_unit(entropy: bytes, shape: Sequence[int]) -> Tensor:
    integers = np.frombuffer(entropy, dtype=np.uint64) >> np.uint64(64 - _MANTISSA)
    # Below a half the sum is exact; above, ½ may round away, so the top end is kept below 1.
    unit = (integers.astype(np.float64) + 0.5) * 2.0**-_MANTISSA
    return torch.from_numpy(np.minimum(unit, 1 - 2.0**-_MANTISSA)).reshape(tuple(shape))


def _quantiles(uniform: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(ndtri(uniform.numpy())))
