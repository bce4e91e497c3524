"""Phase I releases a set: what a list would cost, by exact integration, and that ours is a set."""

import itertools
import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedtranscribe.privacy import Adjacency, ReleasedImages
from fedtranscribe.trainers.private_steps import shuffled

RECORDS, MU, EPSILON = 3, 2.0, 3.0
STEP = 0.1
GRID = np.arange(-6.0, 8.0 + STEP / 2, STEP)


def density(centre: float) -> NDArray[np.float64]:
    return np.exp(-((GRID - centre) ** 2) / 2) / math.sqrt(2 * math.pi)


def of_size(values: tuple[float, ...], size: int, *, as_set: bool) -> NDArray[np.float64]:
    """Density of a step's noisy values, given how many records joined.

    As a list they stand in the order of the records; as a set every order is as likely.
    """
    lists = [
        order
        for joined in itertools.combinations(range(RECORDS), size)
        for order in (itertools.permutations(joined) if as_set else [joined])
    ]
    total = np.zeros([len(GRID)] * size)
    for order in lists:
        total += math.prod(
            density(values[record]).reshape([-1 if axis == i else 1 for axis in range(size)])
            for i, record in enumerate(order)
        )
    return total / len(lists)


def delta(first: tuple[float, ...], second: tuple[float, ...], *, as_set: bool) -> float:
    """δ(ε) of one step with one record expected, n = 3."""
    coin, result = 1 / RECORDS, 0.0
    for size in range(1, RECORDS + 1):
        p, q = (of_size(values, size, as_set=as_set) for values in (first, second))
        excess = np.clip(p - math.exp(EPSILON) * q, 0, None).sum() * STEP**size
        chance = math.comb(RECORDS, size) * coin**size * (1 - coin) ** (RECORDS - size)
        result += chance * float(excess)
    return result


def claimed(*, reverse: bool) -> float:
    event = ReleasedImages(MU, RECORDS, 1, 1, Adjacency.ZERO_OUT)
    return float(np.exp(event.log_profile(np.array([EPSILON]), reverse))[0])


# The first record has the value 0, or is grey: μ/2. The others have any values of images.
OTHERS = [(0.0, 0.0), (0.0, MU), (MU, 0.0), (MU, MU), (MU / 2, MU)]


def test_a_list_costs_more_than_is_claimed_for_a_set():
    grey, real = (MU / 2, 0.0, MU), (0.0, 0.0, MU)
    assert claimed(reverse=True) == pytest.approx(1.28e-4, rel=0.01)
    assert delta(grey, real, as_set=False) == pytest.approx(1.54e-4, rel=0.01)


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("place", range(RECORDS))
def test_a_set_costs_at_most_what_is_claimed(others: tuple[float, float], place: int):
    def with_value(value: float) -> tuple[float, ...]:
        return (*others[:place], value, *others[place:])

    real, grey = with_value(0.0), with_value(MU / 2)
    assert delta(real, grey, as_set=True) <= claimed(reverse=False)
    assert delta(grey, real, as_set=True) <= claimed(reverse=True)


class _Words:
    private = False

    def __init__(self, *words: int) -> None:
        self._words = np.array(words, dtype=np.uint64)

    def for_query(self, query_id: str) -> "_Words":
        return self

    def words(self, count: int) -> NDArray[np.uint64]:
        assert count == len(self._words)
        return self._words


def test_every_order_of_a_step_comes_from_as_many_words():
    records = torch.tensor([4, 8, 15])
    orders = [
        tuple(shuffled(records, _Words(*words)).tolist())
        for words in itertools.permutations((2**63, 5, 2**64 - 1))
    ]
    assert sorted(orders) == sorted(itertools.permutations((4, 8, 15)))
    assert len(shuffled(records[:0], _Words())) == 0
