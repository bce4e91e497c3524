"""The distinguishing game on sums over records: all answers whose noise is stated, together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedtranscribe.evaluation.audit_checks import HolderEvents
from fedtranscribe.evaluation.findings import Check
from fedtranscribe.noise.bounds import Bound
from fedtranscribe.noise.gaussian import CentralNoise, LocalNoise
from fedtranscribe.noise.masked import MaskedShare
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, NoiseMode, Unit
from fedtranscribe.questions.descent import GRADIENTS, gradient_sums, gradients_bound
from fedtranscribe.questions.mixture import (
    ENERGIES,
    PRODUCTS,
    band_energies,
    block_products,
    energies_bound,
    products_bound,
)
from fedtranscribe.questions.moments import MOMENTS, moment_sums, moments_bound, vector_length
from fedtranscribe.questions.records import FULL_WEIGHT
from fedtranscribe.results.parts import Answers
from fedtranscribe.results.result import Result
from fedtranscribe.text import counted

# Only the coordinates in which two records differ tell anything: the others are noise alone.
_WIDTH = 2
# The process that booked an answer added whole numbers and floats in another order.
_AGREEMENT = 1e-9
_SUMS = (MOMENTS, GRADIENTS, PRODUCTS, ENERGIES)


@dataclass(frozen=True)
class Opened:
    """The sum over holders as an attacker may see it, in real numbers; the others add nothing."""

    bound: Bound  # of a holder's vectors
    noise_std: float  # as a result names it
    holders: int  # that the run had
    mode: NoiseMode  # who adds the noise

    @property
    def std(self) -> float:
        """Of the noise on what is seen, per coordinate."""
        if self.mode is NoiseMode.LOCAL:
            return LocalNoise(self.bound, self.noise_std, self.holders).own_std
        return self.holders * self.noise_std

    def privatise(self, units: Tensor, source: Any) -> Tensor:
        """One holder's exact sums [n, D] -> what is seen, float64."""
        bound, s, m = self.bound, self.noise_std, self.holders
        if self.mode is NoiseMode.LOCAL:
            return LocalNoise(bound, s, m).privatise(units, source)
        if self.mode is NoiseMode.CENTRAL:
            return CentralNoise(bound, s, m).noisy_sum([units], source)
        # However few shares are counted on, they add up to the same noise.
        share = MaskedShare(bound, s, m, 0)
        total = share.privatise(units, source)
        for _ in range(m - 1):
            total = total + share.privatise(torch.zeros_like(units), source)
        return total.double() / bound.scale


@dataclass(frozen=True)
class SumsTogether:
    """Several answers about one record, side by side."""

    answers: tuple[Opened, ...]

    def privatise(self, units: Tensor, source: Any) -> Tensor:
        """Exact sums [n, D1 + D2 + ...] -> what is seen of them all."""
        parts = units.split([answer.bound.width for answer in self.answers], -1)
        seen = [a.privatise(part, source) for a, part in zip(self.answers, parts, strict=True)]
        return torch.cat(seen, -1)


@dataclass(frozen=True)
class SumsGame:
    """What is played."""

    mechanism: SumsTogether  # of all answers
    first: Tensor  # the sums of one world, int64 [1, D]
    second: Tensor  # of the other
    weights: Tensor  # how much a difference in each of D numbers tells
    releases: tuple[MechanismRelease, ...]  # what the run books for these answers
    words: str  # which they are

    @property
    def masked(self) -> bool:
        """Whether noise is drawn in bits."""
        return self.mechanism.answers[0].mode is NoiseMode.SECAGG


def sums_game(
    result: Result, releases: Sequence[MechanismRelease], adjacency: Adjacency
) -> SumsGame | None:
    """The game for a run on sums; None where a holder did not answer them all."""
    answers = result.answers or Answers()
    sums = [release for release in releases if release.mechanism.endswith(_SUMS)]
    if not answers.sums_stds or len(sums) != len(answers.sums_stds):
        return None
    opened = opened_sums(result, sums)
    worlds = [_worst_records(answer.bound, adjacency) for answer in opened]
    beside = "" if len(sums) == len(releases) else ". Other answers were not played"
    return SumsGame(
        SumsTogether(opened),
        torch.cat([first for first, _ in worlds], -1),
        torch.cat([second for _, second in worlds], -1),
        torch.cat([_weights(answer) for answer in opened]),
        tuple(sums),
        f": all {len(sums)} sums over records, together{beside}",
    )


def opened_sums(result: Result, sums: Sequence[MechanismRelease]) -> tuple[Opened, ...]:
    """As many sums as the plan asks, with the noise that the result states of each."""
    answers = result.answers or Answers()
    holders = 1 if result.federation is None else result.federation.holders
    mode = NoiseMode(answers.noise or NoiseMode.LOCAL)
    # The first question leaves labels out.
    bounds = [moments_bound(_WIDTH, None), *(_bound_of(release.mechanism) for release in sums[1:])]
    return tuple(
        Opened(bound, std, holders, mode)
        for bound, std in zip(bounds, answers.sums_stds, strict=True)
    )


def _bound_of(mechanism: str) -> Bound:
    if mechanism.endswith(ENERGIES):
        return energies_bound(_WIDTH)
    if mechanism.endswith(GRADIENTS):
        return gradients_bound(_WIDTH, _WIDTH)
    return (products_bound if mechanism.endswith(PRODUCTS) else moments_bound)(_WIDTH, _WIDTH)


def check_noise(result: Result, holder_events: HolderEvents, adjacency: Adjacency) -> Check | None:
    """Whether each sum was booked with what its stated noise costs, or with more.

    A game sees one answer with too little noise only where it is a large part of them all; working
    the cost out again, Δ²/2τ² (Bun and Steinke 2016, Proposition 1.6), sees it always. A holder
    that missed a round may have answered any of the others, so it has to have booked as many sums
    as rounds that it answered.
    """
    stds = (result.answers or Answers()).sums_stds
    if not stds:
        return None
    checked = 0
    for holder, releases in holder_events.items():
        sums = [release for release in releases if release.mechanism.endswith(_SUMS)]
        answered = _answered(result, holder, len(stds))
        if sum(release.rows for release in sums) < answered:
            words = f"{holder} answered {counted(answered, 'sum')}, the events book {len(sums)}"
            return Check("noise", False, words)
        if len(sums) != len(stds):
            continue
        for answer, release in zip(opened_sums(result, sums), sums, strict=True):
            moved = answer.bound.moves[Unit.RECORD][adjacency]
            owed = release.rows * (moved / answer.std) ** 2 / 2
            booked = release.event(Unit.RECORD, adjacency).zcdp_rho
            if booked < owed * (1 - _AGREEMENT):
                words = f"noise of std {answer.std:.6g} on {answer.bound.name} costs ρ = {owed:.6g}"
                return Check("noise", False, f"{words}, the events say {booked:.6g}")
            checked += 1
    words = f"noise of {counted(checked, 'sum')}: the cost is what the noise says"
    return Check("noise", True if checked else None, words)


def _answered(result: Result, holder: str, sums: int) -> int:
    """How many sums a holder has answered, at least; who asks teachers as well does not say."""
    if result.federation is None:
        return sums
    alone = result.answers is not None and result.answers.privacy == MOMENTS
    return min(sums, result.federation.answered_rounds.get(holder, 0)) if alone else 0


def _weights(answer: Opened) -> Tensor:
    counts = answer.bound.counts
    counts = torch.ones(answer.bound.width) if counts is None else counts
    return counts.double() / answer.std**2


def _worst_records(bound: Bound, adjacency: Adjacency) -> tuple[Tensor, Tensor]:
    """What one record adds to the sums in two worlds that lie as far apart as any, [1, D] each."""
    replaced = adjacency is Adjacency.REPLACE
    here, there = torch.eye(_WIDTH, dtype=torch.float64)
    whole, nobody = torch.tensor([FULL_WEIGHT]), torch.zeros(_WIDTH, dtype=torch.float64)
    if bound.name == ENERGIES:
        other, bands = there if replaced else nobody, torch.arange(_WIDTH)
        worlds = [band_energies([(u[None], whole)], bands, _WIDTH) for u in (here, other)]
    elif bound.name == GRADIENTS:
        pairs = ((here, here), (here, -here if replaced else nobody))
        worlds = [gradient_sums([(u[None], r[None], whole)], _WIDTH, _WIDTH) for u, r in pairs]
    elif bound.name == PRODUCTS:
        # The same row in two blocks lies as far apart as two rows can.
        pairs = ((here, 0), (here, 1) if replaced else (nobody, 0))
        worlds = [
            block_products([(u[None], torch.tensor([block]), whole)], _WIDTH, _WIDTH)
            for u, block in pairs
        ]
    else:
        # Without labels two rows at right angles lie furthest apart; in one class u·u' = −1/2,
        # where the proof of `moments_bound` has its worst case.
        classes = None if bound.width == vector_length(_WIDTH, None) else _WIDTH
        opposite = torch.tensor([-0.5, 0.75**0.5], dtype=torch.float64)
        other = (there if classes is None else opposite) if replaced else nobody
        label = torch.tensor([0])
        worlds = [moment_sums([(u[None], label, whole)], _WIDTH, classes) for u in (here, other)]
    return worlds[0][None], worlds[1][None]
