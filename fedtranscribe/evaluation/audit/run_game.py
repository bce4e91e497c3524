"""The distinguishing game on the very mechanism of a run, at the run's own noise."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedtranscribe.evaluation.audit.claims import Given, epsilon_of
from fedtranscribe.evaluation.audit.findings import Claim, Finding
from fedtranscribe.evaluation.audit.game import Privatiser, play
from fedtranscribe.mechanisms import (
    MOMENTS,
    CentralNoise,
    ExponentialVoteLabels,
    LocalNoise,
    MaskedShare,
    OsBits,
    OsNoise,
    TopKRandomizedResponse,
    mean_rows_bound,
    moment_sums,
    moments_bound,
)
from fedtranscribe.mechanisms.moments import FULL_WEIGHT
from fedtranscribe.privacy.calibrate import EnsembleLayout
from fedtranscribe.privacy.label_events import ExponentialVotes, RandomizedResponse
from fedtranscribe.privacy.units import Adjacency, NoiseMode, RowAnswer, Unit
from fedtranscribe.result import Result
from fedtranscribe.result_parts import Answers

_BEST_MU = 0.5
# Only the coordinates in which two rows differ tell anything: the others are noise alone.
_WIDTH = 2
_NOISY_MOMENTS = f"noisy-{MOMENTS}"
_MOMENTS_ANSWERS = ("answer on second moments alone", "answer on sums by class")


@dataclass(frozen=True)
class ServerSide:
    """A trusted server's noise on the sum, seen from one holder; the others answer zero rows."""

    noise: CentralNoise

    def privatise(self, rows: Tensor, source: Any) -> Tensor:
        """This holder's rows [n, k] -> the noisy mean over all holders."""
        silent = [torch.zeros_like(rows)] * (self.noise.holders - 1)
        return self.noise.noisy_sum([rows, *silent], source) / self.noise.holders


@dataclass(frozen=True)
class MaskedSum:
    """A masked sum, opened with as few shares of noise as are counted on."""

    mechanism: MaskedShare

    def privatise(self, rows: Tensor, source: Any) -> Tensor:
        """This holder's rows [n, k] -> the sum, in units of the grid."""
        total = self.mechanism.privatise(rows, source)
        for _ in range(self.mechanism.shares - 1):
            total = total + self.mechanism.privatise(torch.zeros_like(rows), source)
        return total


def play_run(
    result: Result,
    given: Given,
    adjacency: Adjacency,
    trials: int,
    confidence: float,
    source: Any = None,
) -> Finding | None:
    """Play on the mechanism of a run; None where its mechanism is not one of ours for rows.

    With Gaussian noise, n rows in each of which a record moves the mean by D/p look like one row
    that moves by √n D/p: the adversary would add them up. So one row is played for many: for as
    many as the adversary can judge best (μ of about a half, an ε near 2: at an ε of 10 even half
    of the noise is hardly seen in a million trials), p² at most, which is where the set of rows
    ends. It is held against what the events book for so many.

    Args:
        result: of the run.
        given: the run's events.
        adjacency: of the claim.
        trials: in each world.
        confidence: of the bound.
        source: noise or bits; OS entropy unless a test seeds it.
    """
    releases = next(iter(given.values()), ())
    if not releases:
        return None
    release = releases[0]
    if release.mechanism == _NOISY_MOMENTS:
        if len(releases) != len(_MOMENTS_ANSWERS):
            return None
        # The second tells of classes as well, and its noise is what the result names.
        release = releases[-1]
    event = release.costs.get(Unit.RECORD, {}).get(adjacency)
    rows, mechanism, second, first, counts = 1, None, None, None, None
    answers = result.answers or Answers()
    if isinstance(event, RandomizedResponse):
        mechanism = TopKRandomizedResponse(event.epsilon0, event.classes)
        first, second = torch.eye(event.classes)[:2].split(1)
    elif isinstance(event, ExponentialVotes):
        mechanism, others = (
            ExponentialVoteLabels(event.eta, event.classes),
            (result.teachers or 0) - 1,
        )
        # A vote that moves from a crowd to an empty class moves the normalisation as well.
        first, second = torch.zeros(2, 1, event.classes)
        first[0, 0], first[0, 1], second[0, 1] = 1, others, others + 1
    elif release.mechanism.endswith(MOMENTS) and answers.noise_std:
        bound = moments_bound(_WIDTH, _WIDTH)
        mechanism, counts = LocalNoise(bound, answers.noise_std), bound.counts
        first, second = _worst_records(adjacency)
    elif event is not None and answers.noise_std:
        mu = math.sqrt(2 * event.zcdp_rho)
        mechanism, rows, first, second = _gaussian(result, answers, release.rows, mu)
    if mechanism is None or first is None or second is None:
        return None
    delta = result.guarantee.delta
    epsilon = epsilon_of((release.with_rows(rows),), Unit.RECORD, adjacency, delta)
    claim = Claim(epsilon if result.guarantee.private else None, delta, Unit.RECORD, adjacency)
    if source is None:
        source = OsBits() if isinstance(mechanism, MaskedSum) else OsNoise()
    asked = result.rows or rows
    words = f" to {rows:,} of the run's {asked:,} rows taken together"
    if release.mechanism == _NOISY_MOMENTS:
        words = f": the {_MOMENTS_ANSWERS[-1]}. The {_MOMENTS_ANSWERS[0]} was not played"
    return play(
        mechanism,
        first,
        second,
        claim,
        source=source,
        trials=trials,
        confidence=confidence,
        words=words,
        figures={"rows_played": rows, "rows_of_the_run": asked},
        counts=counts,
    )


def _gaussian(
    result: Result, answers: Answers, booked: int, mu: float
) -> tuple[Privatiser, int, Tensor, Tensor]:
    """The run's mechanism, how many rows one stands for, and a record's row in two worlds.

    Args:
        result: of the run.
        answers: that it had; their noise is the mechanism's.
        booked: rows of the first release.
        mu: of them all; it decides how many rows are played, nothing else.
    """
    answer = RowAnswer.GRADIENT if answers.privacy == "data" else RowAnswer.VOTE
    holders = 1 if result.federation is None else result.federation.holders
    std, layout = answers.noise_std or 0.0, EnsembleLayout(result.teachers or 0, holders)
    rows = max(1, min(booked, layout.shards**2, int(booked * (_BEST_MU / mu) ** 2)))
    moved = math.sqrt(rows) / layout.shards
    first, second = torch.zeros(2, 1, _WIDTH, dtype=torch.float64)
    first[0, 0] = moved
    if answer is RowAnswer.GRADIENT:
        second[0, 0] = -moved
    else:
        second[0, 1] = moved
    bound = mean_rows_bound(layout.shards, answer, _WIDTH)
    mode = NoiseMode(answers.noise or NoiseMode.LOCAL)
    if mode is NoiseMode.CENTRAL:
        mechanism: Privatiser = ServerSide(CentralNoise(bound, std, holders))
    elif mode is NoiseMode.SECAGG:
        # However few shares are counted on, they add up to the same noise.
        mechanism = MaskedSum(MaskedShare(bound, std, holders, 0))
    else:
        mechanism = LocalNoise(bound, std, holders)
    return mechanism, rows, first, second


def _worst_records(adjacency: Adjacency) -> tuple[Tensor, Tensor]:
    """What one record adds to the sums in two worlds that lie as far apart as any, [1, 7] each."""
    here = torch.tensor([1.0, 0.0], dtype=torch.float64)
    there = torch.zeros_like(here)
    if adjacency is Adjacency.REPLACE:
        # u·u' = −1/2 in the same class, where the proof of `moments_bound` has its worst case.
        there = torch.tensor([-0.5, math.sqrt(0.75)], dtype=torch.float64)
    label, whole = torch.tensor([0]), torch.tensor([FULL_WEIGHT])
    first, second = (moment_sums([(u[None], label, whole)], _WIDTH, _WIDTH) for u in (here, there))
    return first[None], second[None]
