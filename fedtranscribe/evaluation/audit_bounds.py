"""From counts of right and wrong guesses to intervals, and to a lower bound on ε.

Every bound here holds with its stated confidence, whatever the attack was; a better attack only
makes it larger. None of them is an upper bound: an attack that finds nothing proves nothing.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedtranscribe.errors import ConfigError
from fedtranscribe.noise.sources import BitSource, OsBits

Numbers = NDArray[np.float64]

_LARGEST_EPSILON = 100.0
_PRECISION = 1e-6
# How many of all records an attack guesses on, tried side by side.
_SHARES = (0.02, 0.1, 0.3, 1.0)


def fair_coins(count: int, source: BitSource | None = None) -> NDArray[np.bool_]:
    """Independent fair coins, [count]: which suspects were used.

    Args:
        count: m.
        source: of one word per coin; OS entropy unless a test seeds it.

    Guarantee
        `one_run_p_value` needs coins that say nothing of one another. Each is the lowest bit of a
        word of its own, so any number of them may be heads. A fixed half would not do: who knows
        the others' coins knows the last one.
    """
    words = (source or OsBits()).words(count)
    return (words & np.uint64(1)).astype(bool)


def shared(confidence: float, findings: int) -> float:
    """The confidence of each finding, so that all of them hold together with the given one.

    Guarantee
        Each of k findings errs with probability (1 − confidence)/k at most, so one of them errs
        with probability 1 − confidence at most, however they depend on each other.
    """
    return 1 - (1 - confidence) / max(1, findings)


def clopper_pearson(hits: int, trials: int, confidence: float) -> tuple[float, float]:
    """Two-sided interval of a probability, exact for independent trials."""
    expect_confidence(confidence)
    if not 0 <= hits <= trials or trials < 1:
        raise ConfigError(f"Expected hits={hits} between 0 and trials={trials} >= 1.")
    tail = (1 - confidence) / 2
    low, high = _lowest(np.array([hits]), trials, tail), _highest(np.array([hits]), trials, tail)
    return float(low[0]), float(high[0])


def ratio_bound(
    hits: NDArray[np.int64], falses: NDArray[np.int64], trials: int, delta: float, confidence: float
) -> Numbers:
    """ε that is certified by how often an event came up in two neighbouring worlds.

    (ε, δ)-DP asks for P(event) ≤ e^ε P'(event) + δ, so ε ≥ log((P − δ) / P'). P is taken at its
    lower and P' at its upper Clopper-Pearson limit, each with half of the error allowed.

    Args:
        hits: of the event in one world, [k]; each entry is a test of its own.
        falses: of the event in the other world, [k].
        trials: in each world.
        delta: δ.
        confidence: of each entry by itself; choose an entry on other trials than these.

    Returns:
        float64 [k], never below 0.
    """
    tail = (1 - confidence) / 2
    gain = np.maximum(_lowest(hits, trials, tail) - delta, 1e-300)
    return np.maximum(np.log(gain / _highest(falses, trials, tail)), 0.0)


def distinguish(first: Numbers, second: Numbers, delta: float, confidence: float) -> float:
    """ε certified by one threshold on a score, chosen on one half of the trials.

    The other half judges it.

    Args:
        first: score in each trial of one world, [n].
        second: in the other world, [n]; independent of the first.
        delta: δ.
        confidence: of the bound.
    """
    expect_confidence(confidence)
    if first.shape != second.shape or len(first) < 4:
        raise ConfigError(
            f"Expected as many trials in both worlds, 4 at least, got {len(first)} and "
            f"{len(second)}."
        )
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ConfigError("Expected finite scores in every trial of a distinguishing game.")
    half = len(first) // 2
    # Both worlds may play the part of the likelier one, and both tails may tell.
    pairs = [(s * a, s * b) for s in (1.0, -1.0) for a, b in ((first, second), (second, first))]
    best, chosen, at = -1.0, pairs[0], 0.0
    for likely, other in pairs:
        thresholds = _thresholds(likely[:half], other[:half])
        found = _at(thresholds, likely[:half], other[:half], delta, confidence)
        place = int(found.argmax())
        if found[place] > best:
            best, chosen, at = float(found[place]), (likely, other), float(thresholds[place])
    likely, other = chosen
    return float(_at(np.array([at]), likely[half:], other[half:], delta, confidence)[0])


def one_run_p_value(records: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """How likely so many right guesses are at most, if the training was (ε, δ)-DP.

    Args:
        records: m, each of which was used or left out by a fair coin of its own.
        guesses: r, on how many of them the attack guessed; it abstained on the others.
        right: v, how many guesses were right.
        epsilon: ε under which the claim is tested.
        delta: δ.

    Guarantee
        Under pure ε-DP each guess is right with probability at most e^ε/(1+e^ε), whatever came of
        the others, so right guesses are dominated by a binomial; δ adds at most 2mδ max_i
        P(v > Bin ≥ v − i)/i. One training suffices, because the coins are independent of each
        other (`fair_coins`). ε is that of the change which a coin makes in the data: a record that
        comes or goes, or one that is replaced. Source: Steinke, Nasr and Jagielski 2023, Theorem
        5.2 and Appendix D.
    """
    if not 0 <= right <= guesses <= records:
        raise ConfigError(
            f"Expected right={right} <= guesses={guesses} <= records={records}, none negative."
        )
    luck = 1 / (1 + np.exp(-epsilon))
    tail = float(stats.binom.sf(right - 1, guesses, luck))
    if right == 0 or delta == 0:
        return min(1.0, tail)
    below = stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, luck).cumsum()
    return min(1.0, tail + 2 * records * delta * float((below / np.arange(1, right + 1)).max()))


def one_run_epsilon(
    records: int, guesses: int, right: int, delta: float, confidence: float
) -> float:
    """The largest ε that so many right guesses refute with the given confidence; 0 if none."""
    expect_confidence(confidence)
    allowed, lower, upper = 1 - confidence, 0.0, _LARGEST_EPSILON
    if one_run_p_value(records, guesses, right, 0.0, delta) > allowed:
        return 0.0
    while upper - lower > _PRECISION:
        middle = (lower + upper) / 2
        if one_run_p_value(records, guesses, right, middle, delta) > allowed:
            upper = middle
        else:
            lower = middle
    return lower


def best_guesses(
    scores: Numbers, used: NDArray[np.bool_], delta: float, confidence: float
) -> tuple[float, int, int]:
    """The best of several ways to guess by a score, paid for by a share of the error each.

    The attack guesses "used" on the highest scores and "left out" on the lowest, or "used" on the
    highest alone; how many it dares is tried at four shares. The error is split over all eight.

    Args:
        scores: [m], higher for what was more likely used.
        used: the coins, [m].
        delta: δ.
        confidence: of the result.
    """
    m = len(scores)
    # Ties are broken by chance, so that the order in which records are given cannot win them.
    order = np.lexsort((np.random.default_rng(0).permutation(m), -scores))
    each = shared(confidence, 2 * len(_SHARES))
    best = (0.0, 0, 0)
    for share in _SHARES:
        side = max(1, round(m * share / 2))
        top = int(used[order[:side]].sum())
        bottom = int((~used[order[m - side :]]).sum()) if 2 * side <= m else 0
        tries = [(side, top), (2 * side, top + bottom)] if 2 * side <= m else [(side, top)]
        for guesses, right in tries:
            found = one_run_epsilon(m, guesses, right, delta, each)
            best = max(best, (found, guesses, right))
    return best


def expect_confidence(confidence: float) -> None:
    """Refuse a confidence that is none."""
    if not 0 < confidence < 1:
        raise ConfigError(f"Expected 0 < confidence={confidence} < 1.")


def _thresholds(likely: Numbers, other: Numbers) -> Numbers:
    """Where to try: over the bulk of one world, and far out in the tail of the other."""
    tail = np.geomspace(0.5, 10 / len(other), 60)
    return np.unique(
        np.concatenate(
            [np.quantile(likely, np.linspace(0.01, 0.999, 120)), np.quantile(other, 1 - tail)]
        )
    )


def _at(
    thresholds: Numbers, likely: Numbers, other: Numbers, delta: float, confidence: float
) -> Numbers:
    hits, falses = (_reaching(thresholds, scores) for scores in (likely, other))
    return ratio_bound(hits, falses, len(likely), delta, confidence)


def _reaching(thresholds: Numbers, scores: Numbers) -> NDArray[np.int64]:
    return len(scores) - np.searchsorted(np.sort(scores), thresholds, side="left")


def _lowest(hits: NDArray[np.int64], trials: int, tail: float) -> Numbers:
    found = stats.beta.ppf(tail, np.maximum(hits, 1), trials - hits + 1)
    return np.where(hits == 0, 0.0, found)


def _highest(hits: NDArray[np.int64], trials: int, tail: float) -> Numbers:
    found = stats.beta.ppf(1 - tail, hits + 1, np.maximum(trials - hits, 1))
    return np.where(hits == trials, 1.0, found)


def mean_rank(members: Sequence[float] | Numbers, others: Sequence[float] | Numbers) -> float:
    """Area under the ROC curve: how often a member scores above another record, ties half.

    0.5, which is luck, where one of the two is empty.
    """
    if not len(members) or not len(others):
        return 0.5
    both = stats.rankdata(np.concatenate([np.asarray(members), np.asarray(others)]))
    n, m = len(members), len(others)
    return float((both[:n].sum() - n * (n + 1) / 2) / (n * m))
