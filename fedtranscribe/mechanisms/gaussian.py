"""The Gaussian mechanism on mean rows: noisy gradients (DPSD Eq. 3) and noisy votes."""

import math
from dataclasses import dataclass

from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.exchange import AnswerKind
from fedtranscribe.mechanisms.noise import NoiseSource
from fedtranscribe.mechanisms.normalize import clip_rows, simplex_rows
from fedtranscribe.privacy.calibrate import EnsembleLayout, NoiseMode, RowAnswer, row_mu
from fedtranscribe.privacy.events import Event, Gaussian, Release
from fedtranscribe.privacy.units import Adjacency, Unit

_GRID_BITS = 8


@dataclass(frozen=True)
class NoisyMeanRows:
    """A holder's mean over its shards of bounded rows, plus Gaussian noise: private by itself.

    Attributes:
        layout: teachers over all holders, and holders.
        noise_std: s, std per coordinate wanted on the mean over holders.
        answer: what a row is: a unit gradient (diameter 2) or a vote (diameter √2).

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

    @property
    def own_std(self) -> float:
        """Std of the noise on this holder's own row: √m s."""
        return math.sqrt(self.layout.holders) * self.noise_std

    @property
    def grid(self) -> float:
        """Released values are multiples of this power of two, about 1/256 of the noise's std."""
        # Wide against float64's spacing, yet it adds less than 1e-6 to the noise's std.
        return math.ldexp(1.0, math.frexp(self.own_std)[1] - 1 - _GRID_BITS)

    def release(self, rows: int, *, positional_ids: bool) -> Release:
        """What `rows` answers give away; without persistent ids add-remove gives nothing."""
        adjacencies = [a for a in Adjacency if a is not Adjacency.ADD_REMOVE or not positional_ids]
        costs: dict[Unit, dict[Adjacency, Event]] = {}
        for unit in Unit:
            mu = row_mu(self.noise_std, self.layout, unit, self.answer, NoiseMode.LOCAL)
            # A whole holder leaves or joins without moving anybody else's records.
            known = list(Adjacency) if unit is Unit.HOLDER else adjacencies
            costs[unit] = {adjacency: Gaussian(mu, rows) for adjacency in known}
        return Release(f"noisy-mean-{self.answer.value}s", rows, costs)

    def privatise(self, rows: Tensor, noise: NoiseSource) -> Tensor:
        """Add the noise.

        Args:
            rows: this holder's mean rows [n, k]; bounded once more, so that no caller can break
                the sensitivity.
            noise: OS entropy, or a seeded source in tests.

        Returns:
            float32 [n, k], multiples of `grid`. Rounding after the noise is post-processing.
        """
        bounded = clip_rows(rows) if self.answer is RowAnswer.GRADIENT else simplex_rows(rows)
        noisy = bounded + noise.gaussian(bounded.shape, self.own_std)
        return ((noisy / self.grid).round() * self.grid).float()
