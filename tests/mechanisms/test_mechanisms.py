import math

import pytest
import torch

from fedtranscribe.errors import ConfigError, UnsupportedAdjacencyError
from fedtranscribe.noise.randomized_labels import ExponentialVoteLabels, TopKRandomizedResponse
from fedtranscribe.noise.sources import SeededNoise
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.calibrate import EnsembleLayout, noise_std
from fedtranscribe.privacy.units import Adjacency, NoiseMode, RowAnswer, Unit
from fedtranscribe.questions.labels import vote_counts
from fedtranscribe.questions.rows import RowBound, gather_rows, mean_rows, unit_rows
from tests.mechanisms_for import (
    masked_mean_rows,
    noisy_mean_rows,
    noisy_moments,
    raw_mean_rows,
)


@pytest.mark.parametrize("answer", list(RowAnswer))
@pytest.mark.parametrize("unit", list(Unit))
def test_what_is_released_costs_what_the_noise_was_calibrated_for(answer, unit):
    layout = EnsembleLayout(250, 5)
    std = noise_std(10, 1e-5, 4_000, layout, unit, answer, NoiseMode.LOCAL)
    release = noisy_mean_rows(layout, std, answer).release(4_000, positional_ids=False)
    for adjacency in Adjacency:
        assert epsilon([release.event(unit, adjacency)], 1e-5) == pytest.approx(10, rel=1e-4)


def test_the_written_out_sensitivity_and_noise_give_the_same_mu():
    mechanism = noisy_mean_rows(EnsembleLayout(250, 5), 0.4, RowAnswer.GRADIENT)
    event = mechanism.release(1, positional_ids=False).event(Unit.RECORD, Adjacency.REPLACE)
    assert mechanism.own_std == pytest.approx(0.4 * math.sqrt(5))
    assert event.gdp_mu == pytest.approx(2 / 50 / mechanism.own_std, rel=1e-5)


def test_without_persistent_ids_add_remove_of_a_record_has_no_guarantee():
    mechanism = noisy_mean_rows(EnsembleLayout(10), 1.0, RowAnswer.VOTE)
    release = mechanism.release(5, positional_ids=True)
    release.event(Unit.RECORD, Adjacency.ZERO_OUT)
    release.event(Unit.HOLDER, Adjacency.ADD_REMOVE)
    with pytest.raises(UnsupportedAdjacencyError, match="add-remove"):
        release.event(Unit.RECORD, Adjacency.ADD_REMOVE)


def test_the_noise_that_is_added_has_the_promised_std():
    mechanism = noisy_mean_rows(EnsembleLayout(4, 4), 0.5, RowAnswer.GRADIENT)
    rows = torch.zeros(40_000, 3, dtype=torch.float64)
    noisy = mechanism.privatise(rows, SeededNoise(0))
    assert noisy.dtype == torch.float32
    assert float(noisy.std()) == pytest.approx(0.5 * math.sqrt(4), rel=0.01)


def test_a_row_that_is_too_long_is_cut_before_the_noise():
    mechanism = noisy_mean_rows(EnsembleLayout(1), 1e-6, RowAnswer.GRADIENT)
    noisy = mechanism.privatise(torch.full((2, 4), 100.0), SeededNoise(0))
    assert float(noisy.norm(dim=-1).max()) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_no_noise_is_refused(bad):
    with pytest.raises(ConfigError, match="noise_std"):
        noisy_mean_rows(EnsembleLayout(2), bad, RowAnswer.VOTE)
    with pytest.raises(ConfigError, match="epsilon0"):
        TopKRandomizedResponse(bad, 3)
    with pytest.raises(ConfigError, match="eta"):
        ExponentialVoteLabels(bad, 3)


def test_the_mean_divides_by_the_public_count_empty_shards_included():
    sets = torch.arange(3).expand(2, 3)
    full = torch.tensor([1.0, 0.0, 0.0]).expand(1, 2, 3)
    empty = torch.full((1, 2, 3), torch.nan)
    mean = mean_rows([full, empty, full, empty], sets, 4, RowBound.SIMPLEX)
    torch.testing.assert_close(mean, 0.5 * full[0].double())


def test_a_lost_shard_is_noticed():
    with pytest.raises(ValueError, match="Expected rows of 2 shards, got 1"):
        mean_rows([torch.zeros(1, 2, 3)], torch.arange(3).expand(2, 3), 2, RowBound.UNIT)


def test_rows_are_gathered_before_they_are_normalised():
    raw = torch.tensor([[[3.0, 4.0, 100.0]]])
    sets = torch.tensor([[0, 1]])
    mean = mean_rows([raw], sets, 1, RowBound.UNIT)
    torch.testing.assert_close(mean, torch.tensor([[0.6, 0.8]]).double(), atol=1e-4, rtol=0)
    assert not torch.allclose(gather_rows(unit_rows(raw), sets)[0], mean)


def test_randomised_response_follows_eq_4_within_the_set():
    told = torch.tensor([0.0, 1.0, 0.0]).expand(200_000, 3)
    mechanism = TopKRandomizedResponse(1.2, 3)
    shares = mechanism.privatise(told, SeededNoise(0)).mean(0)
    total = math.exp(1.2) + 2
    expected = torch.tensor([1, math.exp(1.2), 1]) / total
    torch.testing.assert_close(shares, expected, atol=0.005, rtol=0)


def test_a_label_outside_the_set_gives_a_uniform_one():
    nothing = torch.zeros(200_000, 4)
    shares = TopKRandomizedResponse(3.0, 4).privatise(nothing, SeededNoise(0)).mean(0)
    torch.testing.assert_close(shares, torch.full((4,), 0.25), atol=0.005, rtol=0)


def test_one_voter_is_randomised_response():
    told = torch.tensor([0.0, 0.0, 1.0]).expand(1_000, 3)
    one = ExponentialVoteLabels(0.7, 3).privatise(told, SeededNoise(5))
    other = TopKRandomizedResponse(0.7, 3).privatise(told, SeededNoise(5))
    assert torch.equal(one, other)


def test_votes_outside_the_set_and_of_broken_teachers_do_not_count():
    logits = torch.tensor([[[0.0, 9, 0]], [[9, 0, 0]], [[torch.nan, 9, 0]], [[torch.inf, 0, 0]]])
    assert vote_counts([logits], torch.tensor([[1, 2]])).tolist() == [[1, 0]]


def test_each_mechanism_says_what_ledgers_call_it():
    layout = EnsembleLayout(2)
    for mechanism, name in (
        (noisy_mean_rows(layout, 1, RowAnswer.GRADIENT), "noisy-mean-gradients"),
        (noisy_mean_rows(layout, 1, RowAnswer.VOTE), "noisy-mean-votes"),
        (raw_mean_rows(layout, 1, RowAnswer.VOTE), "central-mean-votes"),
        (masked_mean_rows(layout, 1, RowAnswer.VOTE, 3, 0), "secagg-mean-votes"),
        (noisy_moments(1, 2, None), "noisy-moments"),
        (TopKRandomizedResponse(1, 2), "top-k-randomized-response"),
        (ExponentialVoteLabels(1, 2), "exponential-votes"),
    ):
        assert mechanism.release(1, positional_ids=False).mechanism == name
