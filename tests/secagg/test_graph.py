import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from fedtranscribe.noise.mask_graph import (
    SECURITY_BITS,
    STUCK_BITS,
    Graph,
    circle,
    graph_of,
    log_at_least,
    log_at_most,
    log_failure,
    log_stuck,
    neighbours,
)
from fedtranscribe.noise.mask_keys import Members
from tests.secagg.cohorts import cohort_of

FAILURE_BITS = {
    (250, 0, 1): 64.27,
    (250, 25, 1): 78.91,
    (1_000, 0, 1): 64.66,
    (1_000, 111, 1): 134.55,
    (1_000, 111, 100): 70.42,
    (3_000, 330, 10): 114.14,
}
"""A change of these is a change of the protocol: holders of two versions would not agree."""


@pytest.mark.long
def test_tails_are_never_below_the_exact_ones_and_close():
    for population, drawn in ((30, 7), (999, 113)):
        marked = np.arange(population + 1)
        for least in (1, 3, drawn // 2, drawn):
            for bound, exact in (
                (
                    log_at_least(population, marked, drawn, least),
                    stats.hypergeom.logsf(least - 1, population, marked, drawn),
                ),
                (
                    log_at_most(population, marked, drawn, least),
                    stats.hypergeom.logcdf(least, population, marked, drawn),
                ),
            ):
                assert (bound >= exact - 1e-6).all()
                assert (bound <= 0).all()
                # Exact but for a geometric rest: where it is small it is tight.
                small = np.isfinite(exact) & (exact < -20)
                assert np.allclose(bound[small], exact[small], atol=0.01, rtol=1e-6)


def test_the_bound_is_the_sum_that_it_says():
    # Condition (3) with x = 0 and nobody colluding, in whole numbers; (2) for tiny sets is zero.
    m, k, t = 12, 9, 10
    choose = math.comb
    total = Fraction(0)
    for r in range(1, m):
        closed = Fraction(choose(r - 1, k), choose(m - 2, k)) if r - 1 >= k else Fraction(0)
        avoiding = Fraction(choose(m - 2, k), choose(m - 1, k))
        nobody = Fraction(choose(m - 1 - r, k), choose(m - 1, k))
        total += m * choose(m - 1, r) * (closed * avoiding) ** r
        # The other kind of member left out; its circle may avoid R altogether, or not.
        closed_all = Fraction(choose(r - 1, k), choose(m - 2, k)) if r - 1 >= k else Fraction(0)
        total += m * choose(m - 1, r) * closed_all**r * nobody
    bound = math.exp(log_failure(m, 0, k, t, 0))
    assert bound >= float(total) * (1 - 1e-9)


@pytest.mark.parametrize("numbers", FAILURE_BITS)
def test_a_sparse_graph_is_as_safe_as_it_says(numbers):
    m, d, c = numbers
    graph = graph_of(*numbers)
    assert not graph.complete
    assert graph.failure_bits >= SECURITY_BITS
    bits = -log_failure(m, c, graph.drawn, graph.threshold, graph.spare) / math.log(2)
    assert bits == pytest.approx(graph.failure_bits)
    assert bits == pytest.approx(FAILURE_BITS[numbers], abs=0.005)
    n = graph.drawn + 1
    assert c < 2 * graph.threshold - n
    assert log_stuck(m, d, graph.drawn, n - graph.threshold) <= -STUCK_BITS * math.log(2)
    assert graph.spare == d // 10
    assert Members(tuple(f"{i:04}" for i in range(m)), d, c).quorum == m - d + d // 10
    assert "2^-" in graph.words


def test_more_neighbours_a_higher_threshold_or_spare_fail_less_often_and_colluders_more():
    base = log_failure(1_000, 10, 113, 84, 8)
    assert log_failure(1_000, 10, 130, 97, 8) < base
    assert log_failure(1_000, 10, 113, 87, 8) < base
    assert log_failure(1_000, 10, 113, 84, 12) < base
    assert log_failure(1_000, 20, 113, 84, 8) > base
    assert log_failure(1_000, 60, 113, 84, 8) == 0.0  # c >= 2t − n


def test_small_cohorts_and_many_failures_have_a_complete_graph():
    for numbers in [(2, 0, 1), (5, 1, 1), (20, 4, 1), (100, 10, 1), (200, 20, 1), (1_000, 300, 1)]:
        graph = graph_of(*numbers)
        assert graph == Graph(numbers[0] - 1, numbers[0] - numbers[1])
        assert graph.complete
        assert "every two" in graph.words


def test_the_degree_grows_with_the_logarithm():
    degrees = [graph_of(m, m // 10, 1).drawn for m in (300, 600, 1_200, 2_400, 4_800)]
    steps = [after - before for before, after in itertools.pairwise(degrees)]
    # A doubling adds about the same; it does not multiply.
    assert all(0 < step <= 25 for step in steps)
    assert degrees[-1] < 2 * degrees[0]


def test_a_sparse_graph_is_taken_where_it_halves_the_masks():
    sparse = [m for m in range(100, 400, 10) if not graph_of(m, m // 10, 1).complete]
    assert 200 < sparse[0] < 300
    for m in sparse:
        k = graph_of(m, m // 10, 1).drawn
        assert k + (m - 1 - k) * k / (m - 1) <= (m - 1) / 2 + 1e-9


def test_what_is_left_to_chance_must_add_next_to_nothing_to_delta():
    sparse = graph_of(1_000, 111, 1)
    assert sparse.negligible(1e-5, 10_000)
    assert sparse.negligible(1e-12, 10_000)
    assert not sparse.negligible(1e-13, 10_000)
    assert not sparse.negligible(1e-5, 10**12)
    assert graph_of(5, 1, 1).negligible(1e-300, 10**12)


def test_neighbours_are_drawn_without_bias():
    graph, names = Graph(2, 2, 0, 64.0), [str(i) for i in range(5)]
    counts = dict.fromkeys(itertools.combinations(["0", "1", "3", "4"], 2), 0)
    for _ in range(6_000):
        counts[graph.draw("2", names)] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-6


def test_neighbours_are_both_who_was_drawn_and_who_drew():
    drawn = {"a": ["b"], "b": ["c"], "c": ["a", "gone"]}
    assert neighbours(drawn) == {"a": {"b", "c"}, "b": {"a", "c"}, "c": {"a", "b"}}
    assert circle("c", drawn["c"]) == ("a", "c", "gone")


def test_the_graph_is_part_of_what_holders_sign(monkeypatch):
    from fedtranscribe.noise import mask_keys as keys

    usual = cohort_of(5, 1, 1).digest
    for graph in (Graph(3, 3, 0, 64.0), Graph(4, 3), Graph(4, 4, 1)):
        monkeypatch.setattr(keys, "graph_of", lambda *numbers, graph=graph: graph)
        assert cohort_of(5, 1, 1).digest != usual
