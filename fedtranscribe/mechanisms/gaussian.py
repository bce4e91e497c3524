"""The Gaussian mechanism on mean rows: noisy gradients (DPSD Eq. 3) and noisy votes.

Two placements of the noise: each holder adds its own (`NoisyMeanRows`), or a server that the
holders trust adds it once to their sum (`RawMeanRows`, then `CentralNoise`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.exchange import AnswerKind
from fedtranscribe.mechanisms.noise import NoiseSource
from fedtranscribe.mechanisms.normalize import clip_rows, simplex_rows
from fedtranscribe.mechanisms.public_grid import grid_of, on_grid
from fedtranscribe.privacy.calibrate import EnsembleLayout, NoiseMode, RowAnswer, row_mu
from fedtranscribe.privacy.events import Event, Gaussian
from fedtranscribe.privacy.release_plan import Release
from fedtranscribe.privacy.units import Adjacency, Unit

_WORDS = {NoiseMode.LOCAL: "noisy", NoiseMode.CENTRAL: "central"}
# Answers fit into float16 with room for the far tail of the noise, or are sent as float32.
_HALF_STDS = 16
_LARGEST_HALF = 65_504.0


@dataclass(frozen=True)
class MeanRows:
    """A holder's mean over its shards of bounded rows, wherever the noise comes from.

    Attributes:
        layout: teachers over all holders, and holders.
        noise_std: s, std per coordinate wanted on the mean over holders.
        answer: what a row is: a unit gradient (diameter 2) or a vote (diameter √2).
    """

    mode: ClassVar[NoiseMode]
    layout: EnsembleLayout
    noise_std: float
    answer: RowAnswer

    def __post_init__(self) -> None:
        """Refuse noise that is none."""
        if not (self.noise_std > 0 and math.isfinite(self.noise_std)):
            raise ConfigError(f"Expected noise_std={self.noise_std} > 0 and finite.")

    @property
    def kind(self) -> AnswerKind:
        """The only kind of query that this answers."""
        return AnswerKind(self.answer.value)

    def release(self, rows: int, *, positional_ids: bool) -> Release:
        """What `rows` answers give away; without persistent ids add-remove gives nothing."""
        adjacencies = [a for a in Adjacency if a is not Adjacency.ADD_REMOVE or not positional_ids]
        costs: dict[Unit, dict[Adjacency, Event]] = {}
        for unit in Unit:
            mu = row_mu(self.noise_std, self.layout, unit, self.answer, self.mode)
            # A whole holder leaves or joins without moving anybody else's records.
            known = list(Adjacency) if unit is Unit.HOLDER else adjacencies
            costs[unit] = {adjacency: Gaussian(mu, rows) for adjacency in known}
        return Release(f"{_WORDS[self.mode]}-mean-{self.answer.value}s", rows, costs)


@dataclass(frozen=True)
class NoisyMeanRows(MeanRows):
    """A holder's mean over its shards of bounded rows, plus Gaussian noise: private by itself.

    Guarantee:
        Unit: record or holder. Adjacency: replace, zero-out, and add-remove where records have
        persistent ids, so that no other record changes its shard.
        Sensitivity: a record belongs to one shard of p. Its teacher may change at will, so that
        shard's row moves by at most the diameter D of its set, and the holder's mean by D/p; a
        whole holder moves it by D. D = 2 in the unit ball. In {v ≥ 0, Σv ≤ 1} it is √2: for two
        such rows ‖u − v‖² ≤ ‖u‖² + ‖v‖² ≤ ‖u‖₁ + ‖v‖₁ ≤ 2, because u·v ≥ 0; gathering some of
        the coordinates stays inside the set.
        Noise: N(0, m s²) per coordinate for m holders, hence μ = D √n / (√m p s) for n rows of
        one record, exact for adaptive queries (Gaussian DP composes exactly). Adding or removing
        a holder presumes that an absent one answers zero rows: m is public and never changes.
        Rounding: float64 low bits of row + noise depend on the row, so the sum is rounded to the
        public `grid` before it is released. An edge of a grid cell then moves by a few ulp, and
        a cell is 2⁻⁹ stds wide or more: for stds above 0.01 the probability of every answer is
        within a factor 1 ± 2⁻³⁴ of the rounded Gaussian's, post-processing of the exact one. That
        is 6e-5 in ε for 500,000 coordinates if all of them err the same way. Beyond 9 standard
        deviations (a mass of 3e-19) it is less exact.
    """

    mode = NoiseMode.LOCAL

    @property
    def own_std(self) -> float:
        """Std of the noise on this holder's own row: √m s."""
        return math.sqrt(self.layout.holders) * self.noise_std

    @property
    def grid(self) -> float:
        """Released values are multiples of this power of two, about 1/256 of the noise's std."""
        return grid_of(self.own_std)

    def privatise(self, rows: Tensor, noise: NoiseSource) -> Tensor:
        """Add the noise.

        Args:
            rows: this holder's mean rows [n, k]; bounded once more, so that no caller can break
                the sensitivity.
            noise: OS entropy, or a seeded source in tests.

        Returns:
            float32 [n, k], multiples of `grid`, rounded to what float16 holds where the noise
            is small enough for it. Rounding after the noise is post-processing.
        """
        return _noisy(_bounded(rows, self.answer), self.own_std, noise)


@dataclass(frozen=True)
class RawMeanRows(MeanRows):
    """A holder's mean rows for a server that adds the noise itself: `central` mode.

    Guarantee:
        Against the server: NONE. Against everybody who sees only what a server that runs
        `CentralNoise` gives out: it adds N(0, (m s)²) to the sum over holders, which one record
        moves by D/p and one holder by D; hence μ = D √n / (m p s), whoever else answers. The
        holder books that, under the trust which its own policy states.
    """

    mode = NoiseMode.CENTRAL

    def privatise(self, rows: Tensor, noise: NoiseSource) -> Tensor:
        """Bound the rows [n, k] once more; float32 [n, k], NOT private.

        Rounding to float32 is within `calibrate.RAW_ROUNDING`.
        """
        return _bounded(rows, self.answer).float()


@dataclass(frozen=True)
class CentralNoise:
    """What a trusted server does to raw answers before anything else: sum, noise, mean.

    Attributes:
        noise_std: s, as it was planned for all m holders.
        holders: m.
        answer: what a row is.

    Guarantee:
        That of `RawMeanRows`, for every holder. The noise on the sum is N(0, (m s)²) however many
        holders answered: it is never shared out over those that did not (noise for five on a sum
        of four, divided by five shares, costs 13.2 instead of 10). The divisor is public.
    """

    noise_std: float
    holders: int
    answer: RowAnswer

    @property
    def sum_std(self) -> float:
        """Std of the noise on the sum, m s."""
        return self.holders * self.noise_std

    def noisy_mean(self, raw: Sequence[Tensor], noise: NoiseSource) -> Tensor:
        """The private mean of raw rows, one [n, k] per holder that answered.

        Rows are bounded again: no holder may answer louder than another.

        Raises:
            ConfigError: nobody answered, or more holders than planned for.
        """
        if not 1 <= len(raw) <= self.holders:
            raise ConfigError(f"Expected 1 to {self.holders} raw answers, got {len(raw)}.")
        total = torch.stack([_bounded(rows, self.answer) for rows in raw]).sum(0)
        return _noisy(total, self.sum_std, noise) / len(raw)


def _bounded(rows: Tensor, answer: RowAnswer) -> Tensor:
    return clip_rows(rows) if answer is RowAnswer.GRADIENT else simplex_rows(rows)


def _noisy(values: Tensor, std: float, noise: NoiseSource) -> Tensor:
    noisy = on_grid(values + noise.gaussian(values.shape, std), std)
    # Decided by the public std, so that it tells nothing; the clamp is post-processing.
    if _HALF_STDS * std < _LARGEST_HALF:
        noisy = noisy.clamp(-_LARGEST_HALF, _LARGEST_HALF).half()
    return noisy.float()
