"""What a mechanism books covers what hostile teachers can do to its answers, and no more.

`test_sensitivity` bounds the sets that rows are brought into; here the yardstick is the release
itself: how far the answer's mean moves, in stds of the noise that is really added.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedtranscribe.noise.gaussian import LocalNoise
from fedtranscribe.noise.randomized_labels import ExponentialVoteLabels, TopKRandomizedResponse
from fedtranscribe.noise.sources import SeededNoise
from fedtranscribe.privacy.calibrate import EnsembleLayout
from fedtranscribe.privacy.events import Gaussian
from fedtranscribe.privacy.label_events import ExponentialVotes, RandomizedResponse
from fedtranscribe.privacy.units import Adjacency, RowAnswer, Unit
from fedtranscribe.questions.labels import vote_counts
from fedtranscribe.questions.rows import RowBound, mean_rows
from tests.mechanisms_for import noisy_mean_rows

MANY = settings(max_examples=120, deadline=None)
BOUNDS = {
    RowAnswer.GRADIENT: (RowBound.UNIT, RowBound.CLIP),
    RowAnswer.VOTE: (RowBound.SIMPLEX,),
}
DTYPES = (torch.float16, torch.float32, torch.float64)
EXTREMES = [0.0, 1.0, -1.0, 6e4, -6e4, 1e38, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf]
NUMBERS = st.one_of(st.sampled_from(EXTREMES), st.floats(width=64))
STRATA = 4_000


class Strata:
    """Every quantile once: shares of draws are then probabilities, up to one stratum per edge."""

    private = False

    def for_query(self, query_id: str) -> "Strata":
        return self

    def uniform(self, shape) -> Tensor:
        n = math.prod(shape)
        return ((torch.arange(n, dtype=torch.float64) + 0.5) / n).reshape(tuple(shape))

    def gaussian(self, shape, std: float) -> Tensor:
        return torch.zeros(tuple(shape), dtype=torch.float64)


def probabilities(mechanism, row: Tensor) -> Tensor:
    return mechanism.privatise(row.expand(STRATA, -1), Strata()).double().mean(0)


def booked_mu(mechanism: LocalNoise, unit: Unit) -> float:
    event = mechanism.release(1, positional_ids=False).event(unit, Adjacency.REPLACE)
    assert isinstance(event, Gaussian)
    return event.gdp_mu


@st.composite
def neighbouring_blocks(draw):
    """Two worlds of p shards' rows that share all but shard 0, in any float type."""
    shards, holders = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    n, c = draw(st.integers(1, 2)), draw(st.integers(2, 5))

    def rows() -> Tensor:
        numbers = draw(st.lists(NUMBERS, min_size=n * c, max_size=n * c))
        return (
            torch.tensor(numbers, dtype=torch.float64)
            .view(1, n, c)
            .to(draw(st.sampled_from(DTYPES)))
        )

    before = [rows() for _ in range(shards)]
    # Sets with repeated indices too: ImageQuery refuses them, mechanisms must not rely on it.
    picks = st.lists(st.integers(0, c - 1), min_size=c, max_size=c)
    sets = torch.tensor([draw(picks) for _ in range(n)])
    return before, [rows(), *before[1:]], [rows() for _ in range(shards)], sets, holders


@pytest.mark.parametrize("answer", list(RowAnswer))
@given(case=neighbouring_blocks())
@MANY
def test_no_unit_moves_an_answer_by_more_than_the_ledger_books(answer, case):
    before, one_record, whole_holder, sets, holders = case
    shards = len(before)
    mechanism = noisy_mean_rows(EnsembleLayout(shards * holders, holders), 0.7, answer)
    for bound in BOUNDS[answer]:
        old = mean_rows(before, sets, shards, bound)
        for unit, after in ((Unit.RECORD, one_record), (Unit.HOLDER, whole_holder)):
            new = mean_rows(after, sets, shards, bound)
            moved = float((old - new).norm(dim=-1).max()) / mechanism.own_std
            assert moved <= booked_mu(mechanism, unit)


@pytest.mark.parametrize("shards", [1, 7])
@pytest.mark.parametrize("answer", list(RowAnswer))
def test_the_booked_sensitivity_is_attained(answer, shards):
    # Otherwise the property above could hold because the bound is idle.
    mechanism = noisy_mean_rows(EnsembleLayout(shards), 0.7, answer)
    sets = torch.arange(3).expand(1, 3)
    first = torch.tensor([[[1e6, 0.0, 0.0]]])
    second = -first if answer is RowAnswer.GRADIENT else first.roll(1, -1)
    bound = BOUNDS[answer][0]
    rest = [torch.zeros(1, 1, 3)] * (shards - 1)
    one = mean_rows([first, *rest], sets, shards, bound)
    other = mean_rows([second, *rest], sets, shards, bound)
    moved = float((one - other).norm()) / mechanism.own_std
    assert moved == pytest.approx(booked_mu(mechanism, Unit.RECORD), rel=1e-5)


@given(logits=st.lists(NUMBERS, min_size=8, max_size=8), dtype=st.sampled_from(DTYPES))
@MANY
def test_softmax_rows_of_any_logits_stay_within_the_diameter_of_votes(logits, dtype):
    raw = torch.tensor(logits, dtype=torch.float64).to(dtype).double().view(2, 1, 1, 4)
    sets = torch.tensor([[3, 0]])
    first, second = (mean_rows([rows.softmax(-1)], sets, 1, RowBound.SIMPLEX) for rows in raw)
    # A teacher with a NaN or infinite logit answers zero, which is within 1 of any other row.
    assert float((first - second).norm()) <= math.sqrt(2) * (1 + 1e-12)


@given(
    first=st.lists(NUMBERS, min_size=3, max_size=3),
    second=st.lists(NUMBERS, min_size=3, max_size=3),
    epsilon0=st.floats(0.05, 3),
)
@MANY
def test_randomised_response_keeps_epsilon0_whatever_row_it_is_given(first, second, epsilon0):
    mechanism = TopKRandomizedResponse(epsilon0, 3)
    event = mechanism.release(1, positional_ids=False).event(Unit.HOLDER, Adjacency.REPLACE)
    assert isinstance(event, RandomizedResponse)
    p, q = (probabilities(mechanism, torch.tensor(row).double()) for row in (first, second))
    assert bool((p <= math.exp(event.epsilon0) * (q + 2 / STRATA) + 2 / STRATA).all())


def test_several_votes_or_a_repeated_index_would_break_epsilon0_and_count_as_none():
    single = torch.tensor([1.0, 0.0, 0.0]).double()
    double = torch.tensor([0.0, 1.0, 1.0]).double()
    unguarded = single.log_softmax(-1) - double.log_softmax(-1)
    assert float(unguarded.abs().max()) > 1.3
    mechanism = TopKRandomizedResponse(1.0, 3)
    shares = probabilities(mechanism, double)
    torch.testing.assert_close(shares, torch.full((3,), 1 / 3).double(), atol=1e-3, rtol=0)


@given(case=neighbouring_blocks(), eta=st.floats(0.01, 2))
@MANY
def test_one_voter_moves_no_label_by_more_than_the_booked_range(case, eta):
    before, one_record, _, sets, _ = case
    sets = sets[:1]
    mechanism = ExponentialVoteLabels(eta, sets.shape[1])
    event = mechanism.release(1, positional_ids=False).event(Unit.RECORD, Adjacency.REPLACE)
    assert isinstance(event, ExponentialVotes)
    p, q = (
        probabilities(mechanism, vote_counts([block[:, :1] for block in blocks], sets)[0])
        for blocks in (before, one_record)
    )
    assert bool((p <= math.exp(event.pure) * (q + 2 / STRATA) + 2 / STRATA).all())


@given(row=st.lists(NUMBERS, min_size=3, max_size=3))
@MANY
def test_any_mean_row_gets_a_finite_answer(row):
    rows = torch.tensor([row], dtype=torch.float64)
    for answer in RowAnswer:
        mechanism = noisy_mean_rows(EnsembleLayout(1), 0.5, answer)
        answered = mechanism.privatise(rows, SeededNoise(0))
        assert bool(torch.isfinite(answered).all())
        assert float(answered.norm()) < 1 + 0.5 * 12 * math.sqrt(3)
