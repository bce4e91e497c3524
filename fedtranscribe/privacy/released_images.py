"""Noised images, released: the accounting event of dp-promise's Phase I.

In every step each record joins by its own coin. A record that joins gives away one fresh image
x_S = √ᾱ_S x_0 + √(1 − ᾱ_S) z and nothing else; all that is trained from these images is
post-processing. An observer sees the SET of a step's images: their number, but not whose they
are. What hides a record is only that it might not have joined, and that one of the others would
then stand in its place; how far away that other image can be is part of the cost.

Guarantee
    Unit: record, an image in [−1, 1]^d. Adjacency: replace, or zero-out with the grey image 0 as
    the null one. In units of the noise any two images are at most μ = 2√(d ᾱ_S/(1 − ᾱ_S)) apart,
    and any image is at most μ/2 from the grey one. Write H_t(P‖Q) = E_Q[(dP/dQ − t)+] = δ(log t).

    1. The number. |I| = c is Binomial(n, m/n) under both data sets and is seen, so H is the mean
       over c of H given c. Given c, I is a uniform subset of size c; let q = c/n.
    2. Mixtures. Record j has the value a under D and a′ under D′. Given c,
       P = (1 − q) R + q P₁ and Q = (1 − q) R + q Q₁, R for "j did not join". For t ≥ 1 and
       s = 1 + (t − 1)/q, b = t/s: H_t(P‖Q) = q H_s(P₁ ‖ (1 − b) R + b Q₁), since
       P − tQ = q (P₁ − s((1 − b) R + b Q₁)) (Balle, Barthe and Gaboardi 2018, Theorem 2).
    3. Crowd. Draw c − 1 of the others, then one more, x_k: the c − 1 with a is P₁, with a′ is
       Q₁, with x_k is R. H is jointly convex and the c − 1 common images only post-process, so
       H_s(P₁ ‖ …) ≤ max over x_k of H_s(N(a) ‖ (1 − b) N(x_k) + b N(a′)), unit covariance.
    4. One dimension. For H_s(N(0) ‖ Σ w_i N(v_i)) = E_N(0)[(1 − s Y)+], Y = Σ w_i Y_i and
       Y_i = exp(⟨x, v_i⟩ − |v_i|²/2): log-normal of mean 1, larger in convex order the longer
       v_i is. (1 − sY)+ is convex in Y, and of all sums with given marginals the comonotone one
       is largest in convex order (Kaas, Dhaene and Goovaerts 2000), which is that of vectors on
       one ray. So only the bounds on |v_i| matter, and both are attained at once on a ray:
       - replace, both ways:  q H_s(N(0) ‖ N(μ)): the operator C_q(G_μ) of Dong, Roth and Su;
       - zero-out, a real record against the null one: a is μ from x_k and μ/2 from 0, so
         q H_s(N(0) ‖ (1 − b) N(μ) + b N(μ/2)). Halving μ alone would forget the displaced one;
       - zero-out, the null one against a real record: 0 is μ/2 from both: C_q(G_{μ/2}).
    5. t < 1 follows from the other direction: H_t(P‖Q) = 1 − t + t H_{1/t}(Q‖P). The whole
       curve is convex, hence the profile of a pair, and adaptive composition takes its product.
    Add-remove changes the number of images and is not covered. ∎
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import scipy

from fedtranscribe.errors import ConfigError, UnsupportedAdjacencyError
from fedtranscribe.privacy.units import Adjacency, expect_distance

_KNOTS = 33
_KNOTS_REACH = 9.0
"""Sizes of a step's set at which its cost is evaluated, and how many standard deviations far."""


_LARGEST_BATCH = 10**7
"""Every size of a step's set is weighed, and the likely ones are about as many as the batch."""

_LARGEST_SAMPLED = 1_000.0
"""μ beyond which the coins are not accounted for in Rényi DP: the integral would need about as many
points, and an image that joins is as good as told."""

_LARGEST_LOSS = 700.0
"""e to this power is still a double."""


@dataclass(frozen=True)
class ReleasedImages:
    """`count` steps; in each, every record joins by its own coin and gives away a noised image.

    Attributes:
        mu: how far two images can be apart, over the noise: 2√(d ᾱ_S/(1 − ᾱ_S)).
        records: n, how many records toss the coin.
        batch: m, how many are expected to join; the coin is m/n.
        count: steps in all.
        adjacency: zero-out or replace; see the module for the pair and its proof.
    """

    kind: ClassVar[str] = "released-images"
    mu: float
    records: int
    batch: int
    count: int = 1
    adjacency: Adjacency = Adjacency.ZERO_OUT

    def __post_init__(self) -> None:
        expect_distance("mu", self.mu)
        if not 1 <= self.batch <= self.records:
            raise ConfigError(f"Expected 1 <= batch={self.batch} <= records={self.records}.")
        if self.batch > _LARGEST_BATCH:
            raise ConfigError(f"Expected batch={self.batch} <= {_LARGEST_BATCH:,}.")
        if self.count < 1:
            raise ConfigError(f"Expected count={self.count} >= 1.")
        if self.adjacency is Adjacency.ADD_REMOVE:
            raise UnsupportedAdjacencyError(
                "Expected adjacency zero-out or replace for released images: under add-remove "
                "the number of images changes as well; ask for another adjacency."
            )

    @property
    def sampling_probability(self) -> float:
        """The coin."""
        return self.batch / self.records

    @property
    def distance(self) -> float:
        """μ of one step in which the record takes part, if that were known."""
        return self.mu if self.adjacency is Adjacency.REPLACE else self.mu / 2

    @property
    def gdp_mu(self) -> float:
        """Total μ of a Gaussian that dominates it: all coins given away."""
        return self.distance * math.sqrt(self.count)

    @property
    def zcdp_rho(self) -> float:
        """Total ρ of zero-concentrated DP, the same way."""
        return self.count * self.distance**2 / 2

    def log_profile(self, epsilon: np.ndarray, reverse: bool = False) -> np.ndarray:
        """log δ(ε) of one step, for ε >= 0.

        Args:
            epsilon: shape (k,).
            reverse: the null record against the real one; under replace both are equal.
        """
        weights, shares = _sizes(self.records, self.batch)
        doubled = self.adjacency is Adjacency.ZERO_OUT and not reverse
        rows = [
            math.log(weight) + _log_for_size(epsilon, share, self.distance, doubled)
            for weight, share in zip(weights, shares, strict=True)
        ]
        return np.logaddexp.reduce(rows)

    def exceeds(self, epsilon: float, delta: float) -> bool:
        """Whether one step alone is not (ε, δ)-DP; found at once, whatever μ."""
        if self.mu == 0:
            return False
        return float(self.log_profile(np.array([epsilon]))[0]) > math.log(delta)

    def renyi(self, orders: np.ndarray) -> np.ndarray:
        """A bound on the Rényi divergence of one step, in both directions, at each order > 1.

        From E_Q[(dP/dQ)^α] = 1 + α(α − 1) ∫_0^∞ t^{α−2} H_t dt, part t < 1 by the other direction.
        Infinite beyond orders that are useful at such a μ.
        """
        return np.array(_renyi(self.mu, self.records, self.batch, self.adjacency, tuple(orders)))

    def to_json(self) -> dict[str, Any]:
        """JSON-able; the event's numbers by name, beside its kind."""
        return {
            "kind": self.kind,
            "mu": float(self.mu),
            "records": int(self.records),
            "batch": int(self.batch),
            "count": int(self.count),
            "adjacency": self.adjacency.value,
        }


def largest_loss(event: ReleasedImages) -> float:
    """A loss that one step exceeds with probability below 1e-18, either way, or as good as ∞."""
    weights, shares = _sizes(event.records, event.batch)
    likely = max(share for weight, share in zip(weights, shares, strict=True) if weight > 1e-20)
    return min(
        _LARGEST_LOSS, float(np.logaddexp(0.0, math.log(likely) + event.mu * (event.mu / 2 + 9)))
    )


@lru_cache(maxsize=64)
def _sizes(records: int, batch: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Weights and shares q of a few set sizes, as bad as all sizes c = 0..n together.

    q H_s is convex in q = c/n: it is E[(q − …)+] of what is linear in q. Replacing a size between
    two knots by a lottery over both, with the same mean, therefore only adds to the cost.
    """
    spread = math.sqrt(batch * (1 - batch / records))
    lowest = max(0, math.floor(batch - _KNOTS_REACH * spread))
    highest = min(records, math.ceil(batch + _KNOTS_REACH * spread + 20))
    # High Rényi orders look far beyond nine deviations, hence a ladder up to everybody.
    ladder = np.geomspace(highest, records, 1 + math.ceil(math.log(records / highest, 1.2)))
    middle = np.linspace(lowest, highest, _KNOTS)
    knots = np.unique(np.rint(np.concatenate([[0], middle, ladder])).astype(int))
    # Beyond these sizes every probability is zero in a double.
    sizes = np.arange(0, min(records, math.ceil(batch + 60 * spread + 800)) + 1)
    chances = scipy.stats.binom.pmf(sizes, records, batch / records)
    weights = np.zeros(len(knots))
    left = np.clip(np.searchsorted(knots, sizes, side="right") - 1, 0, len(knots) - 2)
    up = (sizes - knots[left]) / (knots[left + 1] - knots[left])
    np.add.at(weights, left, chances * (1 - up))
    np.add.at(weights, left + 1, chances * up)
    positive = (knots > 0) & (weights > 0)
    return tuple(weights[positive].tolist()), tuple((knots[positive] / records).tolist())


def _log_for_size(epsilon: np.ndarray, share: float, distance: float, doubled: bool) -> np.ndarray:
    """log of q H_s(N(0) ‖ (1 − b) N(v) + b N(distance)), v = 2 distance if doubled else distance.

    With d the distance and w = e^{xd}, x is where s(1 − b) e^{−2d²} w² + t e^{−d²/2} w = 1, or
    s e^{−d²/2} w = 1 where both centres are one.
    """
    with np.errstate(divide="ignore"):
        # s − t = (t − 1)(1 − q)/q; −∞ at ε = 0, and for q = 1.
        log_others = epsilon + np.log(-np.expm1(-epsilon)) + np.log((1 - share) / share)
    if doubled:
        log_one = epsilon - distance**2 / 2
        log_two = log_others - 2 * distance**2
        log_root = np.logaddexp(0.0, math.log(4) + log_two - 2 * log_one) / 2
        x = (math.log(2) - log_one - np.logaddexp(0.0, log_root)) / distance
        terms = [
            log_others + scipy.special.log_ndtr(x - 2 * distance),
            epsilon + scipy.special.log_ndtr(x - distance),
        ]
    else:
        log_s = np.logaddexp(log_others, epsilon)
        x = distance / 2 - log_s / distance
        terms = [log_s + scipy.special.log_ndtr(x - distance)]
    log_first = scipy.special.log_ndtr(x)
    lost = np.exp(np.array(terms) - log_first).sum(axis=0)
    with np.errstate(divide="ignore"):
        return math.log(share) + log_first + np.log(np.clip(1 - lost, 0.0, 1.0))


@lru_cache(maxsize=32)
def _renyi(
    mu: float, records: int, batch: int, adjacency: Adjacency, orders: tuple[float, ...]
) -> tuple[float, ...]:
    one = ReleasedImages(mu, records, batch, 1, adjacency)
    if mu == 0:
        return (0.0,) * len(orders)
    if mu > _LARGEST_SAMPLED:
        return tuple(order * one.distance**2 / 2 for order in orders)  # all coins given away
    # In v with t = 1 + q(e^v − 1) the integrand is as wide as μ wherever its peak is, at most at
    # order · μ²; orders far beyond the useful ones are left out where μ is large.
    largest = max(2.0, min(max(orders), 100 / mu))
    q = one.sampling_probability
    v = np.linspace(0.0, largest * mu**2 + 12 * mu, 2 * math.ceil(16 * (largest * mu + 12)) + 1)
    epsilon = np.logaddexp(math.log1p(-q), math.log(q) + v) if q < 1 else v
    epsilon = np.maximum(epsilon, 0.0)  # it is 0 at v = 0, which rounding may miss
    log_width = math.log(q) + v - epsilon  # dε/dv
    profiles = [one.log_profile(epsilon, reverse) for reverse in (False, True)]

    def divergence(order: float) -> float:
        if order > largest:
            return math.inf
        return max(
            _log_one_plus_integral(v, order, epsilon, log_width, *pair) / (order - 1)
            for pair in (profiles, profiles[::-1])
        )

    return tuple(divergence(order) for order in orders)


def _log_one_plus_integral(
    v: np.ndarray,
    order: float,
    epsilon: np.ndarray,
    log_width: np.ndarray,
    above: np.ndarray,
    below: np.ndarray,
) -> float:
    logs = np.logaddexp((order - 1) * epsilon + above, -order * epsilon + below) + log_width
    top = float(logs.max())
    integral = top + math.log(float(scipy.integrate.simpson(np.exp(logs - top), x=v)))
    return float(np.logaddexp(0.0, math.log(order * (order - 1)) + integral))
