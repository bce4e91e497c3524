"""Who masks with whom: everybody in a small cohort, a random graph in a large one.

After Bell, Bonawitz, Gascón, Lepoint and Raykova: "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead", CCS 2020, section 5. Each holder draws its own neighbours with the
operating system's randomness, so neither the server nor other holders have a say in it. Which graph
a cohort has follows from its size and tolerances alone: the server cannot ask for a weaker one.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import SystemRandom

from fedtranscribe.secagg.connectivity import LN2, log_failure, log_stuck

SECURITY_BITS = 64
"""A sparse graph opens a smaller sum than it must with probability 2^-64 at most, once per run."""
STUCK_BITS = 20
"""With probability 2^-20 at most, tolerated drop-outs at random make a run's rounds impossible."""

_LEAST_PART = 1e-3
"""Of a guarantee's δ, which all graphs together may add to it without being counted."""

_MOST_PAIRS = 0.5
"""Of a complete graph's: a sparse graph with more would save little for its small risk."""


@dataclass(frozen=True)
class Graph:
    """Numbers of a cohort's graph of masks; public, and the same at every holder.

    Attributes:
        drawn: k, how many others each holder draws; with itself they are its circle.
        threshold: t, how many of a circle open what its holder shared, and must have signed.
        spare: x, how many more survivors a sum needs than its noise counts on.
        failure_bits: the graph fails its guarantee with probability 2^-failure_bits at most.
    """

    drawn: int
    threshold: int
    spare: int = 0
    failure_bits: float = math.inf

    @property
    def complete(self) -> bool:
        """Whether everybody masks with everybody; then nothing is left to chance."""
        return math.isinf(self.failure_bits)

    def negligible(self, delta: float, graphs: int) -> bool:
        """Whether what so many graphs leave to chance adds less than a thousandth to a δ."""
        return self.complete or graphs * 2.0**-SECURITY_BITS <= delta * _LEAST_PART

    @property
    def words(self) -> str:
        """What a run says about its masks before it begins."""
        if self.complete:
            return "every two holders share a mask"
        return (
            f"each holder draws {self.drawn} others to share masks with, and the probability that "
            f"this graph opens a smaller sum is at most 2^-{math.floor(self.failure_bits)} a run"
        )

    def draw(self, name: str, names: Sequence[str]) -> tuple[str, ...]:
        """A holder's own choice of others, fresh from the operating system, in order."""
        others = [other for other in names if other != name]
        return tuple(sorted(SystemRandom().sample(others, self.drawn)))


def circle(name: str, drawn: Iterable[str]) -> tuple[str, ...]:
    """A holder and those it drew, in the order of the points of their shares."""
    return tuple(sorted({name, *drawn}))


def neighbours(drawn: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Whom each holder masks with: those it drew and those who drew it, if they are there."""
    found: dict[str, set[str]] = {name: set() for name in drawn}
    for name, others in drawn.items():
        for other in others:
            if other in found:
                found[name].add(other)
                found[other].add(name)
    return found


@lru_cache(maxsize=64)
def graph_of(holders: int, dropouts: int, colluders: int) -> Graph:
    """The graph of a cohort: sparse where that halves the masks, complete otherwise.

    Args:
        holders: m > 2d + c.
        dropouts: d; a tenth of them, rounded down, is kept as the spare x.
        colluders: c.
    """
    most = math.floor((1 - math.sqrt(1 - _MOST_PAIRS)) * (holders - 1))
    found = _sparse(holders, dropouts, colluders, most)
    if found is None:
        return Graph(holders - 1, holders - dropouts)
    least = 1
    while least < found.drawn:
        middle = (least + found.drawn) // 2
        fewer = _sparse(holders, dropouts, colluders, middle)
        if fewer is None:
            least = middle + 1
        else:
            found = fewer
    return found


def _sparse(holders: int, dropouts: int, colluders: int, drawn: int) -> Graph | None:
    """The graph with so many neighbours; None if it is not safe enough."""
    lost = _lost(holders, dropouts, drawn)
    threshold, spare = drawn + 1 - lost, dropouts // 10
    if drawn < 1 or threshold < 2 or spare + 2 >= holders - colluders:
        return None
    bits = -log_failure(holders, colluders, drawn, threshold, spare) / LN2
    return Graph(drawn, threshold, spare, bits) if bits >= SECURITY_BITS else None


def _lost(holders: int, dropouts: int, drawn: int) -> int:
    """How many of a circle may be missing, so that some circle loses more once in 2^20 runs."""
    least, most = 0, drawn
    while least < most:
        middle = (least + most) // 2
        if log_stuck(holders, dropouts, drawn, middle) <= -STUCK_BITS * LN2:
            most = middle
        else:
            least = middle + 1
    return least
