"""No input, however hostile, moves a mechanism's input by more than it is charged for."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedtranscribe.errors import ConfigError
from fedtranscribe.noise.randomized_labels import ExponentialVoteLabels, TopKRandomizedResponse
from fedtranscribe.privacy.calibrate import ROUNDING
from fedtranscribe.questions.labels import vote_counts
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.rows import (
    ImageQuery,
    RowBound,
    clip_rows,
    mean_rows,
    simplex_rows,
    unit_rows,
)

HOSTILE = st.one_of(
    st.floats(width=64, allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 1e308, -1e308, 5e-324, 1e-160, math.nan, math.inf, -math.inf]),
)
DIAMETER = {RowBound.UNIT: 2.0, RowBound.CLIP: 2.0, RowBound.SIMPLEX: math.sqrt(2)}
MANY = settings(max_examples=150, deadline=None)


@st.composite
def two_neighbours(draw):
    """Raw rows of p shards, the same but for one shard, and a student's index sets."""
    shards, n = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    c = draw(st.integers(2, 5))
    k = draw(st.integers(1, c))
    numbers = st.lists(HOSTILE, min_size=n * c, max_size=n * c)
    blocks = [torch.tensor(draw(numbers), dtype=torch.float64).view(1, n, c) for _ in range(shards)]
    changed = list(blocks)
    hit = draw(st.integers(0, shards - 1))
    changed[hit] = torch.tensor(draw(numbers), dtype=torch.float64).view(1, n, c)
    sets = torch.stack([torch.tensor(draw(st.permutations(range(c)))[:k]) for _ in range(n)])
    return blocks, changed, sets, shards


@pytest.mark.parametrize("bound", list(RowBound))
@given(case=two_neighbours())
@MANY
def test_one_shard_moves_every_mean_row_by_at_most_its_share(bound, case):
    blocks, changed, sets, shards = case
    before = mean_rows(blocks, sets, shards, bound)
    after = mean_rows(changed, sets, shards, bound)
    assert torch.isfinite(before).all()
    moved = (before - after).norm(dim=-1).max()
    assert float(moved) <= DIAMETER[bound] / shards * (1 + ROUNDING)


@given(case=two_neighbours())
@MANY
def test_repeated_indices_cannot_lengthen_a_row(case):
    # ImageQuery refuses repeated indices; the mechanism would survive them all the same.
    blocks, changed, sets, shards = case
    repeated = sets[:, :1].expand(-1, 4)
    for bound in (RowBound.UNIT, RowBound.CLIP, RowBound.SIMPLEX):
        moved = mean_rows(blocks, repeated, shards, bound) - mean_rows(
            changed, repeated, shards, bound
        )
        assert float(moved.norm(dim=-1).max()) <= DIAMETER[bound] / shards * (1 + ROUNDING)


def test_repeated_indices_are_refused_in_a_query():
    with pytest.raises(ConfigError, match="distinct"):
        ImageQuery(
            id="q",
            kind=Kind.VOTE,
            images=torch.zeros(1, 1, 8, 8, dtype=torch.uint8),
            index_sets=torch.tensor([[2, 2]]),
        )


@given(row=st.lists(HOSTILE, min_size=1, max_size=6))
@MANY
def test_bounded_rows_stay_in_their_sets(row):
    raw = torch.tensor([row], dtype=torch.float64)
    assert float(unit_rows(raw).norm()) <= 1 + 1e-9
    assert float(clip_rows(raw).norm()) <= 1 + 1e-9
    votes = simplex_rows(raw)
    assert float(votes.sum()) <= 1 + 1e-9
    assert float(votes.min()) >= 0


def test_zero_and_broken_rows_become_zero():
    raw = torch.tensor([[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]])
    for bound in (unit_rows, clip_rows, simplex_rows):
        assert torch.equal(bound(raw), torch.zeros(3, 2).double())


@given(case=two_neighbours(), eta=st.floats(0.01, 3))
@MANY
def test_one_shard_moves_no_label_probability_by_more_than_its_bound(case, eta):
    blocks, changed, sets, _ = case
    k = sets.shape[1]
    assume(k >= 2)
    log_before = (eta * vote_counts(blocks, sets)).log_softmax(-1)
    log_after = (eta * vote_counts(changed, sets)).log_softmax(-1)
    loss = log_before - log_after
    # Bounded range 2η, so pure 2η too.
    assert float((loss.amax(-1) - loss.amin(-1)).max()) <= 2 * eta + 1e-9
    assert float(loss.abs().max()) <= 2 * eta + 1e-9
    assert ExponentialVoteLabels(eta, k).k == k


@given(epsilon0=st.floats(0.01, 5), k=st.integers(2, 8), seed=st.integers(0, 20))
@MANY
def test_one_opaque_teacher_moves_no_label_probability_by_more_than_epsilon0(epsilon0, k, seed):
    rng = torch.Generator().manual_seed(seed)
    # Inside the set at any place, or outside of it.
    places = torch.randint(0, k + 1, (2,), generator=rng)
    told = torch.cat([torch.eye(k), torch.zeros(1, k)])[places].double()
    log_p = (epsilon0 * told).log_softmax(-1)
    assert float((log_p[0] - log_p[1]).abs().max()) <= epsilon0 + 1e-9
    assert TopKRandomizedResponse(epsilon0, k).k == k
