"""Gradients of a linear classifier: how far one record moves them, and that sums are exact."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions.descent import gradient_sums, gradients_bound
from fedtranscribe.questions.moments import SUM_BITS
from fedtranscribe.questions.records import FULL_WEIGHT, id_weights
from tests.mechanisms_for import apart

UNIT = 2.0**-SUM_BITS
WIDTH, CLASSES = 4, 3
# Truncation shortens a row by less than that.
SHORT = 2.0**-10
NUMBERS = st.one_of(
    st.floats(width=64),
    st.sampled_from([0.0, 1.0, -1.0, 1e308, -1e308, 5e-324, 1e-160, math.nan, math.inf]),
)
ROWS = st.lists(NUMBERS, min_size=WIDTH, max_size=WIDTH)
MISSED = st.lists(NUMBERS, min_size=CLASSES, max_size=CLASSES)
BOUND = gradients_bound(WIDTH, CLASSES)


def gradient(row: list[float], missed: list[float]) -> torch.Tensor:
    part = (
        torch.tensor([row], dtype=torch.float64),
        torch.tensor([missed], dtype=torch.float64),
        torch.tensor([FULL_WEIGHT]),
    )
    return gradient_sums([part], WIDTH, CLASSES)


@given(first=ROWS, second=ROWS, here=MISSED, there=MISSED)
@settings(max_examples=300, deadline=None)
def test_no_pair_of_records_lies_further_apart_than_the_sensitivity(first, second, here, there):
    one, other = gradient(first, here), gradient(second, there)
    moves = BOUND.moves[Unit.RECORD]
    assert apart(one, other, BOUND) * UNIT <= moves[Adjacency.REPLACE] == 2
    assert apart(one, 0 * one, BOUND) * UNIT <= moves[Adjacency.ZERO_OUT] == 1
    assert moves[Adjacency.ADD_REMOVE] == 1
    assert Unit.HOLDER not in BOUND.moves


def test_the_worst_pair_of_the_proof_is_as_bad_as_it_says():
    along, wrong = [1.0, 0, 0, 0], [1.0, 0, 0]
    one, other = gradient(along, wrong), gradient(along, [-1.0, 0, 0])
    assert apart(one, other, BOUND) * UNIT == pytest.approx(2, abs=SHORT)
    assert apart(one, 0 * one, BOUND) * UNIT == pytest.approx(1, abs=SHORT)
    # softmax - one_hot may be as long as √2: it is clipped.
    clipped = gradient(along, [-1.0, 1.0, 0])
    assert apart(clipped, 0 * clipped, BOUND) * UNIT == pytest.approx(1, abs=SHORT)


def test_sums_are_exact_in_any_order_and_over_any_split():
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(500, WIDTH, generator=rng, dtype=torch.float64)
    missed = torch.randn(500, CLASSES, generator=rng, dtype=torch.float64)
    weights = id_weights([str(i % 400) for i in range(500)])

    def total(order: torch.Tensor, size: int) -> torch.Tensor:
        parts = [(rows[i], missed[i], weights[i]) for i in order.split(size)]
        return gradient_sums(parts, WIDTH, CLASSES)

    whole = total(torch.arange(500), 500)
    assert torch.equal(whole, total(torch.randperm(500, generator=rng), 7))
    halves = total(torch.arange(250), 50) + total(torch.arange(250, 500), 11)
    assert torch.equal(whole, halves)
    clipped = [x / x.norm(dim=1, keepdim=True).clamp_min(1) for x in (rows, missed)]
    expected = clipped[0].T @ (clipped[1] * weights.double()[:, None] / FULL_WEIGHT)
    assert torch.allclose(whole.reshape(WIDTH, CLASSES).double() * UNIT, expected, atol=0.5)
