"""The distinguishing game on sums over records: all answers whose noise is stated, together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedtranscribe.evaluation.audit.findings import Check
from fedtranscribe.mechanisms import (
    MOMENTS,
    Bound,
    CentralNoise,
    LocalNoise,
    MaskedShare,
    moment_sums,
    moments_bound,
)
from fedtranscribe.mechanisms.blocks import (
    PRODUCTS,
    SQUARES,
    block_products,
    products_bound,
    square_sums,
    squares_bound,
)
from fedtranscribe.mechanisms.moments import FULL_WEIGHT
from fedtranscribe.privacy.release_plan import Release
from fedtranscribe.privacy.units import Adjacency, NoiseMode, Unit
from fedtranscribe.result import Result
from fedtranscribe.result_parts import Answers

# Only the coordinates in which two records differ tell anything: the others are noise alone.
_WIDTH = 2
# Whoever booked an answer added whole numbers and floats in another order.
_AGREEMENT = 1e-9
_MOMENTS_ANSWERS = ("answer on second moments alone", "answer on sums by class")


@dataclass(frozen=True)
class Opened:
    """The sum over holders as whoever may see it sees it, in real numbers; the others add nothing.

    Attributes:
        bound: of a holder's vectors.
        noise_std: as a result names it.
        holders: that the run had.
        mode: who adds the noise.
    """

    bound: Bound
    noise_std: float
    holders: int
    mode: NoiseMode

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
class Together:
    """Several answers about one record, side by side."""

    answers: tuple[Opened, ...]

    def privatise(self, units: Tensor, source: Any) -> Tensor:
        """Exact sums [n, D1 + D2 + ...] -> what is seen of them all."""
        parts = units.split([answer.bound.width for answer in self.answers], -1)
        seen = [a.privatise(part, source) for a, part in zip(self.answers, parts, strict=True)]
        return torch.cat(seen, -1)


@dataclass(frozen=True)
class SumsGame:
    """What is played.

    Attributes:
        mechanism: of all answers.
        first: the sums of one world, int64 [1, D].
        second: of the other.
        weights: how much a difference in each of D numbers tells.
        releases: what the run books for these answers.
        words: which they are.
    """

    mechanism: Together
    first: Tensor
    second: Tensor
    weights: Tensor
    releases: tuple[Release, ...]
    words: str

    @property
    def masked(self) -> bool:
        """Whether noise is drawn in bits."""
        return self.mechanism.answers[0].mode is NoiseMode.SECAGG


def sums_game(result: Result, releases: Sequence[Release], adjacency: Adjacency) -> SumsGame | None:
    """The game for a run on sums; None where it stopped before there was a noise to play on.

    Args:
        result: of the run.
        releases: of one holder, in their order.
        adjacency: of the claim.
    """
    answers = result.answers or Answers()
    moments = [release for release in releases if release.mechanism.endswith(MOMENTS)]
    shown = [release for release in releases if release.mechanism.endswith((PRODUCTS, SQUARES))]
    if len(moments) != len(_MOMENTS_ANSWERS) or not answers.noise_std:
        return None
    if len(moments) + len(shown) != len(releases):
        return None  # teachers were asked as well, and the noise that is stated is theirs
    stds = result.mixture.noise_stds if result.mixture is not None else ()
    if len(stds) != len(shown):  # a run that stopped within its mixture
        stds, shown = (), []
    bounds = [moments_bound(_WIDTH, _WIDTH)]
    bounds += [
        squares_bound(_WIDTH) if r.mechanism.endswith(SQUARES) else products_bound(_WIDTH, _WIDTH)
        for r in shown
    ]
    holders = 1 if result.federation is None else result.federation.holders
    mode = NoiseMode(answers.noise or NoiseMode.LOCAL)
    opened = tuple(
        Opened(bound, std, holders, mode)
        for bound, std in zip(bounds, (answers.noise_std, *stds), strict=True)
    )
    worlds = [_worst_records(answer.bound, adjacency) for answer in opened]
    beside = f" and all {len(shown)} of the mixture, together" if shown else ""
    return SumsGame(
        Together(opened),
        torch.cat([first for first, _ in worlds], -1),
        torch.cat([second for _, second in worlds], -1),
        torch.cat([_weights(answer) for answer in opened]),
        (moments[-1], *shown),
        f": the {_MOMENTS_ANSWERS[-1]}{beside}. The {_MOMENTS_ANSWERS[0]} was not played",
    )


def check_noise(game: SumsGame, adjacency: Adjacency) -> Check:
    """Whether each answer was booked with what its stated noise costs, or with more.

    A game sees one answer with too little noise only where it is a large part of them all; working
    the cost out again, Δ²/2τ² (Bun and Steinke 2016, Proposition 1.6), sees it always.

    Args:
        game: of the run.
        adjacency: of the claim.
    """
    for answer, release in zip(game.mechanism.answers, game.releases, strict=True):
        owed = (answer.bound.moves[Unit.RECORD][adjacency] / answer.std) ** 2 / 2
        booked = release.event(Unit.RECORD, adjacency).zcdp_rho
        if booked < owed * (1 - _AGREEMENT):
            words = f"noise of std {answer.std:.6g} on {answer.bound.name} costs ρ = {owed:.6g}"
            return Check("noise", False, f"{words}, the events say {booked:.6g}")
    return Check("noise", True, f"{len(game.releases)} answers cost what their noise says")


def _weights(answer: Opened) -> Tensor:
    counts = answer.bound.counts
    counts = torch.ones(answer.bound.width) if counts is None else counts
    return counts.double() / answer.std**2


def _worst_records(bound: Bound, adjacency: Adjacency) -> tuple[Tensor, Tensor]:
    """What one record adds to the sums in two worlds that lie as far apart as any, [1, D] each."""
    replaced = adjacency is Adjacency.REPLACE
    here, there = torch.eye(_WIDTH, dtype=torch.float64)
    whole, nobody = torch.tensor([FULL_WEIGHT]), torch.zeros(_WIDTH, dtype=torch.float64)
    if bound.name == SQUARES:
        other = there if replaced else nobody
        worlds = [square_sums([(u[None], whole)], _WIDTH) for u in (here, other)]
    elif bound.name == PRODUCTS:
        # The same row in two blocks lies as far apart as two rows can.
        pairs = ((here, 0), (here, 1) if replaced else (nobody, 0))
        worlds = [
            block_products([(u[None], torch.tensor([block]), whole)], _WIDTH, _WIDTH)
            for u, block in pairs
        ]
    else:
        # u·u' = −1/2 in the same class, where the proof of `moments_bound` has its worst case.
        opposite = torch.tensor([-0.5, 0.75**0.5], dtype=torch.float64)
        other = opposite if replaced else nobody
        label = torch.tensor([0])
        worlds = [moment_sums([(u[None], label, whole)], _WIDTH, _WIDTH) for u in (here, other)]
    return worlds[0][None], worlds[1][None]
