"""Where exact samplers and coins get their words from: the operating system, never a seed."""

import hashlib
import os
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray


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
