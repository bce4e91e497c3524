"""Products of records with a public matrix: close, and the same wherever a record stands."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedtranscribe.noise.exact_products import exact_product


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("d", [1, 2, 3, 500, 15_552])
def test_it_is_the_product(d: int):
    rows, matrix = normal(7, d), normal(d, 5, seed=1)
    found = exact_product(rows, matrix)
    largest = rows.abs().amax(1, keepdim=True) * matrix.abs().amax(0)
    assert float(((found - rows @ matrix) / largest).abs().max()) < d * 2.0**-17


@given(st.integers(0, 10_000), st.sampled_from([1e-30, 1.0, 1e30]), st.sampled_from([1e-30, 1e30]))
def test_scales_of_rows_and_columns_change_nothing_else(seed: int, row: float, column: float):
    rows, matrix = normal(4, 9, seed=seed), normal(9, 3, seed=seed + 1)
    powers = 2.0 ** torch.tensor([row, column]).double().log2().round()
    found = exact_product(rows * powers[0], matrix * powers[1])
    assert torch.equal(found, exact_product(rows, matrix) * powers[0] * powers[1])


@given(st.integers(0, 10_000), st.integers(1, 260))
def test_no_sum_is_rounded(seed: int, d: int):
    """A row's product with a permuted matrix is the same to the last bit."""
    rows, matrix = normal(3, d, seed=seed), normal(d, 4, seed=seed + 1)
    order = torch.randperm(d, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(exact_product(rows, matrix), exact_product(rows[:, order], matrix[order]))


def test_what_cancels_is_nothing():
    """In floats it would be rounding, which follows from a row's place."""
    half = normal(40, 6)
    matrix = torch.cat([half, -half])[torch.randperm(80)]
    rows = torch.full((200, 80), 1e10, dtype=torch.float64)
    assert torch.equal(exact_product(rows, matrix), torch.zeros(200, 6, dtype=torch.float64))


def test_rows_that_are_not_finite_count_as_zero_and_touch_no_other():
    rows, matrix = normal(3, 5), normal(5, 2, seed=1)
    broken = rows.clone()
    broken[1, 2] = torch.nan
    broken[2, 0] = torch.inf
    found = exact_product(broken, matrix)
    assert torch.equal(found[0], exact_product(rows, matrix)[0])
    assert torch.equal(found[1:], torch.zeros(2, 2, dtype=torch.float64))


def test_zeros_and_the_smallest_numbers_are_no_trouble():
    tiny = torch.full((2, 3), 5e-324, dtype=torch.float64)
    assert bool(torch.isfinite(exact_product(tiny, normal(3, 2))).all())
    none = exact_product(torch.zeros(2, 3), torch.zeros(3, 2))
    assert torch.equal(none, torch.zeros(2, 2).double())
