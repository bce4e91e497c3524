"""How likely a random graph of masks is to hide less than it must: a bound that is computed.

Each of m holders draws k others, uniformly and without anybody's help. With itself they are its
circle of n = k + 1. t is the threshold of shares and signatures in a circle. The rest of the
protocol is deterministic (see `secagg.protocol`): it keeps its guarantee whatever a server does and
whichever c holders K side with it, as long as the graph is GOOD. Circles below are those of the
other holders H, h = m − c of them; all sets are subsets of H.

    (1)  c < 2t − n.
    (2)  There are no two disjoint sets B, B', neither empty, such that every member of either has
         at most n − t of its circle in the other and 2t − n or more of it in its own set and K.
    (3)  There are no disjoint sets R, X1, X2, |X1| + |X2| = x + 1, such that every member of R has
         t or more of its circle in R and K and nobody of X1 in it, and every member of X2 has at
         most n − t of its circle in R.

(1) is arithmetic. The others are union bounds over all choices of K and of the sets, so they hold
against an adversary that picks drop-outs, lies and colluders after it has seen the whole graph.
Circles are independent, and the part of a circle inside a set is hypergeometric. In (2) the smaller
set has b members: for b < s its own condition is used alone; both sets have s members otherwise,
and then s of each are looked at, with the condition on the other set alone. Any s gives a bound.
"""

import math
from functools import lru_cache

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
