"""A distinguishing game on the very mechanism of a run, at the run's own noise."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.evaluation.audit_bounds import Numbers, distinguish
from fedtranscribe.evaluation.audit_checks import HolderEvents, epsilon_of, most_exposed
from fedtranscribe.evaluation.findings import Claim, Finding
from fedtranscribe.evaluation.sums_game import SumsGame, sums_game
from fedtranscribe.noise.gaussian import CentralNoise, LocalNoise
from fedtranscribe.noise.masked import MaskedShare
from fedtranscribe.noise.randomized_labels import ExponentialVoteLabels, TopKRandomizedResponse
from fedtranscribe.noise.sources import OsBits, OsNoise
from fedtranscribe.privacy.label_events import ExponentialVotes, RandomizedResponse
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, NoiseMode, RowAnswer, Unit
from fedtranscribe.questions.moments import MOMENTS
from fedtranscribe.questions.rows import mean_rows_bound
from fedtranscribe.results.parts import Answers
from fedtranscribe.results.result import Result

TRIALS = 1_000_000
"""As many trials per world certify about 0.9 of an ε of 1, and 6 of an ε of 10."""

CONFIDENCE = 0.999

_CHUNK = 200_000


class Privatiser(Protocol):
    """What every mechanism can do."""

    def privatise(self, rows: Tensor, source: Any, /) -> Tensor:
        """Rows [n, k] -> private rows [n, k], each with randomness of its own."""
        ...


def play(
    mechanism: Privatiser,
    first: Tensor,
    second: Tensor,
    claim: Claim,
    *,
    source: Any = None,
    trials: int = TRIALS,
    confidence: float = CONFIDENCE,
    words: str = "",
    figures: Mapping[str, Any] | None = None,
    counts: Tensor | None = None,
) -> Finding:
    """Let an adversary tell two neighbouring inputs of a mechanism apart.

    It projects what it sees onto the difference of the inputs, every number weighed by how little
    noise it has, which for Gaussian noise is the best that can be done.

    Args:
        mechanism: as it would be used; does not know what is claimed of it.
        first: input in one world, [n, k]: n rows that are answered together.
        second: in the other world, [n, k].
        claim: ε and δ that n rows are said to cost.
        source: noise or bits, as the mechanism takes them; OS entropy unless a test seeds it.
        trials: in each world; half of them choose the threshold, the other half judge it.
        confidence: of the bound.
        words: what the inputs are, for the reader.
        figures: to go with the bound.
        counts: how often each number counts in a distance (`Bound.counts`); once if not given.
    """
    if first.shape != second.shape or first.ndim != 2 or bool((first == second).all()):
        raise ConfigError(
            f"Expected two different inputs [n, k] of one shape, got {tuple(first.shape)} and "
            f"{tuple(second.shape)}."
        )
    source = OsNoise() if source is None else source
    direction = first.double() - second.double()
    direction = (direction if counts is None else direction * counts).flatten()
    seen = [
        _scores(mechanism, rows, direction, source.for_query(name), trials)
        for name, rows in (("first world", first), ("second world", second))
    ]
    lower = distinguish(seen[0], seen[1], claim.delta, confidence)
    sentence = (
        f"An adversary who knows both of two data sets saw {trials:,} answers about each{words}. "
        f"It proves at least ε = {lower:.4g}."
    )
    facts = {"trials": trials, **(figures or {})}
    return Finding("game", claim, lower, confidence, sentence, facts, private=False)


def _scores(
    mechanism: Privatiser, rows: Tensor, direction: Tensor, source: Any, trials: int
) -> Numbers:
    n, k = rows.shape
    scores = [
        mechanism.privatise(rows.expand(size, n, k).reshape(-1, k), source)
        .double()
        .reshape(size, -1)
        @ direction
        for size in _sizes(trials, max(1, _CHUNK // n))
    ]
    return torch.cat(scores).numpy().astype(np.float64)


def _sizes(total: int, chunk: int) -> Iterator[int]:
    for done in range(0, total, chunk):
        yield min(chunk, total - done)


_BEST_MU = 0.5
# Only the coordinates in which two rows differ carry information: the others are noise alone.
_WIDTH = 2


@dataclass(frozen=True)
class ServerSide:
    """A trusted server's noise on the sum, seen from one holder; the others answer zero rows."""

    noise: CentralNoise

    def privatise(self, rows: Tensor, source: Any) -> Tensor:
        """This holder's rows [n, k] -> the noisy mean over all holders."""
        silent = [torch.zeros_like(rows)] * (self.noise.holders - 1)
        return self.noise.noisy_sum([rows, *silent], source) / self.noise.holders


@dataclass(frozen=True)
class MaskedSumGame:
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
    holder_events: HolderEvents,
    adjacency: Adjacency,
    trials: int,
    confidence: float,
    source: Any = None,
) -> Finding | None:
    """Play on the mechanism of a run; None where its mechanism is not one of ours for rows.

    Of several holders the one is played whose records it costs the most.

    With Gaussian noise, n rows in each of which a record moves the mean by D/p look like one row
    that moves by √n D/p: the adversary would add them up. So one row is played for many: for as
    many as the adversary can judge best (μ of about a half, an ε near 2: at an ε of 10 even half
    of the noise is hardly seen in a million trials), p² at most, which is where the set of rows
    ends. It is held against what the events book for so many.

    Args:
        result: of the run.
        holder_events: the run's events.
        adjacency: of the claim.
        trials: in each world.
        confidence: of the bound.
        source: noise or bits; OS entropy unless a test seeds it.
    """
    holder = most_exposed(holder_events, adjacency, result.guarantee.delta)
    if holder is None or not holder_events[holder]:
        return None
    releases, shards = holder_events[holder], _shards_of(holder, result)
    release = releases[0]
    if release.mechanism.endswith(MOMENTS):
        sums = sums_game(result, releases, adjacency)
        return sums and _play_sums(result, sums, adjacency, trials, confidence, source)
    event = release.costs.get(Unit.RECORD, {}).get(adjacency)
    rows, mechanism, second, first = 1, None, None, None
    answers = result.answers or Answers()
    if isinstance(event, RandomizedResponse):
        mechanism = TopKRandomizedResponse(event.epsilon0, event.classes)
        first, second = torch.eye(event.classes)[:2].split(1)
    elif isinstance(event, ExponentialVotes):
        mechanism = ExponentialVoteLabels(event.eta, event.classes)
        # A vote that moves from a crowd to an empty class moves the normalisation as well.
        first, second = torch.zeros(2, 1, event.classes)
        first[0, 0], first[0, 1], second[0, 1] = 1, shards - 1, shards
    elif event is not None and answers.noise_std:
        mu = math.sqrt(2 * event.zcdp_rho)
        mechanism, rows, first, second = _gaussian(result, answers, shards, release.rows, mu)
    if mechanism is None or first is None or second is None:
        return None
    claim = _claim(result, (release.with_rows(rows),), adjacency)
    if source is None:
        source = OsBits() if isinstance(mechanism, MaskedSumGame) else OsNoise()
    asked = result.rows or rows
    return play(
        mechanism,
        first,
        second,
        claim,
        source=source,
        trials=trials,
        confidence=confidence,
        words=f" to {rows:,} of the run's {asked:,} rows taken together",
        figures={"rows_played": rows, "rows_of_the_run": asked},
    )


def _play_sums(
    result: Result,
    game: SumsGame,
    adjacency: Adjacency,
    trials: int,
    confidence: float,
    source: Any,
) -> Finding:
    if source is None:
        source = OsBits() if game.masked else OsNoise()
    played = len(game.releases)
    return play(
        game.mechanism,
        game.first,
        game.second,
        _claim(result, game.releases, adjacency),
        source=source,
        trials=trials,
        confidence=confidence,
        words=game.words,
        figures={"rows_played": played, "rows_of_the_run": result.rows or played},
        counts=game.weights,
    )


def _claim(result: Result, releases: tuple[MechanismRelease, ...], adjacency: Adjacency) -> Claim:
    """What these releases are said to cost together; with seeded noise nothing is claimed."""
    delta = result.guarantee.delta
    epsilon = epsilon_of(releases, Unit.RECORD, adjacency, delta)
    return Claim(epsilon if result.guarantee.private else None, delta, Unit.RECORD, adjacency)


def _shards_of(holder: str, result: Result) -> int:
    """Teachers of the one holder: holders may have different numbers of them."""
    if result.federation is not None and holder in result.federation.shards:
        return result.federation.shards[holder]
    holders = 1 if result.federation is None else result.federation.holders
    return max(1, (result.teachers or 0) // holders)


def _gaussian(
    result: Result, answers: Answers, shards: int, booked: int, mu: float
) -> tuple[Privatiser, int, Tensor, Tensor]:
    """The run's mechanism, how many rows one stands for, and a record's row in two worlds.

    Args:
        result: of the run.
        answers: that it had; their noise is the mechanism's.
        shards: of the holder that is played.
        booked: rows of the first release.
        mu: of them all; it decides how many rows are played, nothing else.
    """
    answer = RowAnswer.GRADIENT if answers.privacy == "data" else RowAnswer.VOTE
    holders = 1 if result.federation is None else result.federation.holders
    std = answers.noise_std or 0.0
    rows = max(1, min(booked, shards**2, int(booked * (_BEST_MU / mu) ** 2)))
    moved = math.sqrt(rows) / shards
    first, second = torch.zeros(2, 1, _WIDTH, dtype=torch.float64)
    first[0, 0] = moved
    if answer is RowAnswer.GRADIENT:
        second[0, 0] = -moved
    else:
        second[0, 1] = moved
    bound = mean_rows_bound(shards, answer, _WIDTH)
    mode = NoiseMode(answers.noise or NoiseMode.LOCAL)
    if mode is NoiseMode.CENTRAL:
        mechanism: Privatiser = ServerSide(CentralNoise(bound, std, holders))
    elif mode is NoiseMode.SECAGG:
        # However few shares are counted on, they add up to the same noise.
        mechanism = MaskedSumGame(MaskedShare(bound, std, holders, 0))
    else:
        mechanism = LocalNoise(bound, std, holders)
    return mechanism, rows, first, second
