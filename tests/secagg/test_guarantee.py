"""The guarantee as a game: a server that may say anything to anybody, on graphs small enough.

Messages are left out: what a holder masks with, signs and reveals follows its rules, everything
else is the server's choice, and colluders say whatever it needs. A sum of honest vectors is open if
no mask is left on it.
"""

import itertools
import math
import random
from dataclasses import dataclass

import pytest

from fedtranscribe.noise.mask_graph import log_failure


@dataclass(frozen=True)
class Table:
    """A cohort and its graph; the last c holders collude."""

    m: int
    d: int
    c: int
    circles: tuple[frozenset[int], ...]
    t: int
    x: int = 0

    @property
    def honest(self) -> range:
        return range(self.m - self.c)

    @property
    def quorum(self) -> int:
        return self.m - self.d + self.x

    def near(self, v: int) -> frozenset[int]:
        return frozenset(
            u for u in range(self.m) if u != v and (u in self.circles[v] or v in self.circles[u])
        )


def complete(m: int, d: int, c: int) -> Table:
    return Table(m, d, c, (frozenset(range(m)),) * m, m - d)


def drawn_by(rng: random.Random, m: int, d: int, c: int, k: int, t: int, x: int) -> Table:
    circles = tuple(
        frozenset({v, *rng.sample([u for u in range(m) if u != v], k)}) for v in range(m)
    )
    return Table(m, d, c, circles, t, x)


def may_mask(table: Table, v: int, seen: frozenset[int]) -> bool:
    return len(table.circles[v] & (seen | {v})) >= table.t


def may_sign(table: Table, seen, v: int, chosen: frozenset[int] | None) -> bool:
    if chosen is None:
        return True
    if v not in chosen or len(chosen) < table.quorum:
        return False
    near = table.near(v) & chosen
    return near <= seen[v] and all(u not in table.honest or v in seen[u] for u in near)


def opened(table: Table, seen, signed) -> list[frozenset[int]]:
    """Parts whose sums are open, given whom each honest holder masked with and what it signed."""
    honest, t = table.honest, table.t

    def revealed(v: int) -> bool:
        mine = signed[v]
        return mine is not None and t <= sum(
            u in mine and (u not in honest or signed[u] == mine) for u in table.circles[v]
        )

    told = {v for v in honest if revealed(v)}

    def shown(v: int, inside: bool) -> bool:
        """Whether t members of a circle give shares of the seed, or of the key."""
        return t <= sum(
            g not in honest
            or (g in told and (v in signed[g]) is inside and (g == v or v in seen[g]))
            for g in table.circles[v]
        )

    is_in = {v for v in honest if shown(v, True)}
    is_out = {v for v in honest if shown(v, False)}
    assert not is_in & is_out
    assert not told & is_out
    parts, left = [], set(is_in)
    while left:
        part, edge = set(), {left.pop()}
        while edge:
            part |= edge
            edge = {
                u for v in edge for u in seen[v] if u in is_in and v in seen[u] and u not in part
            }
        left -= part
        masks = {(v, u) for v in part for u in seen[v] if u in honest and u not in is_out}
        if all(u in part and v in seen[u] for v, u in masks):
            parts.append(frozenset(part))
    return parts


def holds(table: Table, seen, signed) -> int:
    """Assert the guarantee; whether anything was open."""
    parts = opened(table, seen, signed)
    assert len(parts) <= 1
    for part in parts:
        assert len(part) >= table.m - table.d - table.c
    return len(parts)


def is_good(table: Table) -> bool:
    """The three conditions of `secagg.connectivity`, for the last c as colluders, set by set."""
    honest, t = table.honest, table.t
    n = len(table.circles[0])
    foes = frozenset(range(table.m)) - set(honest)
    if table.c >= 2 * t - n:
        return False
    for marks in itertools.product(range(3), repeat=len(honest)):
        first = {v for v in honest if marks[v] == 1}
        second = {v for v in honest if marks[v] == 2}
        if (
            first
            and second
            and all(
                len(circle & far) <= n - t and len(circle & (own | foes)) >= 2 * t - n
                for own, far in ((first, second), (second, first))
                for circle in (table.circles[v] for v in own)
            )
        ):
            return False
        if first and len(second) == table.x + 1:
            near = set().union(*(table.circles[v] for v in first))
            closed = all(len(table.circles[v] & (first | foes)) >= t for v in first)
            if closed and all(
                v not in near or len(table.circles[v] & first) <= n - t for v in second
            ):
                return False
    return True


# ---------------------------------------------------------------- all games, and many games


@pytest.mark.parametrize(("m", "d", "c"), [(3, 1, 0), (4, 1, 1), (3, 0, 2), (5, 1, 2)])
def test_in_a_complete_graph_only_the_sum_of_all_honest_survivors_opens(m, d, c):
    table, count = complete(m, d, c), 0
    views = {
        v: [
            frozenset(some)
            for size in range(m)
            for some in itertools.combinations(sorted(table.near(v)), size)
            if may_mask(table, v, frozenset(some))
        ]
        for v in table.honest
    }
    sets = [frozenset(s) for n in range(m - d, m + 1) for s in itertools.combinations(range(m), n)]
    for seen in itertools.product(*(views[v] for v in table.honest)):
        options = [[s for s in (None, *sets) if may_sign(table, seen, v, s)] for v in table.honest]
        for signed in itertools.product(*options):
            for part in opened(table, seen, signed):
                assert any(s is not None and part == s & set(table.honest) for s in signed)
            count += holds(table, seen, signed)
    assert count


def random_game(rng: random.Random, table: Table):
    """A server that has a few plans at once: whom to hide, which sets to have signed by whom."""
    plans = [
        frozenset(range(table.m))
        - set(rng.sample(range(table.m), rng.randint(0, table.d - table.x)))
        for _ in range(rng.choice((1, 1, 2, 3)))
    ]
    side = {v: rng.choice(plans) for v in table.honest}
    seen = {}
    for v in table.honest:
        spared = rng.random() < 0.5
        hidden = {u for u in table.near(v) if u not in side[v] and spared and rng.random() < 0.8}
        hidden |= {u for u in table.near(v) if rng.random() < 0.02}
        seen[v] = table.near(v) - hidden
        if not may_mask(table, v, seen[v]):
            seen[v] = table.near(v)
    signed = {
        v: side[v] if may_sign(table, seen, v, side[v]) and rng.random() < 0.95 else None
        for v in table.honest
    }
    return seen, signed


@pytest.mark.parametrize(
    ("m", "d", "c", "k", "t", "x"), [(7, 2, 0, 5, 5, 1), (8, 2, 1, 6, 6, 1), (8, 2, 0, 6, 6, 1)]
)
def test_in_a_good_random_graph_no_smaller_sum_opens(m, d, c, k, t, x):
    rng, count, graphs = random.Random(m + c), 0, 0
    for _ in range(8):
        table = drawn_by(rng, m, d, c, k, t, x)
        if not is_good(table):
            continue
        graphs += 1
        for _ in range(150):
            count += holds(table, *random_game(rng, table))
    assert graphs >= 3
    assert count > 40


def test_the_game_finds_the_hole_of_a_graph_that_is_not_good():
    # Two cliques that nobody joins: the server has two sums, one of each.
    halves = frozenset(range(4)), frozenset(range(4, 8))
    table = Table(8, 2, 0, (halves[0],) * 4 + (halves[1],) * 4, 3, 0)
    assert not is_good(table)
    seen = {v: table.near(v) for v in table.honest}
    signed = dict.fromkeys(table.honest, frozenset(range(8)))
    assert sorted(map(len, opened(table, seen, signed))) == [4, 4]


def test_dropping_all_neighbours_of_a_survivor_leaves_it_out_and_needs_the_spare():
    # Holder 0 has four neighbours, who are said to be missing: the others' sum is one short.
    m = 12
    ring = {v: frozenset({v, *(u for u in range(m) if u not in (v, 0))}) for v in range(1, m)}
    circles = (frozenset({0, 1, 2, 3, 4}), *(ring[v] for v in range(1, m)))
    table = Table(m, 4, 0, circles, 6)
    seen = {v: table.near(v) for v in table.honest}
    chosen = frozenset(range(m)) - {1, 2, 3, 4}
    signed = {v: chosen if v in chosen else None for v in table.honest}
    small = Table(m, 4, 0, circles, 4)
    parts = opened(small, seen, signed)
    assert parts == [chosen - {0}]
    assert len(parts[0]) == small.m - small.d - 1


# ---------------------------------------------------------------- the bound against counting


@pytest.mark.parametrize(
    ("m", "c", "k", "t", "x"),
    [(7, 0, 3, 4, 0), (7, 0, 4, 5, 0), (7, 0, 4, 4, 1), (6, 1, 4, 5, 0)],
)
def test_bad_graphs_are_no_more_frequent_than_computed(m, c, k, t, x):
    bound = math.exp(log_failure(m, c, k, t, x))
    assert bound < 0.5
    rng, trials = random.Random(1), 60

    def bad(table: Table) -> bool:
        # Colluders are chosen once the graph is known; the last of the order collude.
        orders = [[u for u in range(m) if u != foe] + [foe] for foe in range(m if c else 1)]
        return not all(is_good(renamed(table, order)) for order in orders)

    found = sum(bad(drawn_by(rng, m, 1 + x, c, k, t, x)) for _ in range(trials))
    # Five standard deviations above what the bound allows.
    assert found / trials <= bound + 5 * math.sqrt(bound / trials)


def renamed(table: Table, order: list[int]) -> Table:
    """The same graph with `order[i]` called i."""
    place = {u: i for i, u in enumerate(order)}
    circles = tuple(frozenset(place[u] for u in table.circles[v]) for v in order)
    return Table(table.m, table.d, table.c, circles, table.t, table.x)
