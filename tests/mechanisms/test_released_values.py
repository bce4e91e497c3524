"""What leaves a mechanism: widths, shapes, and bits that do not give the private row away."""

import math
import weakref

import numpy as np
import pytest
import torch

from fedtranscribe.errors import ConfigError
from fedtranscribe.noise.randomized_labels import ExponentialVoteLabels, TopKRandomizedResponse
from fedtranscribe.noise.sources import OsNoise, SeededNoise
from fedtranscribe.privacy.calibrate import RAW_ROUNDING, EnsembleLayout
from fedtranscribe.privacy.units import RowAnswer
from fedtranscribe.questions.labels import vote_counts
from fedtranscribe.questions.rows import RowBound, clip_rows, mean_rows, simplex_rows
from tests.mechanisms_for import noisy_mean_rows, raw_mean_rows

SETS = torch.arange(3).expand(4, 3)


@pytest.mark.parametrize("std", [1e-3, 0.25, 0.894, 44.7])
def test_answers_lie_on_a_public_grid(std):
    mechanism = noisy_mean_rows(EnsembleLayout(2, 2), std, RowAnswer.GRADIENT)
    assert math.frexp(mechanism.grid)[0] == 0.5
    assert 1 / 512 < mechanism.grid / mechanism.own_std <= 1 / 256
    rows = torch.rand(2_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    answers = mechanism.privatise(rows, SeededNoise(0)).double() / mechanism.grid
    assert torch.equal(answers, answers.round())


def test_the_far_tail_of_the_noise_is_finely_resolved(monkeypatch):
    # Zero first words put every number beyond 8 stds, where 53 bits would have given one value.
    def entropy(size: int) -> bytes:
        return bytes(size // 2) + np.random.default_rng(0).bytes(size // 2)

    monkeypatch.setattr("os.urandom", entropy)
    tail = OsNoise().gaussian((1_000,), 1.0)
    assert float(tail.max()) < -8
    assert len(tail.unique()) == 1_000


def test_the_noise_is_exactly_symmetric(monkeypatch):
    words = np.random.default_rng(0).integers(0, 2**64, size=(2, 500), dtype=np.uint64)
    drawn = []
    for sign in (0, 1):
        words[0] = (words[0] >> np.uint64(1) << np.uint64(1)) | np.uint64(sign)
        monkeypatch.setattr("os.urandom", lambda size: words.tobytes())
        drawn.append(OsNoise().gaussian((500,), 1.0))
    assert torch.equal(drawn[0], -drawn[1])
    assert bool((drawn[0] < 0).all())


@pytest.mark.parametrize(
    "mechanism", [TopKRandomizedResponse(0.1, 10), ExponentialVoteLabels(1, 10)]
)
def test_labels_over_fewer_classes_than_booked_are_refused(mechanism):
    # At epsilon0 = 0.1 and 1,000 labels k = 10 costs 6.74, k = 3 costs 13.87.
    with pytest.raises(ConfigError, match="k=10 classes, got 3"):
        mechanism.privatise(torch.eye(3), SeededNoise(0))


@pytest.mark.parametrize(
    "row", [[math.nan] * 3, [math.inf, 0, 0], [1, 1, 0], [-1, 0, 0], [0.5, 0, 0]]
)
def test_a_row_that_is_no_single_vote_gives_a_uniform_label(row):
    rows = torch.tensor(row).expand(60_000, 3)
    shares = TopKRandomizedResponse(4.0, 3).privatise(rows, SeededNoise(1)).mean(0)
    torch.testing.assert_close(shares, torch.full((3,), 1 / 3), atol=0.01, rtol=0)


@pytest.mark.parametrize("row", [[math.nan] * 3, [math.inf, 0, 0], [-1, 0, 0]])
def test_a_row_that_is_not_made_of_votes_gives_a_uniform_label(row):
    rows = torch.tensor(row).expand(60_000, 3)
    shares = ExponentialVoteLabels(4.0, 3).privatise(rows, SeededNoise(1)).mean(0)
    torch.testing.assert_close(shares, torch.full((3,), 1 / 3), atol=0.01, rtol=0)


@pytest.mark.parametrize("shape", [(4, 3), (1, 5, 3), (1, 3)])
def test_a_block_of_another_shape_is_refused(shape):
    # Without its shard axis a block would be added to every row: 4 times the sensitivity here.
    with pytest.raises(ValueError, match="Expected a block"):
        mean_rows([torch.zeros(shape)], SETS, shape[0], RowBound.UNIT)
    with pytest.raises(ValueError, match="Expected a block"):
        vote_counts([torch.zeros(shape)], SETS)


def test_shards_are_streamed_one_block_at_a_time():
    alive: list[weakref.ref] = []
    most = 0

    def blocks():
        nonlocal most
        for _ in range(20):
            block = torch.ones(1, 4, 3)
            alive.append(weakref.ref(block))
            most = max(most, sum(ref() is not None for ref in alive))
            yield block
            del block

    mean = mean_rows(blocks(), SETS, 20, RowBound.SIMPLEX)
    torch.testing.assert_close(mean, torch.full((4, 3), 1 / 3).double())
    # The one being made, and the one the consumer's loop variable still holds.
    assert most <= 2


def test_blocks_of_several_shards_give_the_same_mean():
    raw = torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(0))
    singly = mean_rows(raw.split(1), SETS, 6, RowBound.UNIT)
    torch.testing.assert_close(mean_rows(raw.split(4), SETS, 6, RowBound.UNIT), singly)


def test_raw_rows_and_their_second_bounding_stay_within_the_room_for_rounding():
    """Neighbours whose raw rows travel as float32 and are bounded again by the server."""
    rng = torch.Generator().manual_seed(0)
    layout = EnsembleLayout(1_000, 1)
    for answer in RowAnswer:
        exact = torch.rand(2_000, 10, generator=rng, dtype=torch.float64)
        bound = clip_rows if answer is RowAnswer.GRADIENT else simplex_rows
        exact = bound(exact)
        raw = raw_mean_rows(layout, 1.0, answer).raw(exact)
        moved = (bound(raw.double()) - exact).norm(dim=-1).max()
        assert 2 * float(moved) <= RAW_ROUNDING
