"""An adversary who knows both worlds tries to tell them apart; ε must bound its success.

From 10^6 vectorised trials a Clopper-Pearson bound (99.9 %) on the error rates of the optimal
test gives a lower bound on ε at the δ in force. It must stay below the ε that is charged, and it
must exceed it when the mechanism is sabotaged: otherwise the game could not notice anything.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedtranscribe.noise.randomized_labels import ExponentialVoteLabels, TopKRandomizedResponse
from fedtranscribe.noise.sources import SeededNoise
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.calibrate import EnsembleLayout, noise_std
from fedtranscribe.privacy.units import Adjacency, NoiseMode, RowAnswer, Unit
from fedtranscribe.questions.labels import vote_counts
from fedtranscribe.questions.rows import RowBound, mean_rows
from tests.mechanisms_for import noisy_mean_rows

TRIALS = 1_000_000
DELTA = 1e-5
CONFIDENCE = 1e-3


def lower_bound(statistic_a: np.ndarray, statistic_b: np.ndarray, delta: float) -> float:
    """Best certified ε over thresholds chosen on the first half of the trials."""
    half = len(statistic_a) // 2
    best, chosen = -math.inf, 0.0
    for threshold in np.quantile(statistic_a[:half], np.linspace(0.5, 0.9999, 200)):
        hit = (statistic_a[:half] >= threshold).mean()
        false = max((statistic_b[:half] >= threshold).mean(), 1 / half)
        if hit > delta and math.log((hit - delta) / false) > best:
            spread = 3 / math.sqrt(half * false)  # prefer thresholds that can be certified
            value = math.log((hit - delta) / false) - spread
            if value > best:
                best, chosen = value, threshold
    hits = int((statistic_a[half:] >= chosen).sum())
    falses = int((statistic_b[half:] >= chosen).sum())
    n = len(statistic_a) - half
    hit_low = stats.beta.ppf(CONFIDENCE / 2, hits, n - hits + 1)
    false_high = stats.beta.ppf(1 - CONFIDENCE / 2, falses + 1, n - falses)
    return math.log(max(hit_low - delta, 1e-300) / false_high)


def rows_of(answer: RowAnswer, extreme: int) -> torch.Tensor:
    """An extreme shard's raw row among three neutral ones: as far away as can be."""
    raw = torch.zeros(4, 1, 3)
    raw[0, 0, 0 if answer is RowAnswer.GRADIENT else extreme] = (
        1e6 if answer is RowAnswer.VOTE or extreme == 0 else -1e6
    )
    return raw


@pytest.mark.parametrize("answer", list(RowAnswer))
@pytest.mark.parametrize("sabotage", [1.0, 0.5])
def test_noisy_mean_rows(answer: RowAnswer, sabotage: float):
    layout = EnsembleLayout(4)
    std = noise_std(1.0, DELTA, 1, layout, Unit.RECORD, answer, NoiseMode.LOCAL)
    charged = noisy_mean_rows(layout, std, answer).release(1, positional_ids=False)
    claimed = epsilon([charged.event(Unit.RECORD, Adjacency.REPLACE)], DELTA)
    assert claimed == pytest.approx(1.0, abs=1e-3)
    used = noisy_mean_rows(layout, std * sabotage, answer)
    bound = RowBound.UNIT if answer is RowAnswer.GRADIENT else RowBound.SIMPLEX
    sets = torch.tensor([[0, 1, 2]])
    means = [mean_rows([rows_of(answer, world)], sets, 4, bound) for world in (0, 1)]
    direction = (means[0] - means[1])[0]
    drawn = [
        (
            used.privatise(mean.expand(TRIALS, 3), SeededNoise(7, str(world))).double() @ direction
        ).numpy()
        for world, mean in enumerate(means)
    ]
    found = lower_bound(drawn[0], drawn[1], DELTA)
    if sabotage == 1.0:
        assert 0.5 < found < claimed
    else:
        assert found > claimed


@pytest.mark.parametrize("sabotage", [1.0, 2.0])
def test_randomised_response_and_votes(sabotage: float):
    claimed, sets = 1.0, torch.tensor([[0, 1, 2]])
    worlds = []
    for extreme in (0, 1):
        logits = torch.zeros(1, 1, 3)
        logits[0, 0, extreme] = 1e6
        worlds.append(vote_counts([logits], sets).expand(TRIALS, 3))
    mechanisms = (
        TopKRandomizedResponse(claimed * sabotage, 3),
        ExponentialVoteLabels(claimed * sabotage, 3),
    )
    for mechanism in mechanisms:
        told = [
            mechanism.privatise(counts, SeededNoise(3, str(world)))[:, 0].numpy()
            for world, counts in enumerate(worlds)
        ]
        n = TRIALS
        hits, falses = int(told[0].sum()), int(told[1].sum())
        low = stats.beta.ppf(CONFIDENCE / 2, hits, n - hits + 1)
        high = stats.beta.ppf(1 - CONFIDENCE / 2, falses + 1, n - falses)
        found = math.log(low / high)
        if sabotage == 1.0:
            assert 0.95 < found < claimed
        else:
            assert found > claimed


@pytest.mark.parametrize("sabotage", [1.0, 2.0])
def test_votes_of_an_ensemble(sabotage: float):
    # Here a moved vote moves the normalisation too: the loss exceeds η and nears the booked 2η.
    eta, sets = 0.5, torch.tensor([[0, 1]])
    event = ExponentialVoteLabels(eta, 2).release(1, positional_ids=False)
    claimed = epsilon([event.event(Unit.RECORD, Adjacency.REPLACE)], DELTA)
    assert claimed == pytest.approx(1.0, abs=1e-3)
    used = ExponentialVoteLabels(eta * sabotage, 2)
    told = []
    for voters_of_first in (1, 0):
        logits = torch.zeros(4, 1, 2)
        logits[:voters_of_first, 0, 0] = 1e6
        logits[voters_of_first:, 0, 1] = 1e6
        counts = vote_counts([logits], sets).expand(TRIALS, 2)
        told.append(used.privatise(counts, SeededNoise(5, str(voters_of_first)))[:, 0].numpy())
    hits, falses = (int(world.sum()) for world in told)
    low = stats.beta.ppf(CONFIDENCE / 2, hits, TRIALS - hits + 1)
    high = stats.beta.ppf(1 - CONFIDENCE / 2, falses + 1, TRIALS - falses)
    found = math.log((low - DELTA) / high)
    if sabotage == 1.0:
        assert eta < found < claimed
    else:
        assert found > claimed
