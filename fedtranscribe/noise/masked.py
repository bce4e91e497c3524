"""Bounded vectors on an integer grid, with a share of discrete Gaussian noise: for masked sums.

Each holder quantises its vectors, unless they are whole numbers already, adds its own share of the
noise in exact integers, and hides the result behind the masks of `fedtranscribe.secagg`; what the
server decodes is the sum over holders with all of the noise, once.
"""

import math
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.noise.bounds import Bound, expect_noise
from fedtranscribe.noise.sources import BitSource
from fedtranscribe.privacy.calibrate import ROUNDING
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.privacy.zcdp import ZeroConcentrated, discrete_sum_rho

LARGEST_VARIANCE = 2**96
"""Of noise in squared units."""
_CLOSE = 2.0**-32
_PEAK = Fraction(5, 4)


def discrete_gaussian(count: int, variance: int, bits: BitSource) -> NDArray[np.int64]:
    """Independent draws from N_Z(0, variance): P(x) proportional to exp(−x² / (2 variance)).

    Args:
        count: how many.
        variance: σ², a whole number of squared units, 1 to 2⁹⁶. The variance of the draws is
            σ²(1 − η) with 0 ≤ η ≤ 80 σ² e^{−2π²σ²}: 2e-7 at σ = 1, nothing from σ = 2 on.
        bits: where the randomness comes from.

    Guarantee:
        Exact, given uniform bits. Rejection sampling (Canonne, Kamath and Steinke 2020 use the
        discrete Laplace law, here it is a simpler staircase): with w = ⌈σ⌉ propose x = ±(wv + u),
        v ≥ 0 with probability 2^{−v−1} (the zeros at the end of uniform bits), u uniform in
        [0, w), a fair sign, and −0 refused; every x then has one way to come up, of probability
        2^{−v}/4w. It is accepted with probability p = 2^v exp(−x²/2σ²) / (5/4), whence accepted
        draws follow exp(−x²/2σ²). It is a probability: as w ≥ σ, 2^v exp(−x²/2σ²) ≤
        2^v e^{−v²/2}, whose largest value is 2/√e = 1.213, at v = 1.
        "With probability p" is U < p for a uniform real number U, of which 64 bits are drawn
        first. p is found in doubles within 2⁻⁴⁰ (numpy's exp errs by a few ulp, p(1 + x²/2σ²) ≤
        4); where |U − p| could be smaller than 2⁻³² the comparison is made again with exact
        integers and correctly rounded decimals, and with as many more bits of U as it takes. So
        no rounding decides anything.
        What time it takes depends on the noise drawn, not on the row; a server sees it only as
        part of the time that the teachers take.

    Raises:
        ConfigError: the variance is out of range.
    """
    if not 1 <= variance <= LARGEST_VARIANCE:
        raise ConfigError(f"Expected variance={variance} between 1 and 2^96 squared units.")
    drawn = np.empty(count, dtype=np.int64)
    have = 0
    while have < count:
        # About one proposal in two is accepted.
        accepted = _accepted(2 * (count - have) + 64, variance, bits)[: count - have]
        drawn[have : have + len(accepted)] = accepted
        have += len(accepted)
    return drawn


def _accepted(proposals: int, variance: int, bits: BitSource) -> NDArray[np.int64]:
    width = math.isqrt(variance - 1) + 1
    words = bits.words(proposals)
    halvings = _trailing_zeros(words >> np.uint64(1), bits)
    steps = bits.words(proposals)
    # Words beyond the last whole multiple would favour small remainders.
    fair = steps <= np.uint64(2**64 // width * width - 1)
    size = halvings * width + (steps % np.uint64(width)).astype(np.int64)
    minus = (words & np.uint64(1)).astype(bool)
    uniform = bits.words(proposals)

    x = size.astype(np.float64)
    p = np.ldexp(np.exp(x * x / (-2.0 * variance)), halvings) / float(_PEAK)
    gap = p - uniform.astype(np.float64) * 2.0**-64
    below = gap > 0
    for i in np.flatnonzero(np.abs(gap) < _CLOSE):
        below[i] = _is_below(int(uniform[i]), int(halvings[i]), int(size[i]), variance, bits)
    keep = below & fair & ~(minus & (size == 0))
    return np.where(minus, -size, size)[keep]


def _trailing_zeros(words: NDArray[np.uint64], bits: BitSource) -> NDArray[np.int64]:
    """Zeros at the end of endless uniform bits, of which 63 are in each word."""
    lowest = words & (~words + np.uint64(1))
    zeros = (np.frexp(lowest.astype(np.float64))[1] - 1).astype(np.int64)
    for i in np.flatnonzero(words == 0):
        zeros[i] = 63 + _trailing_zeros(bits.words(1) >> np.uint64(1), bits)[0]
    return zeros


def _is_below(uniform: int, halvings: int, size: int, variance: int, bits: BitSource) -> bool:
    """Whether a uniform real number with these first 64 bits lies below p; see the proof above."""
    length, digits = 64, 40
    while True:
        with localcontext(Context(prec=digits)):
            power = (Decimal(-(size**2)) / Decimal(2 * variance)).exp()
        # Rounding the quotient moves e^{−y} by at most y e^{−y} < ½ of 10^{1−digits}, the
        # correctly rounded exponential by as much again.
        factor = 2**halvings / _PEAK
        p, slack = factor * Fraction(power), factor * Fraction(1, 10 ** (digits - 2))
        if Fraction(uniform + 1, 2**length) <= p - slack:
            return True
        if Fraction(uniform, 2**length) >= p + slack:
            return False
        uniform = uniform << 64 | int(bits.words(1)[0])
        length, digits = length + 64, digits + 20


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

    def release(self, rows: int, *, positional_ids: bool) -> MechanismRelease:
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
