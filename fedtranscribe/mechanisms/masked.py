"""Bounded vectors on an integer grid, with a share of discrete Gaussian noise: for masked sums.

Each holder quantises its vectors, unless they are whole numbers already, adds its own share of the
noise in exact integers, and hides the result behind the masks of `fedtranscribe.secagg`; what the
server decodes is the sum over holders with all of the noise, once.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.mechanisms.bits import BitSource
from fedtranscribe.mechanisms.bounded import Bound, expect_noise
from fedtranscribe.mechanisms.discrete_gaussian import LARGEST_VARIANCE, discrete_gaussian
from fedtranscribe.privacy.calibrate import ROUNDING
from fedtranscribe.privacy.release_plan import Release
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.privacy.zcdp import ZeroConcentrated, discrete_sum_rho

_FINEST, _FINE_ENOUGH = 24, 20
_DEVIATIONS = 16
# A double holds 52 bits of a decoded sum and its sign exactly.
_LIMITS = {32: 2**31, 64: 2**52}


@dataclass(frozen=True)
class Grid:
    """Integers for numbers: multiples of 2^−bits, modulo 2^word.

    Attributes:
        bits: after the binary point.
        word: of a residue that is sent, 32 or 64.
    """

    bits: int
    word: int

    @classmethod
    def choose(cls, noise_std: float, holders: int, tolerated: int) -> Self:
        """The finest useful grid on which a whole sum fits, from public numbers only.

        Guarantee:
            Vectors of norm 1 and noise of 16 standard deviations fit: per decoded value the chance
            of wrapping around is at most 2e^{−128} (the noise is sub-Gaussian). It costs accuracy
            only: a reduction modulo 2^word is post-processing of the sum.

        Raises:
            ConfigError: the noise is too large for any grid.
        """
        tail = _DEVIATIONS * math.sqrt(holders)
        reach = holders + tail * holders * noise_std / math.sqrt(holders - tolerated)
        # Rounding the variance up adds less than `tail` units.
        # The exponent of a double is exact: every holder finds the same grid.
        fits = {w: math.frexp((top - tail) / reach)[1] - 1 for w, top in _LIMITS.items()}
        word = 32 if fits[32] >= _FINE_ENOUGH else 64
        if fits[word] < 1:
            raise ConfigError(f"Expected noise_std={noise_std} that leaves a grid; lower it.")
        return cls(min(fits[word], _FINEST), word)

    @property
    def scale(self) -> int:
        """Units of the grid in 1."""
        return 2**self.bits

    def quantise(self, values: Tensor) -> Tensor:
        """The nearest multiples of 2^−bits in units of it, int64; halves go to the even one.

        Guarantee:
            Rounding moves each of D coordinates by at most ½, hence a vector by at most √D/2, and
            two vectors apart by at most √D: ‖q(x) − q(y)‖ ≤ scale ‖x − y‖ + √D. `scale` is a power
            of two, so that nothing else is rounded. (Randomised rounding would have no bias, but
            twice this bound; the bias is at most half a unit.)
        """
        return (values.double() * self.scale).round().to(torch.int64)

    def decode(self, total: NDArray[np.unsignedinteger]) -> Tensor:
        """A sum out of its residues, float64."""
        whole, signed = (np.uint32, np.int32) if self.word == 32 else (np.uint64, np.int64)
        values = total.astype(whole).view(signed).astype(np.float64)
        return torch.from_numpy(values / self.scale)


def residues(values: Tensor, word: int) -> NDArray[np.unsignedinteger]:
    """int64 values modulo 2^word, as masks are added to them."""
    unsigned = values.contiguous().numpy().view(np.uint64)
    return unsigned.astype(np.uint32 if word == 32 else np.uint64)


# ---------------------------------------------------------------- the mechanism


@dataclass(frozen=True)
class MaskedShare:
    """A holder's vectors in integers with its share of the noise: `secagg` mode.

    Attributes:
        bound: of the vectors; of norm 1 at most, or exact sums.
        noise_std: s, std per coordinate wanted on the mean over all m holders.
        holders: m.
        tolerated: t, how many of the m shares of noise may be missing from the sum or known to
            who sees it, together.

    Guarantee:
        Against who sees sums of m − t or more holders' answers and knows the noise in all but
        m − t of them, at most; units and adjacencies are those of the bound.
        Sensitivity: one unit moves a vector by at most the bound's Δ; on the grid by
        scale·Δ·(1 + 1e-6) + √D units (`Grid.quantise`), whatever vector comes in: it is bounded
        once more before, and what is not finite is zero. Exact sums are on the grid from the start:
        by scale·Δ units, without a √D, because nothing is rounded.
        Noise: N_Z(0, σ²) per coordinate, σ² = ⌈(m s scale)²/(m−t)⌉, so that m − t holders
        together add the planned variance (m s scale)² or more, never less. A coordinate that
        counts c times has ⌈σ²/c⌉.
        Cost: ρ = Δ²/(2(m−t)σ²) + τD per vector (`discrete_sum_rho`), whichever others answer;
        the sum over others' vectors is a constant under this holder's adjacency. A holder that does
        not answer takes its vectors away and nothing else: nothing is divided by who answered.
        Wrap-around: exact sums are residues modulo 2^64 always, so that the number of records need
        not be known; beyond 2²⁷ records in all they wrap, which costs accuracy only.
        Against who sees ONE answer without its mask: nothing that is booked. Masks are what
        keeps it to sums; a query's answer may enter one sum only, for ever.
    """

    bound: Bound
    noise_std: float
    holders: int
    tolerated: int

    def __post_init__(self) -> None:
        """Refuse noise that is none, or that nobody would be left to add."""
        expect_noise(self.noise_std, self.holders)
        if not 0 <= self.tolerated < self.holders:
            raise ConfigError(
                f"Expected tolerated={self.tolerated} between 0 and {self.holders - 1}, "
                f"for {self.holders} holders."
            )
        if self.own_variance > LARGEST_VARIANCE:
            raise ConfigError(
                f"Expected noise_std={self.noise_std} that whole numbers can carry; ask for a "
                "larger epsilon."
            )

    dtype = torch.int64

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return self.bound.width

    @property
    def shares(self) -> int:
        """How many holders' noise is counted on, m − t."""
        return self.holders - self.tolerated

    @property
    def grid(self) -> Grid:
        """Where released values lie."""
        if self.bound.bits is not None:
            return Grid(self.bound.bits, 64)
        return Grid.choose(self.noise_std, self.holders, self.tolerated)

    @property
    def own_variance(self) -> int:
        """σ² of this holder's noise in squared units of the grid, rounded up."""
        total = (Fraction(self.noise_std) * self.holders * self.grid.scale) ** 2
        return max(1, math.ceil(total / self.shares))

    def variance_of(self, counts: int) -> int:
        """That on a coordinate that counts so often, rounded up."""
        return -(-self.own_variance // counts)

    def sensitivity(self, unit: Unit, adjacency: Adjacency = Adjacency.REPLACE) -> float:
        """How far one unit moves a vector of this holder's integers, l2, in units of the grid."""
        return self._on_grid(self.bound.moves[unit][adjacency])

    def rho(self, unit: Unit, adjacency: Adjacency = Adjacency.REPLACE) -> float:
        """ρ of one vector."""
        return self._rho(self.bound.moves[unit][adjacency])

    def release(self, rows: int, *, positional_ids: bool) -> Release:
        """What the sums of `rows` vectors give away about this holder."""

        def cost(moved: float) -> ZeroConcentrated:
            return ZeroConcentrated(self._rho(moved), rows)

        return self.bound.release("secagg", rows, cost, positional_ids=positional_ids)

    def privatise(self, values: Tensor, bits: BitSource) -> Tensor:
        """Bound once more, quantise, add this holder's share of the noise.

        Args:
            values: this holder's vectors [n, D].
            bits: OS entropy, or a seeded source in tests.

        Returns:
            int64 [n, D] in units of the grid; NOT private until it is summed with others'.
        """
        if values.shape[-1] != self.bound.width:
            raise ConfigError(
                f"Expected vectors of {self.bound.width} numbers, got {values.shape[-1]}."
            )
        if self.bound.exact:
            whole = self.bound.units(values)
        else:
            whole = self.grid.quantise(self.bound.project(values))
        return whole + self._noise(len(whole), bits)

    def _noise(self, rows: int, bits: BitSource) -> Tensor:
        """This holder's share of it, int64 [rows, D]."""
        counts = self.bound.counts
        if counts is None:
            drawn = discrete_gaussian(rows * self.width, self.own_variance, bits)
            return torch.from_numpy(drawn).reshape(rows, self.width)
        noise = torch.empty(rows, self.width, dtype=torch.int64)
        for each in counts.unique().tolist():
            there = (counts == each).nonzero().flatten()
            drawn = discrete_gaussian(rows * len(there), self.variance_of(each), bits)
            noise[:, there] = torch.from_numpy(drawn).reshape(rows, len(there))
        return noise

    def _on_grid(self, moved: float) -> float:
        rounded = 0.0 if self.bound.exact else math.sqrt(self.bound.width)
        return self.grid.scale * moved * (1 + ROUNDING) + rounded

    def _rho(self, moved: float) -> float:
        counts = self.bound.counts
        least = self.variance_of(1 if counts is None else int(counts.max()))
        moved_on_grid = self._on_grid(moved)
        return discrete_sum_rho(
            moved_on_grid, self.own_variance, self.shares, self.bound.width, least=least
        )


def masked_noise_std(
    rho: float, rows: int, bound: Bound, unit: Unit, holders: int, tolerated: int
) -> float:
    """s with which `rows` vectors of `MaskedShare` cost at most ρ together, found by bisection.

    Raises:
        ConfigError: a value is out of range.
    """
    if rows < 1:
        raise ConfigError(f"Expected rows={rows} >= 1.")
    allowed = rho / rows

    def costs(noise_std: float) -> float:
        return MaskedShare(bound, noise_std, holders, tolerated).rho(unit, Adjacency.ZERO_OUT)

    lower = upper = 2.0**-20
    while costs(upper) > allowed:
        lower, upper = upper, 2 * upper
    while upper - lower > 1e-9 * upper:
        middle = (lower + upper) / 2
        lower, upper = (middle, upper) if costs(middle) > allowed else (lower, middle)
    return upper
