"""Where randomness that protects people comes from: the operating system, never a seed."""

import hashlib
import hmac
import math
import os
from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.release_plan import KEY_BYTES


class BitSource(Protocol):
    """Draws uniform 64-bit words.

    Attributes:
        private: whether a run that used it may call itself private.
    """

    private: bool

    def for_query(self, query_id: str) -> "BitSource":
        """The source to use for one query."""
        ...

    def words(self, count: int) -> NDArray[np.uint64]:
        """So many words, every one uniform."""
        ...


class OsBits:
    """Words from the operating system's CSPRNG."""

    private = True

    def for_query(self, query_id: str) -> Self:
        """The same source: OS entropy does not repeat."""
        return self

    def words(self, count: int) -> NDArray[np.uint64]:
        """So many words, every one uniform."""
        return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


class SeededBits:
    """Repeatable words for tests; whatever they touch is NOT private.

    Args:
        seed: any number.
        label: tells holders apart, so that two of them never draw the same noise.
    """

    private = False

    def __init__(self, seed: int, label: str = "") -> None:
        self._seed = seed
        self._label = label
        self._rng = seeded_generator(f"bits/{seed}/{label}")

    def for_query(self, query_id: str) -> "SeededBits":
        """Words that depend on seed, label and query alone, in whatever order queries come."""
        return SeededBits(self._seed, f"{self._label}/{query_id}")

    def words(self, count: int) -> NDArray[np.uint64]:
        """So many words, every one uniform."""
        return np.frombuffer(self._rng.bytes(8 * count), dtype=np.uint64)


def seeded_generator(words: str) -> np.random.Generator:
    """Repeatable randomness for tests, other for other words; NOT private."""
    digest = hashlib.blake2b(words.encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


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
        Each normal number is ±Φ⁻¹((k + ½) / 2¹⁰⁶) for a uniform 105-bit k and a fair sign:
        exactly symmetric, and cut off at 11.9 standard deviations, a mass of 2⁻¹⁰⁶ each side.
        53 bits would not do: from 6.5 standard deviations on, most float32 values would have no
        number behind them, so that the answer alone could rule a neighbour out; 500,000
        coordinates reach that far with probability 4e-5, more than δ = 1e-5. (A 24-bit Box-Muller
        stops at 5.77 standard deviations.)
        Low bits of a float64 sum still depend on the private row: a mechanism rounds to a public
        grid before it releases anything, see `NoisyMeanRows`.
        Uniform numbers have 53 bits: a label drawn from k weights gets its probability q within
        k 2⁻⁵², so n labels cost at most 2 n k 2⁻⁵² / q more in ε: 5e-8 for n = 10⁵, k = 10 and
        q = 0.01. Labels with q near 2⁻⁵² add at most (1 + e^ε) n k 2⁻⁵² to δ instead.
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
        return std * _to_normal(os.urandom(16 * math.prod(shape)), shape)


class KeyedNoise:
    """Noise that follows from a secret key: the same question gets the same noise again.

    Args:
        key: `KEY_BYTES` from the operating system, or more; as secret as the noise.

    Raises:
        ConfigError: the key is shorter.

    Guarantee:
        HMAC-SHA256 of a query's name gives the query a key of its own, and SHAKE-256 of that key
        and the number of the draw gives the bytes that `OsNoise` takes from the operating system.
        For whoever does not have the key, the noise of distinct names is as good as independent
        noise of `OsNoise` (both are pseudorandom functions); the noise of one name is a single
        draw, however often it is computed. So the name has to state everything that the released
        value depends on: two values under the same noise would give away their difference.
    """

    private = True

    def __init__(self, key: bytes) -> None:
        if len(key) < KEY_BYTES:
            raise ConfigError(f"Expected a key of {KEY_BYTES} bytes or more, got {len(key)}.")
        self._key = key
        self._draws = 0

    def for_query(self, query_id: str) -> "KeyedNoise":
        """Noise that depends on key and name alone, in whatever order queries come."""
        return KeyedNoise(hmac.digest(self._key, query_id.encode(), "sha256"))

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Uniform numbers inside (0, 1), float64."""
        return _to_unit(self._bytes(8 * math.prod(shape)), shape)

    def gaussian(self, shape: Sequence[int], std: float) -> Tensor:
        """Normal numbers of mean 0, float64."""
        return std * _to_normal(self._bytes(16 * math.prod(shape)), shape)

    def _bytes(self, count: int) -> bytes:
        drawn = hashlib.shake_256(self._key + self._draws.to_bytes(8, "big")).digest(count)
        self._draws += 1
        return drawn


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
        self._rng = seeded_generator(f"{seed}/{label}")

    def for_query(self, query_id: str) -> "SeededNoise":
        """Noise that depends on seed, label and query alone, in whatever order queries come."""
        return SeededNoise(self._seed, f"{self._label}/{query_id}")

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Uniform numbers inside (0, 1), float64."""
        return _to_unit(self._rng.bytes(8 * math.prod(shape)), shape)

    def gaussian(self, shape: Sequence[int], std: float) -> Tensor:
        """Normal numbers of mean 0, float64."""
        return std * _to_normal(self._rng.bytes(16 * math.prod(shape)), shape)


def _to_unit(entropy: bytes, shape: Sequence[int]) -> Tensor:
    integers = np.frombuffer(entropy, dtype=np.uint64) >> np.uint64(64 - _MANTISSA)
    # Below a half the sum is exact; above, ½ may round away, so the top end is kept below 1.
    unit = (integers.astype(np.float64) + 0.5) * 2.0**-_MANTISSA
    return torch.from_numpy(np.minimum(unit, 1 - 2.0**-_MANTISSA)).reshape(tuple(shape))


def _to_normal(entropy: bytes, shape: Sequence[int]) -> Tensor:
    first, second = np.frombuffer(entropy, dtype=np.uint64).reshape(2, -1)
    # A tail probability in (0, ½] from 52 + 53 bits: floats are dense near zero, so the far tail
    # is as finely resolved as the middle. The sign takes a bit that the tail does not use.
    coarse = (first >> np.uint64(65 - _MANTISSA)).astype(np.float64)
    fine = ((second >> np.uint64(64 - _MANTISSA)).astype(np.float64) + 0.5) * 2.0**-_MANTISSA
    lower = ndtri((coarse + fine) * 2.0**-_MANTISSA)
    positive = (first & np.uint64(1)).astype(bool)
    return torch.from_numpy(np.where(positive, -lower, lower)).reshape(tuple(shape))
