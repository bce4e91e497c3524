"""The discrete Gaussian, drawn exactly: noise in whole numbers.

The sampler is our own: libraries that draw exactly draw one number at a time, and an answer has
200,000.
"""

import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedtranscribe.errors import ConfigError
from fedtranscribe.mechanisms.bits import BitSource

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
