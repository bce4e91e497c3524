"""A distinguishing game: an adversary who knows both worlds watches a mechanism many times.

It is the strongest attack there is on a mechanism by itself, and finds noise that is too small
within seconds, where attacks on a trained student see nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.evaluation.audit.bounds import Numbers, distinguish
from fedtranscribe.evaluation.audit.findings import Claim, Finding
from fedtranscribe.mechanisms import OsNoise

TRIALS = 1_000_000
"""As many trials per world certify about 0.9 of an ε of 1, and 6 of an ε of 10."""

CONFIDENCE = 0.999

_CHUNK = 200_000


class Privatiser(Protocol):
    """What every mechanism of `fedtranscribe.mechanisms` can do."""

    def privatise(self, rows: Tensor, source: Any, /) -> Tensor:
        """Rows [n, k] -> private rows [n, k], each with randomness of its own."""
        ...


def play(
    mechanism: Privatiser,
    first: Tensor,
    second: Tensor,
    claim: Claim,
    *,
    source: Any = None,
    trials: int = TRIALS,
    confidence: float = CONFIDENCE,
    words: str = "",
    figures: Mapping[str, Any] | None = None,
    counts: Tensor | None = None,
) -> Finding:
    """Let an adversary tell two neighbouring inputs of a mechanism apart.

    It projects what it sees onto the difference of the inputs, every number weighed by how little
    noise it has, which for Gaussian noise is the best that can be done.

    Args:
        mechanism: as it would be used; does not know what is claimed of it.
        first: input in one world, [n, k]: n rows that are answered together.
        second: in the other world, [n, k].
        claim: ε and δ that n rows are said to cost.
        source: noise or bits, as the mechanism takes them; OS entropy unless a test seeds it.
        trials: in each world; half of them choose the threshold, the other half judge it.
        confidence: of the bound.
        words: what the inputs are, for the reader.
        figures: to go with the bound.
        counts: how often each number counts in a distance (`Bound.counts`); once if not given.

    Returns:
        The bound; it rests on no record.

    Raises:
        ConfigError: inputs of different shapes, or that do not differ.
    """
    if first.shape != second.shape or first.ndim != 2 or bool((first == second).all()):
        raise ConfigError(
            f"Expected two different inputs [n, k] of one shape, got {tuple(first.shape)} and "
            f"{tuple(second.shape)}."
        )
    source = OsNoise() if source is None else source
    direction = first.double() - second.double()
    direction = (direction if counts is None else direction * counts).flatten()
    seen = [
        _scores(mechanism, rows, direction, source.for_query(name), trials)
        for name, rows in (("first world", first), ("second world", second))
    ]
    lower = distinguish(seen[0], seen[1], claim.delta, confidence)
    said = (
        f"An adversary who knows both of two data sets saw {trials:,} answers about each{words}. "
        f"It proves at least ε = {lower:.4g}."
    )
    told = {"trials": trials, **(figures or {})}
    return Finding("game", claim, lower, confidence, said, told, private=False)


def _scores(
    mechanism: Privatiser, rows: Tensor, direction: Tensor, source: Any, trials: int
) -> Numbers:
    n, k = rows.shape
    scores = [
        mechanism.privatise(rows.expand(size, n, k).reshape(-1, k), source)
        .double()
        .reshape(size, -1)
        @ direction
        for size in _sizes(trials, max(1, _CHUNK // n))
    ]
    return torch.cat(scores).numpy().astype(np.float64)


def _sizes(total: int, chunk: int) -> Iterator[int]:
    for done in range(0, total, chunk):
        yield min(chunk, total - done)
