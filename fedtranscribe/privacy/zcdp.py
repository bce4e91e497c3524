"""Zero-concentrated DP: the event of sums of discrete Gaussians, and the bound that it books.

With secure aggregation only a SUM is seen, on integers, and each holder adds its own discrete
Gaussian. Such a sum is not itself a discrete Gaussian, and no continuous one is known to dominate
it at every δ, so it is booked in ρ: ρ adds up, also when queries are chosen on the way.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import scipy

from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.closed_forms import zcdp_delta, zcdp_epsilon
from fedtranscribe.privacy.units import LARGEST_DISTANCE, expect_delta, expect_epsilon

_LARGEST_RHO = LARGEST_DISTANCE**2 / 2
"""That of a Gaussian at the largest distance."""


@dataclass(frozen=True)
class ZeroConcentrated:
    """`count` rows, each of them ρ-zCDP: every Rényi divergence D_α is at most ρ α, for α > 1.

    Guarantee
        (ρ count)-zCDP, with queries chosen adaptively (Bun and Steinke 2016, Lemma 2.3; with a
        fixed limit on the sum also for costs chosen adaptively, Whitehouse et al. 2023).
    """

    kind: ClassVar[str] = "zcdp"
    rho: float
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rho <= _LARGEST_RHO:
            raise ConfigError(f"Expected 0 <= rho={self.rho} <= {_LARGEST_RHO:g}.")
        if self.count < 1:
            raise ConfigError(f"Expected count={self.count} >= 1.")

    @property
    def gdp_mu(self) -> float:
        """Total μ of a Gaussian that dominates every row; see `dominating_mu`."""
        return dominating_mu(self.rho) * math.sqrt(self.count)

    @property
    def zcdp_rho(self) -> float:
        """Total ρ of zero-concentrated DP."""
        return self.count * self.rho

    def epsilon(self, delta: float) -> float:
        """ε at δ of all `count` rows, by the best Rényi order.

        Source: Canonne, Kamath and Steinke 2020, Proposition 12.

        Raises:
            ConfigError: delta is not inside (0, 1).
        """
        expect_delta(delta)
        return zcdp_epsilon(self.zcdp_rho, delta)

    def delta(self, epsilon: float) -> float:
        """δ at ε >= 0 of all `count` rows; the inverse of `epsilon`.

        Raises:
            ConfigError: epsilon is negative or not finite.
        """
        if not (epsilon >= 0 and math.isfinite(epsilon)):
            raise ConfigError(f"Expected epsilon={epsilon} >= 0 and finite.")
        return zcdp_delta(self.zcdp_rho, epsilon)

    def to_json(self) -> dict[str, Any]:
        """JSON-able; the event's numbers by name, beside its kind."""
        return {"kind": self.kind, "rho": float(self.rho), "count": int(self.count)}


def dominating_mu(rho: float) -> float:
    """μ of a Gaussian that dominates every ρ-zCDP mechanism: 2.09 √ρ for small ρ, at most √(8ρ).

    Guarantee
        Let P, Q be a pair with D_α ≤ ρα in both directions, S any outcome, randomised or not, and
        p = −log P(S), q = −log Q(S). Data processing gives p ≥ (1 − 1/α)(q − αρ) for all α > 1;
        the best is α = √(q/ρ), so that √q − √p ≤ √ρ, and also √p − √q ≤ √ρ. With
        u = Φ⁻¹(P(S)), v = Φ⁻¹(Q(S)) and ψ(z) = √(−log Φ(z)) that is |ψ(u) − ψ(v)| ≤ √ρ, and for
        the complement of S |ψ(−u) − ψ(−v)| ≤ √ρ. To be shown: u − v ≤ μ for v < u.
        - v < 0 < u: the sum of both is g(−v) + g(u) ≤ 2√ρ with g(t) = ψ(−t) − ψ(t). The ratio
          g(t)/t falls from 0.958 at 0 towards 1/√2 (evaluated, in the tests, up to t = 35; beyond,
          Mills' bound log 1/Φ(−t) > t²/2 + log(t√2π) keeps it above). Hence u − v ≤ √(8ρ) = τ at
          first, and with that u − v ≤ 2√ρ τ/g(τ).
        - u, v on one side of 0, the negative one by choice of S or its complement: there
          ψ′² = h²/4ψ² for h = φ/Φ, and h² − 4c²ψ² has the derivative 2h(h′ + 2c²) < 0 for
          c² = h(0)²/(4 log 2) = 0.2296, as h′ <= h′(0) = −2/π (h is convex: Sampford 1953), and
          is 0 at 0. So |ψ′| >= c and u − v ≤ √ρ/c = 2.087 √ρ, which is no more than the above. ∎
    """
    if rho == 0:
        return 0.0
    # For very small τ the difference would cancel; the ratio at a larger one is an upper bound.
    tau = max(1e-3, math.sqrt(8 * rho))
    return 2 * math.sqrt(rho) * tau / (_root_log(-tau) - _root_log(tau))


def _root_log(z: float) -> float:
    return math.sqrt(-float(scipy.special.log_ndtr(z)))


def zcdp_rho(epsilon: float, delta: float) -> float:
    """The largest ρ whose ε at δ is at most `epsilon`, found from below.

    Raises:
        ConfigError: epsilon is not positive and finite, or delta is not inside (0, 1).
    """
    expect_epsilon(epsilon)
    expect_delta(delta)
    # One order far out proves ε >= ρ, so that the root lies below; 100 halvings reach any double.
    lower, upper = 0.0, epsilon + 1
    for _ in range(100):
        middle = (lower + upper) / 2
        if zcdp_epsilon(middle, delta) <= epsilon:
            lower = middle
        else:
            upper = middle
    return lower


def sum_distance(variance: float, terms: int) -> float:
    """τ: how far a sum of discrete Gaussians is from one, as a bound on D_α per moved coordinate.

    Args:
        variance: σ² of each term N_Z(0, σ²), in squared units of the lattice; at least 1.
        terms: n, how many independent ones are added.

    Guarantee
        With P the law of the sum and G = N_Z(0, n σ²): |log P(x)/G(x)| ≤ τ/2 at every integer x,
        τ = 10 Σ_{k=1}^{n−1} exp(−2π²σ² k/(k+1)).
        Proof. Two terms of variances a and b: completing the square, P(x) is proportional to
        e^{−x²/2(a+b)} S(x a/(a+b)), S(y) = Σ_j e^{−(j−y)²/2v} and v = ab/(a+b). By Poisson's
        summation S(y) = √(2πv) (1 + 2 Σ_{j≥1} q^{j²} cos 2πjy), q = e^{−2π²v}; the same holds for
        the three normalising sums, whose cosines are 1 and whose q are q^{1+a/b}, q^{1+b/a} and,
        since a + b ≥ 4v, at most q⁴. The square roots cancel. Hence log P/G lies between
        −2.1 q − 2.1 (q + q²) and 2.1 q + 2.1 q⁴, for v ≥ ½, where q < 6e-5: inside ±5q. Adding
        one more term to a sum that is within e^{±η} of a discrete Gaussian keeps that factor and
        brings its own: a = kσ², b = σ² gives 2π²v = 2π²σ² k/(k+1), and the exponents add up. ∎
        Source: Kairouz, Liu and Steinke 2021, section 4, with the same constant.

    Raises:
        ConfigError: a value is out of range.
    """
    _expect_noise(variance, terms)
    # Beyond some forty terms all are the same to a double, hence the rest in one product.
    first = [math.exp(-2 * math.pi**2 * variance * k / (k + 1)) for k in range(1, min(terms, 41))]
    rest = max(0, terms - 41) * math.exp(-2 * math.pi**2 * variance * 41 / 42)
    return 10 * (math.fsum(first) + rest)


def discrete_sum_rho(
    sensitivity: float, variance: float, terms: int, coordinates: int, least: float | None = None
) -> float:
    """ρ of an integer row to which `terms` holders each add discrete Gaussian noise.

    Args:
        sensitivity: Δ, the l2 distance of two neighbouring rows, in units of the lattice.
        variance: σ² of every holder's noise per coordinate, in squared units; at least 1.
        terms: n, how many holders' noise the observer does not know.
        coordinates: d, length of the row.
        least: the smallest variance of a coordinate's noise, where they differ; σ² if not given.

    Guarantee
        For integer rows with ‖x − x′‖₂ ≤ Δ, x + Z against x′ + Z is ρ-zCDP in both directions,
        ρ = Δ²/(2nσ²) + τd, Z the sum of n independent N_Z(0, σ²)^d; more noise, independent of
        it, only helps, and so does any reduction modulo 2^w.
        Proof. Coordinates are independent, so that divergences add. In one that moves by D, with
        P, G and τ of `sum_distance` and s² = nσ²,
            log P(x)/P(x−D) ≤ log G(x)/G(x−D) + τ = (D² − 2xD)/2s² + τ.
        A discrete Gaussian is sub-Gaussian, E e^{uX} ≤ e^{u²σ²/2} (completing the square leaves
        a shifted sum over the integers, which by Poisson's summation never exceeds the unshifted
        one), hence so is P with s². Therefore
            E_P[(P(x)/P(x−D))^{α−1}] ≤ e^{(α−1)(τ + D²/2s²)} E_P[e^{−(α−1)xD/s²}]
                                     ≤ e^{(α−1)(τ + αD²/2s²)},
        which is D_α ≤ αD²/2s² + τ ≤ α(D²/2s² + τ). P is symmetric, so the other direction is
        the same with −D. ∎
        Where a coordinate counts c times in Δ² = Σ c D², and its noise has the variance σ²/c or
        more, its term αD²/2s² is at most αcD²/2nσ², and their sum the same; τ falls as a variance
        grows, so that of the least one covers all.
        Source: Kairouz, Liu and Steinke 2021, Theorem 1; for one term
        Canonne, Kamath and Steinke 2020, Theorem 4.

    Raises:
        ConfigError: a value is out of range.
    """
    if not (sensitivity >= 0 and math.isfinite(sensitivity)):
        raise ConfigError(f"Expected sensitivity={sensitivity} >= 0 and finite.")
    if coordinates < 1:
        raise ConfigError(f"Expected coordinates={coordinates} >= 1.")
    distance = sum_distance(variance if least is None else least, terms)
    return sensitivity**2 / (2 * terms * variance) + distance * coordinates


def _expect_noise(variance: float, terms: int) -> None:
    if not (variance >= 1 and math.isfinite(variance)):
        raise ConfigError(f"Expected variance={variance} >= 1 and finite, in squared units.")
    if terms < 1:
        raise ConfigError(f"Expected terms={terms} >= 1.")
