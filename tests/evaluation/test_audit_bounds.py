"""Bounds on ε from counts: right where the truth is known, and honest where there is nothing."""

import math

import numpy as np
import pytest
from scipy import stats

from fedtranscribe.errors import ConfigError
from fedtranscribe.evaluation import audit_bounds as bounds
from fedtranscribe.evaluation.audit_bounds import (
    best_guesses,
    clopper_pearson,
    distinguish,
    fair_coins,
    mean_rank,
    one_run_epsilon,
    one_run_p_value,
    shared,
)
from fedtranscribe.noise.sources import SeededBits


def test_clopper_pearson_at_its_ends_and_in_the_middle():
    assert clopper_pearson(0, 10, 0.95) == (0.0, pytest.approx(1 - 0.025**0.1))
    assert clopper_pearson(10, 10, 0.95) == (pytest.approx(0.025**0.1), 1.0)
    low, high = clopper_pearson(37, 100, 0.9)
    assert stats.binom.sf(36, 100, low) == pytest.approx(0.05)
    assert stats.binom.cdf(37, 100, high) == pytest.approx(0.05)


@pytest.mark.parametrize(("hits", "trials"), [(-1, 3), (4, 3), (0, 0)])
def test_counts_that_are_none_are_refused(hits, trials):
    with pytest.raises(ConfigError, match="hits="):
        clopper_pearson(hits, trials, 0.9)
    with pytest.raises(ConfigError, match="confidence=1"):
        clopper_pearson(1, 2, 1.0)


def test_pure_guesses_against_the_binomial():
    # Without δ the p-value is that of a binomial with e^ε/(1+e^ε).
    for epsilon in (0.0, 0.7, 3.0):
        q = math.exp(epsilon) / (1 + math.exp(epsilon))
        assert one_run_p_value(100, 60, 50, epsilon, 0.0) == pytest.approx(
            stats.binom.sf(49, 60, q)
        )
    found = one_run_epsilon(200, 200, 200, 0.0, 0.95)
    assert 1 / (1 + math.exp(-found)) == pytest.approx(0.05 ** (1 / 200), rel=1e-4)


def test_delta_costs_something_and_never_helps():
    for right in (60, 80, 100):
        with_delta = one_run_p_value(1000, 100, right, 1.0, 1e-5)
        assert one_run_p_value(1000, 100, right, 1.0, 0.0) <= with_delta
    assert one_run_epsilon(1000, 100, 95, 1e-2, 0.95) < one_run_epsilon(1000, 100, 95, 0, 0.95)
    # By the sum that the theorem states, term by term.
    v, r, q = 70, 100, 1 / (1 + math.exp(-0.5))
    terms = [
        (stats.binom.cdf(v - 1, r, q) - stats.binom.cdf(v - i - 1, r, q)) / i
        for i in range(1, v + 1)
    ]
    expected = stats.binom.sf(v - 1, r, q) + 2 * 500 * 1e-5 * max(terms)
    assert one_run_p_value(500, r, v, 0.5, 1e-5) == pytest.approx(expected)


def test_randomised_response_keeps_its_epsilon_and_betrays_half_of_it_twice_told():
    # Coins told by randomised response are the worst case of the theorem.
    rng, epsilon, exceeded, total = np.random.default_rng(3), 1.0, 0, 0.0
    q = 1 / (1 + math.exp(-epsilon))
    for _ in range(40):
        used = rng.random(500) < 0.5
        told = np.where(rng.random(500) < q, used, ~used)
        found, _, _ = best_guesses(told.astype(float), used, 1e-5, 0.95)
        exceeded += found > epsilon
        total += found / 40
    assert exceeded <= 4
    assert 0.4 < total < epsilon
    strong = np.where(rng.random(2000) < 1 / (1 + math.exp(-3)), 1, -1) * 1.0
    used = rng.random(2000) < 0.5
    assert best_guesses(np.where(used, strong, -strong), used, 1e-5, 0.95)[0] > 2


def test_a_blind_attack_proves_nothing_even_if_members_stand_first():
    used = np.arange(1000) < 500
    assert best_guesses(np.zeros(1000), used, 1e-5, 0.95)[0] == 0
    rng = np.random.default_rng(0)
    found = [best_guesses(rng.random(400), rng.random(400) < 0.5, 1e-5, 0.95)[0] for _ in range(60)]
    assert sum(value > 0 for value in found) <= 6


def test_few_sure_guesses_are_found_among_many_that_are_luck():
    rng = np.random.default_rng(1)
    used = rng.random(4000) < 0.5
    scores = rng.random(4000)
    scores[np.flatnonzero(used)[:200]] += 1
    found, guesses, right = best_guesses(scores, used, 1e-6, 0.95)
    assert found > 2
    assert right / guesses > 0.9


@pytest.mark.parametrize("flip", [1.0, -1.0])
@pytest.mark.parametrize("swap", [False, True])
def test_a_threshold_is_found_in_whichever_tail_it_lies(flip, swap):
    rng = np.random.default_rng(0)
    # A rare event of one world only: seen in one tail of one direction.
    first, second = rng.normal(size=100_000), rng.normal(size=100_000)
    first[rng.random(100_000) < 0.01] += 20
    worlds = (second, first) if swap else (first, second)
    assert distinguish(flip * worlds[0], flip * worlds[1], 1e-5, 0.999) > 3


def test_equal_worlds_and_useless_trials():
    rng = np.random.default_rng(0)
    found = [distinguish(*rng.normal(size=(2, 4000)), 1e-5, 0.95) for _ in range(40)]
    assert sum(value > 0 for value in found) <= 5
    with pytest.raises(ConfigError, match="as many trials"):
        distinguish(np.zeros(9), np.zeros(8), 1e-5, 0.9)
    with pytest.raises(ConfigError, match="finite"):
        distinguish(np.full(9, np.nan), np.zeros(9), 1e-5, 0.9)


def test_delta_is_taken_off_before_the_ratio():
    one = bounds.ratio_bound(np.array([50]), np.array([0]), 1000, 0.2, 0.9)
    assert one[0] == 0
    assert bounds.ratio_bound(np.array([500]), np.array([0]), 1000, 0.2, 0.9)[0] > 4


def test_the_area_under_the_curve():
    assert mean_rank([2, 3], [0, 1]) == 1.0
    assert mean_rank([0, 1], [2, 3]) == 0.0
    assert mean_rank([1, 1], [1, 1]) == 0.5
    assert mean_rank([2, 0], [1]) == 0.5


def test_the_example_of_the_paper():
    """Steinke, Nasr and Jagielski 2023, Appendix D: 75 of 100 guesses right, 1,000 records."""
    assert one_run_epsilon(1_000, 100, 75, 1e-4, 0.95) == pytest.approx(0.673, abs=5e-4)


# ---------------------------------------------------------------- several findings, one verdict


def test_the_error_is_shared_out_over_findings():
    assert shared(0.99, 1) == pytest.approx(0.99)
    assert shared(0.99, 6) == pytest.approx(1 - 0.01 / 6)
    assert shared(0.99, 0) == pytest.approx(0.99)


def contradicted(epsilon: float, confidence: float, findings: int = 6) -> float:
    """How likely one of several attacks on randomised response proves more than its ε: exactly."""
    luck, m = 1 / (1 + math.exp(-epsilon)), 200
    refuting = (r for r in range(m) if one_run_epsilon(m, m, r, 0, confidence) > epsilon)
    alone = float(stats.binom.sf(next(refuting) - 1, m, luck))
    return 1 - (1 - alone) ** findings


@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_a_sound_mechanism_is_contradicted_no_more_often_than_stated(confidence):
    assert contradicted(1.0, shared(confidence, 6)) <= 1 - confidence
    # Where each finding is held against the stated confidence by itself, a verdict errs more often.
    assert contradicted(1.0, confidence) > 3 * (1 - confidence)


def test_coins_are_the_lowest_bits_of_words_of_their_own():
    coins = fair_coins(4_000, SeededBits(1))
    assert (coins == (SeededBits(1).words(4_000) % 2 == 1)).all()
    assert coins.mean() == pytest.approx(0.5, abs=0.03)
    assert (fair_coins(200) != fair_coins(200)).any()
