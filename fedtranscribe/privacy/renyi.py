"""Rényi divergences of all events, and the ε that they prove: a second opinion on the PLD's.

Guarantee:
    Unit and adjacency are those of the event. Divergences of one order add up over answers whose
    costs were fixed beforehand, even where a query depends on earlier answers (Mironov, "Rényi
    Differential Privacy", 2017, Proposition 1); the smallest ε over `ORDERS` holds at δ. Of a
    Poisson-sampled Gaussian with a record of norm C, the divergence is integrated numerically: the
    mixture against N(0, σ²C²), the larger of both directions, under add-remove and zero-out;
    mixtures about C and -C under replace. Orders above 100 σ count as infinite there, which only
    loosens ε. All other events have closed forms: α ρ with the ρ of zCDP, or their own.
"""

import math
from functools import lru_cache

import numpy as np

from fedtranscribe.privacy.events import Event, PoissonGaussian, Together, flat
from fedtranscribe.privacy.label_events import RandomizedResponse
from fedtranscribe.privacy.released_images import ReleasedImages
from fedtranscribe.privacy.units import Adjacency

_FAINTEST = 1e-3
"""Noise multiplier below which sampling is not accounted for in Rényi DP: the integral would need
as many points as the noise is small, for an ε of 500,000 and more."""


ORDERS = np.concatenate([1 + np.arange(1, 100) / 10, np.arange(11, 64), [80, 128, 192, 256]])
"""Rényi orders at which the second opinion looks."""


def renyi(event: Event) -> np.ndarray:
    """Total Rényi divergence of an event at every order of `ORDERS`, found without a PLD."""
    if isinstance(event, RandomizedResponse):
        return event.count * event.renyi(ORDERS)
    if isinstance(event, PoissonGaussian):
        one = _renyi_of_sampled(
            event.sampling_probability,
            event.noise_multiplier,
            event.adjacency is Adjacency.REPLACE,
        )
        return event.count * np.array(one)
    if isinstance(event, ReleasedImages):
        return event.count * event.renyi(ORDERS)
    if isinstance(event, Together):
        return np.sum([renyi(part) for part in flat(event)], axis=0)
    return event.zcdp_rho * ORDERS


def epsilon_of_renyi(divergence: np.ndarray, delta: float) -> float:
    """The smallest ε that any order proves."""
    # A second to import, which nobody needs who has a closed form.
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    epsilon = compute_epsilon(ORDERS.tolist(), divergence.tolist(), delta)[0]
    return max(0.0, float(epsilon))


@lru_cache(maxsize=64)
def _renyi_of_sampled(q: float, sigma: float, replace: bool) -> tuple[float, ...]:
    # The trapezoid sum of ∫ p^α r^{1−α}, which converges at once for such smooth integrands. Its
    # peak lies at most 2α from the origin, in units of C; orders far beyond the useful ones are
    # left out where the noise is small, or the grid would be long and fine at once.
    if sigma < _FAINTEST:
        distance = (2 if replace else 1) / sigma
        return tuple((ORDERS * distance**2 / 2).tolist())  # as if nothing were sampled
    largest = max(2.0, min(float(ORDERS[-1]), 100 * sigma))
    orders = ORDERS[largest >= ORDERS]
    reach = 2 * largest + 12 * sigma
    points = np.arange(-reach, reach, sigma / 16)
    mixture, other = _log_mixture(points, q, sigma, 1.0), _log_mixture(points, q, sigma, -1.0)
    if not replace:
        other = _log_mixture(points, 0.0, sigma, 1.0)
    pairs = [(mixture, other)] if replace else [(mixture, other), (other, mixture)]
    sums = [max(_log_sum(a * up + (1 - a) * down) for up, down in pairs) for a in orders.tolist()]
    divergence = np.full_like(ORDERS, math.inf)
    divergence[: len(orders)] = (np.array(sums) + math.log(sigma / 16)) / (orders - 1)
    return tuple(divergence.clip(0).tolist())


def _log_sum(logs: np.ndarray) -> float:
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum()))


def _log_mixture(points: np.ndarray, q: float, sigma: float, centre: float) -> np.ndarray:
    stays = math.log1p(-q) if q < 1 else -math.inf
    moves = math.log(q) if q > 0 else -math.inf
    logs = np.logaddexp(
        stays - points**2 / (2 * sigma**2), moves - (points - centre) ** 2 / (2 * sigma**2)
    )
    return logs - math.log(sigma * math.sqrt(2 * math.pi))
