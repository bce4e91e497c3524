"""Who masks with whom, and how likely a random graph of masks hides less than it must."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import SystemRandom

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]

LN2 = math.log(2)

_TERMS = 32
"""Of a tail, summed one by one."""


def log_failure(holders: int, colluders: int, drawn: int, threshold: int, spare: int) -> float:
    """The natural logarithm of a bound on the probability that a graph is not good.

    Args:
        holders: m.
        colluders: c.
        drawn: k, how many others each holder draws.
        threshold: t, of the k + 1 in a circle.
        spare: x.
    """
    if colluders >= 2 * threshold - drawn - 1:
        return 0.0
    terms = (
        _log_split(holders, colluders, drawn, threshold),
        _log_left_out(holders, colluders, drawn, threshold, spare),
    )
    chosen = float(_log_choose(holders, colluders))
    return min(0.0, chosen + float(np.logaddexp(*terms)))


def log_stuck(holders: int, dropouts: int, drawn: int, lost: int) -> float:
    """As `log_failure`: some circle has more than `lost` of d drop-outs that know no circle."""
    missing = np.arange(lost + 1, drawn + 1)
    if not len(missing):
        return -math.inf
    found = _log_choose(dropouts, missing) + _log_choose(holders - 1 - dropouts, drawn - missing)
    return math.log(holders) + _log_sum(found - _log_choose(holders - 1, drawn))


def log_at_least(population: int, marked: Counts, drawn: int, least: int) -> Numbers:
    """An upper bound on log P[X >= least], X hypergeometric, for each number of marked ones.

    The first terms, and for all later ones a geometric series: the ratio of neighbours falls.
    """
    if least <= 0 or drawn > population:
        return np.zeros(len(marked))
    hits = np.arange(least, min(least + _TERMS, drawn) + 1)
    found = _log_choose(marked[:, None], hits)
    found = found + _log_choose(population - marked[:, None], drawn - hits)
    last = int(hits[-1])
    above = (marked - last) * (drawn - last)
    below = (last + 1) * (population - marked - drawn + last + 1)
    ratio = np.where(above <= 0, 0.0, np.where(below > 0, above / np.maximum(below, 1), np.inf))
    # The last term stands for itself and all behind it.
    with np.errstate(divide="ignore"):
        found[:, -1] -= np.where(ratio < 1, np.log1p(-np.minimum(ratio, 1.0)), 0.0)
    bound = np.logaddexp.reduce(found, axis=1) - _log_choose(population, drawn)
    return np.where(ratio < 1, np.minimum(bound, 0.0), 0.0)


def log_at_most(population: int, marked: Counts, drawn: int, most: int) -> Numbers:
    """As `log_at_least`, of log P[X <= most]."""
    return log_at_least(population, population - marked, drawn, drawn - most)


def _log_split(m: int, c: int, k: int, t: int) -> float:
    """Condition (2), for one K."""
    h, inside = m - c, 2 * t - k - 1
    sizes = np.arange(1, h // 2 + 1)
    # A member is in its own circle.
    closed = log_at_least(m - 1, sizes - 1 + c, k, inside - 1)
    below = np.logaddexp.accumulate(_log_choose(h, sizes) + sizes * closed)
    pairs = _log_factorial(h) - 2 * _log_factorial(sizes) - _log_factorial(h - 2 * sizes)
    both = pairs + 2 * sizes * log_at_most(m - 1, sizes, k, k + 1 - t)
    smaller = np.concatenate([[-np.inf], below[:-1]])
    return float(min(np.logaddexp(smaller, both).min(), below[-1]))


def _log_left_out(m: int, c: int, k: int, t: int, x: int) -> float:
    """Condition (3), for one K."""
    h = m - c
    size = np.arange(1, h - x)
    if not len(size):
        return -math.inf
    first = np.arange(x + 2)
    second = x + 1 - first
    # Of a population without X1; the smaller it is the likelier, so that |X1| = x + 1 bounds all.
    closed = log_at_least(m - 2 - x, size - 1 + c, k, t - 1)
    avoiding = _log_choose(m - 1 - first, k) - _log_choose(m - 1, k)
    others = log_at_most(m - 1, size, k, k + 1 - t)
    sets = _log_factorial(h) - _log_factorial(first) - _log_factorial(second)
    rest = -_log_factorial(size) - _log_factorial(h - size - x - 1)
    with np.errstate(invalid="ignore"):
        far = np.where(second > 0, second * others[:, None], 0.0)
        near = np.where(np.isneginf(avoiding), -np.inf, size[:, None] * avoiding)
    return _log_sum((sets + rest[:, None] + near + far + (size * closed)[:, None]).ravel())


def _log_sum(terms: Numbers) -> float:
    return float(np.logaddexp.reduce(terms))


def _log_choose(n: int | Counts, k: int | Counts) -> Numbers:
    """−inf where there is no such choice."""
    n, k = np.asarray(n), np.asarray(k)
    possible = (k >= 0) & (k <= n)
    n, k = np.where(possible, n, 0), np.where(possible, k, 0)
    found = _log_factorial(n) - _log_factorial(k) - _log_factorial(n - k)
    return np.where(possible, found, -np.inf)


def _log_factorial(n: int | Counts) -> Numbers:
    n = np.asarray(n)
    return _log_factorials(1 << int(n.max(initial=1)).bit_length())[n]


@lru_cache(maxsize=32)
def _log_factorials(size: int) -> Numbers:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, size + 1)))])


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
