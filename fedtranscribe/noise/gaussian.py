"""The Gaussian mechanism on bounded vectors, at a holder or at a server that holders trust.

Two of three placements of the noise: each holder adds its own (`LocalNoise`), or the server adds it
once to their sum (`CentralNoise`). The third, shares under masks, is `mechanisms.masked`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.noise.bounds import Bound, expect_noise
from fedtranscribe.noise.sources import NoiseSource
from fedtranscribe.privacy.calibrate import RAW_ROUNDING, ROUNDING
from fedtranscribe.privacy.events import Gaussian
from fedtranscribe.privacy.release_plan import MechanismRelease

_GRID_BITS = 8


def grid_of(std: float) -> float:
    """A power of two, 1/256 of the noise's std or finer."""
    # Wide against float64's spacing, yet it adds less than 1e-6 to the noise's std.
    return math.ldexp(1.0, math.frexp(std)[1] - 1 - _GRID_BITS)


def on_grid(noisy: Tensor, std: float) -> Tensor:
    """A float64 sum of values and noise of that std, rounded to multiples of `grid_of(std)`."""
    grid = grid_of(std)
    return (noisy / grid).round_().mul_(grid)


# Answers fit into float16 with room for the far tail of the noise, or are sent as float32.
_HALF_STDS = 16
_LARGEST_HALF = 65_504.0


@dataclass(frozen=True)
class LocalNoise:
    """A holder's bounded vectors plus Gaussian noise: private by themselves.

    Attributes:
        bound: of the vectors.
        noise_std: s, std per coordinate wanted on the mean over holders.
        holders: m, how many holders the noise is planned for.

    Guarantee:
        Sensitivity Δ: proved by the bound, for every unit and adjacency that it names.
        Noise: N(0, m s²) per coordinate (where a number counts c times, of 1/c of that variance),
        hence μ = Δ √n / (√m s) for n vectors that one unit moves, exact for adaptive queries
        (Gaussian DP composes exactly). m is public and never changes.
        Rounding: float64 low bits of value + noise depend on the value, so the sum is rounded to
        the public `grid` before it is released. An edge of a grid cell then moves by a few ulp of
        the value, and a cell is 2⁻⁹ stds wide or more. Rows of norm 1: for stds above 0.01 the
        probability of every answer is within a factor 1 ± 2⁻³⁴ of the rounded Gaussian's,
        post-processing of the exact one. That is 6e-5 in ε for 500,000 coordinates if all of them
        err the same way. Beyond 9 standard deviations (a mass of 3e-19) it is less exact.
        Exact sums are whole numbers of 2^−bits, and noise rounded to such is added modulo 2^64
        without any loss. But the noise is drawn from float64 numbers, some 2⁻⁵³ stds apart around
        zero: of a large std not every whole number can be drawn, so that the last bits of value +
        noise would name the value. So this sum, too, is rounded to the public `grid`, a multiple
        of the unit that divides 2^64: each cell holds 2⁴⁴ numbers or more, and the factor above
        holds for whatever value lies under the noise; 5e-4 in ε for 8.4 million coordinates.
    """

    bound: Bound
    noise_std: float
    holders: int = 1

    def __post_init__(self) -> None:
        """Refuse noise that is none, or more than whole numbers of 64 bits hold."""
        expect_noise(self.noise_std, self.holders)
        self.bound.expect_room(self.own_std)

    @property
    def own_std(self) -> float:
        """Std of the noise on this holder's own vectors: √m s."""
        return math.sqrt(self.holders) * self.noise_std

    @property
    def grid(self) -> float:
        """Released values are multiples of this power of two, about 1/256 of the noise's std."""
        if self.bound.exact:
            return _cell(self.own_std, self.bound) / self.bound.scale
        return grid_of(self.own_std)

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return self.bound.width

    @property
    def dtype(self) -> torch.dtype:
        """Of an answer's values."""
        return torch.float64 if self.bound.exact else torch.float32

    def release(self, rows: int, *, positional_ids: bool) -> MechanismRelease:
        """What `rows` vectors give away; without persistent ids add-remove gives nothing."""

        def cost(moved: float) -> Gaussian:
            return Gaussian(moved * (1 + ROUNDING) / self.own_std, rows)

        return self.bound.release("noisy", rows, cost, positional_ids=positional_ids)

    def privatise(self, values: Tensor, noise: NoiseSource) -> Tensor:
        """Add the noise.

        Args:
            values: this holder's vectors [n, D]; bounded once more, so that no caller can break
                the sensitivity. Exact sums are int64, see `Bound.bits`.
            noise: OS entropy, or a seeded source in tests.

        Returns:
            [n, D] of `dtype`, multiples of `grid`; float32 is rounded to what float16 holds where
            the noise is small enough for it. Rounding after the noise is post-processing.
        """
        if self.bound.exact:
            return _noisy_units(self.bound.units(values), self.own_std, noise, self.bound)
        return _noisy(self.bound.project(values), self.own_std, noise)


@dataclass(frozen=True)
class CentralNoise:
    """A holder's bounded vectors for a server that adds the noise itself, and what it adds.

    Attributes:
        bound: of the vectors.
        noise_std: s, std per coordinate on the mean over all m holders, as it was planned.
        holders: m.

    Guarantee:
        Against the server: NONE. Against everybody who sees only what it gives out: it adds
        N(0, (m s)²) to the sum over holders, however many answered; one unit moves that sum by the
        bound's Δ, whichever others answer, so μ = Δ √n / (m s) for n vectors. Noise is never
        shared out over those that did not answer (noise for five on a sum of four, divided by five
        shares, costs 13.2 instead of 10); the sum is divided by a public number. The holder
        books that, under the trust which its own policy states.
        A sum is released once: `rounds.combining` names the noise by query, plan and raw answers,
        and `KeyedNoise` draws the same again for a copy of the run.
        Rounding: raw float32 vectors are within `calibrate.RAW_ROUNDING`; the noisy sum is on a
        public grid, see `LocalNoise`. Exact sums are int64 throughout.
    """

    bound: Bound
    noise_std: float
    holders: int = 1

    def __post_init__(self) -> None:
        """Refuse noise that is none, or more than whole numbers of 64 bits hold."""
        expect_noise(self.noise_std, self.holders)
        self.bound.expect_room(self.sum_std)

    @property
    def sum_std(self) -> float:
        """Std of the noise on the sum, m s."""
        return self.holders * self.noise_std

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return self.bound.width

    @property
    def dtype(self) -> torch.dtype:
        """Of raw values."""
        return torch.int64 if self.bound.exact else torch.float32

    def release(self, rows: int, *, positional_ids: bool) -> MechanismRelease:
        """What `rows` vectors give away about a holder, once the server has added its noise."""
        room = 0.0 if self.bound.exact else RAW_ROUNDING

        def cost(moved: float) -> Gaussian:
            return Gaussian((moved + room) * (1 + ROUNDING) / self.sum_std, rows)

        return self.bound.release("central", rows, cost, positional_ids=positional_ids)

    def raw(self, values: Tensor) -> Tensor:
        """A holder's vectors [n, D], bounded once more; of `dtype`, NOT private."""
        whole = self.bound.units if self.bound.exact else self.bound.project
        return whole(values).to(self.dtype)

    def noisy_sum(self, raw: Sequence[Tensor], noise: NoiseSource) -> Tensor:
        """The private sum of raw vectors, one [n, D] per holder that answered.

        Vectors are bounded again: no holder may answer louder than another. Exact sums cannot be,
        so they are added modulo 2^64, where nobody's vector can round away anybody else's.

        Returns:
            float32, of exact sums float64.

        Raises:
            ConfigError: nobody answered, or more holders than planned for.
        """
        if not 1 <= len(raw) <= self.holders:
            raise ConfigError(f"Expected 1 to {self.holders} raw answers, got {len(raw)}.")
        if self.bound.exact:
            total = torch.stack([self.bound.units(values) for values in raw]).sum(0)
            return _noisy_units(total, self.sum_std, noise, self.bound)
        total = torch.stack([self.bound.project(values) for values in raw]).sum(0)
        return _noisy(total, self.sum_std, noise)


def _noisy(values: Tensor, std: float, noise: NoiseSource) -> Tensor:
    """Bounded vectors and their noise, float32."""
    noisy = on_grid(values + noise.gaussian(values.shape, std), std)
    # Decided by the public std, so that it reveals nothing; the clamp is post-processing.
    if _HALF_STDS * std < _LARGEST_HALF:
        noisy = noisy.clamp(-_LARGEST_HALF, _LARGEST_HALF).half()
    return noisy.float()


def _noisy_units(units: Tensor, std: float, noise: NoiseSource, bound: Bound) -> Tensor:
    """Exact sums and their noise, both in whole units, on the grid, as real numbers, float64."""
    drawn = noise.gaussian(units.shape, 1.0) * bound.spread(std) * bound.scale
    cell = _cell(std, bound)
    # The nearest multiple of a power of two, modulo 2^64 as everything before it.
    noisy = (units + drawn.round().to(torch.int64) + cell // 2) & -cell
    return noisy.double() / bound.scale


def _cell(std: float, bound: Bound) -> int:
    """Units in a cell of the grid of exact sums: a power of two, by the smallest noise of all."""
    return max(1, int(grid_of(float(bound.spread(std).min()) * bound.scale)))
