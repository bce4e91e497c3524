"""Random numbers for the rows of a batch: of one public stream, or of each record's own.

A training draws time steps, target noise and dropped labels for every row. For public images one
stream, seeded in public, serves them all. For private records it must not: were the numbers handed
out by the place in the batch, one record's coin would shift everybody else's, and an observer who
knows the stream could read from the sum how many records took part.
"""

import hashlib
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

KEY_WORDS = 4
"""64-bit words in a key of `OwnDraws`."""


class Draws(Protocol):
    """Random numbers for n rows; each call gives fresh ones."""

    def integers(self, values: range) -> Tensor:
        """Uniform in `values`, int64 [n]."""
        ...

    def uniform(self) -> Tensor:
        """Uniform in [0, 1), float32 [n]."""
        ...

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normal, float32 [n, *shape]."""
        ...


class SharedDraws:
    """One stream for all rows: for public rows, and for post-processing.

    Args:
        rng: the stream; it needs no secrecy.
        rows: n.
    """

    def __init__(self, rng: torch.Generator, rows: int) -> None:
        self._rng, self._rows = rng, rows

    def integers(self, values: range) -> Tensor:
        """Uniform in `values`, int64 [n]."""
        rng, shape = self._rng, (self._rows,)
        return torch.randint(values.start, values.stop, shape, generator=rng, device=rng.device)

    def uniform(self) -> Tensor:
        """Uniform in [0, 1), float32 [n]."""
        return torch.rand(self._rows, generator=self._rng, device=self._rng.device)

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normal, float32 [n, *shape]."""
        rng = self._rng
        return torch.randn(self._rows, *shape, generator=rng, device=rng.device)


class OwnDraws:
    """A stream of its own for each private record of a step.

    Args:
        key: secret, of one step of one training, and of nothing else: `KEY_WORDS` words of a
            `BitSource`.
        records: int64 [b], distinct.
        copies: K rows for each record, one after the other, so that n = b K.
        device: where the numbers are drawn; the streams of another kind of device differ.

    Guarantee:
        What a record gets is a function of the key and the record alone: of neither its place in
        the batch nor of who else is there, nor of how the batch is cut into parts. With the coins
        of all others fixed, two data sets that differ in one record show the same numbers to all
        others; so the sum of a step differs in that record's term only, which is what the proof of
        the Poisson-sampled Gaussian (`PoissonGaussian`) compares.
        A record's seed is keyed BLAKE2b of it. On a CPU torch uses 32 bits of a seed, so that two
        records may share a stream with probability 2⁻³². That is a matter of chance, not of data.
    """

    def __init__(self, key: bytes, records: Tensor, copies: int, device: torch.device) -> None:
        self._streams = [_stream(key, record, device) for record in records.tolist()]
        self._copies, self._device = copies, device

    def integers(self, values: range) -> Tensor:
        """Uniform in `values`, int64 [b K]."""
        out = self._empty(dtype=torch.int64)
        for rows, stream in zip(out, self._streams, strict=True):
            rows.random_(values.start, values.stop, generator=stream)
        return out.flatten()

    def uniform(self) -> Tensor:
        """Uniform in [0, 1), float32 [b K]."""
        out = self._empty(dtype=torch.float32)
        for rows, stream in zip(out, self._streams, strict=True):
            rows.uniform_(generator=stream)
        return out.flatten()

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normal, float32 [b K, *shape]."""
        out = self._empty(*shape, dtype=torch.float32)
        for rows, stream in zip(out, self._streams, strict=True):
            rows.normal_(generator=stream)
        return out.flatten(0, 1)

    def _empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        rows = (len(self._streams), self._copies)
        return torch.empty(*rows, *shape, dtype=dtype, device=self._device)


def _stream(key: bytes, record: int, device: torch.device) -> torch.Generator:
    words = record.to_bytes(8, "big")
    seed = hashlib.blake2b(words, key=key, digest_size=8).digest()
    # torch takes signed seeds.
    return torch.Generator(device).manual_seed(int.from_bytes(seed, "big") >> 1)
