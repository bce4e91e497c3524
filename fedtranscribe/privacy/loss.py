"""Privacy loss distributions of fixed plans: all that this project knows about dp_accounting.

What is guarded against in dp_accounting 0.6.0 (privacy law, section 7):
- its PLD accountant ignores `count` for randomised response, so that accountant is never used;
- it doubles the sensitivity of plain Gaussians under REPLACE_ONE, so a plain Gaussian is always
  built as N(0, 1) against N(μ, 1) with the μ that the event states;
- it refuses randomised response under add-remove, and Poisson sampling under replace in its RDP
  accountant; events state their pair themselves, and the RDP of replace is integrated here;
- it rounds every single loss up to the grid, which adds up over a composition: 1,000 labels of
  ε0 = 0.1 over 3 classes come to 14.28 on a grid of 1e-3, 13.91 on 1e-4, and 13.87 exactly.
  Labels are therefore composed on their own lattice {−ε0, 0, ε0}, where nothing is rounded, and
  rounded once at the end.
"""

import math
from functools import lru_cache

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import rdp_privacy_accountant as rdp

from fedtranscribe.privacy.closed_forms import root
from fedtranscribe.privacy.events import Event, PoissonGaussian, Together, flat
from fedtranscribe.privacy.label_events import RandomizedResponse
from fedtranscribe.privacy.released_images import ReleasedImages, largest_loss
from fedtranscribe.privacy.units import Adjacency

GRID = 1e-4
"""Width of the grid of losses wherever the fourth digit of ε matters to anybody."""

_TAIL = 1e-13
"""Probability below which a tail is cut; what is cut upwards counts as certain disclosure."""

_MOST_DOTS = 20_000
"""At how many losses the profile of a released image is evaluated."""

_MOST_POINTS = 200_000
"""How long the grid of one step of released images may become for the sake of fineness."""

_AS_GOOD_AS_NONE = 1e-9
"""Probability that images are not told for certain, so small that δ is 1 whatever ε."""

_FFT_ERROR = 16 * 2.0**-52
"""Probability that a composition by FFT may misplace per answer, ten times what is seen against
exact binomials; counted as certain disclosure."""


MOST_RESPONSES = 2**21
"""Labels by randomised response whose loss is found exactly: an FFT of about four times as many."""

_FAINTEST = 1e-3
"""Noise multiplier below which sampling is not accounted for in Rényi DP: the integral would need
as many points as the noise is small, for an ε of 500,000 and more."""


class ResponseLoss:
    """The privacy loss of many randomised responses, exact on multiples of ε0.

    Args:
        event: at least two classes and ε0 > 0.

    Guarantee
        One answer's loss is +ε0 with the truth's probability, −ε0 with that of the one class that
        the other data set calls the truth, and 0 else, which is the whole distribution; adaptive
        composition adds independent losses. δ(ε) = E[(1 − e^{ε − loss})+] is then a plain sum.
    """

    def __init__(self, event: RandomizedResponse) -> None:
        q = math.exp(event.log_other)
        p = math.exp(event.log_other + event.epsilon0)
        n = event.count
        size = 2 ** math.ceil(math.log2(2 * n + 1))
        one = np.zeros(size)
        one[0], one[1], one[2] = q, (event.classes - 2) * q, p
        mass = np.fft.irfft(np.fft.rfft(one) ** n, size)[: 2 * n + 1]
        self.mass = np.maximum(mass, 0.0)
        self.losses = event.epsilon0 * np.arange(-n, n + 1)
        self.certain = max(0.0, 1 - float(self.mass.sum())) + n * _FFT_ERROR

    def delta(self, epsilon: float) -> float:
        """δ at ε."""
        if epsilon >= self.losses[-1]:
            return 0.0
        above = self.losses > epsilon
        gains = -np.expm1(epsilon - self.losses[above])
        return min(1.0, float(self.mass[above] @ gains) + self.certain)

    def epsilon(self, delta: float) -> float:
        """The smallest ε >= 0 whose δ is at most delta; never above the sum of all ε0."""
        if self.delta(0.0) <= delta:
            return 0.0
        pure = float(self.losses[-1])
        if self.certain >= delta:
            return pure
        return root(lambda epsilon: self.delta(epsilon) - delta, 0.0, pure)

    def on_grid(self, grid: float) -> pld.PrivacyLossDistribution:
        """The same on the common grid, every loss rounded up once, far tails cut upwards."""
        below, above = np.cumsum(self.mass), np.cumsum(self.mass[::-1])[::-1]
        kept = np.flatnonzero((below > _TAIL) & (above > _TAIL))
        mass = self.mass[kept]
        mass[0] += self.mass[: kept[0]].sum()
        steps = np.ceil(self.losses[kept] / grid).astype(int)
        rounded: dict[int, float] = {}
        for step, probability in zip(steps.tolist(), mass.tolist(), strict=True):
            rounded[step] = rounded.get(step, 0.0) + probability
        certain = self.certain + float(self.mass[kept[-1] + 1 :].sum())
        return pld.PrivacyLossDistribution.create_from_rounded_probability(
            rounded, certain, grid, symmetric=True
        )


@lru_cache(maxsize=64)
def response_loss(event: RandomizedResponse) -> ResponseLoss:
    """The loss of all labels of an event."""
    return ResponseLoss(event)


def gaussian_pld(mu: float, grid: float = GRID) -> pld.PrivacyLossDistribution:
    """N(0, 1) against N(μ, 1) on the grid; the closed form is exact, this is for mixtures."""
    return pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=grid)


def sampled_pld(event: PoissonGaussian, grid: float = GRID) -> pld.PrivacyLossDistribution:
    """All steps of DP-SGD on the grid, for the pair that the event states."""
    replaced = event.adjacency is Adjacency.REPLACE
    one = pld.from_gaussian_mechanism(
        event.noise_multiplier,
        sampling_prob=event.sampling_probability,
        value_discretization_interval=grid,
        neighboring_relation=(
            NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
        ),
    )
    return one.self_compose(event.count)


@lru_cache(maxsize=16)
def released_pld(event: ReleasedImages, grid: float = GRID) -> pld.PrivacyLossDistribution:
    """All steps of released images on the grid, for the pair that the event states.

    One step's losses are about as large as its coin, far below the grid, and would be rounded
    thousands of times. So steps are composed on a grid of their own, 2^k times finer, by
    connect-the-dots, and rounded up to the common one once.
    """
    scale, largest = event.sampling_probability * min(event.mu, 1.0), largest_loss(event)
    wanted, room = math.log2(16 * grid / scale), math.log2(_MOST_POINTS * grid / largest)
    halvings = max(0, math.ceil(min(wanted, room)))
    fine = grid / 2**halvings
    dots = _dots(largest, fine)
    logs = [event.log_profile(dots * fine, reverse) for reverse in (False, True)]
    pair = [_connect(dots, fine, *both) for both in (logs, logs[::-1])]
    hidden = max(0.0, 1 - max(pmf._infinity_mass for pmf in pair))
    if hidden**event.count <= _AS_GOOD_AS_NONE:
        return _disclosed(grid)
    one = pld.PrivacyLossDistribution(*pair)
    with np.errstate(over="ignore"):  # where the library estimates its size
        total = one.self_compose(event.count)
    return pld.PrivacyLossDistribution(
        _rounded_up(total._pmf_remove, 2**halvings), _rounded_up(total._pmf_add, 2**halvings)
    )


def _disclosed(grid: float) -> pld.PrivacyLossDistribution:
    """The loss that is infinite with probability 1: δ = 1 at every ε, an upper bound on any.

    The library cannot compose it, nor with it.
    """
    certain = pld_pmf.DensePLDPmf(grid, 0, np.zeros(1), 1.0, True)
    return pld.PrivacyLossDistribution(certain, certain)


def _is_disclosed(loss: pld.PrivacyLossDistribution) -> bool:
    return loss._pmf_remove._infinity_mass >= 1


def _dots(largest: float, grid: float) -> np.ndarray:
    # Every multiple of the grid up to a point, from there at a constant ratio.
    last = math.ceil(largest / grid)
    if last <= _MOST_DOTS:
        return np.arange(last + 1)
    dense = np.arange(_MOST_DOTS // 2)
    sparse = np.rint(np.geomspace(_MOST_DOTS // 2, last, _MOST_DOTS // 2)).astype(int)
    return np.unique(np.concatenate([dense, sparse]))


def _connect(
    dots: np.ndarray, grid: float, log_above: np.ndarray, log_below: np.ndarray
) -> pld_pmf.DensePLDPmf:
    """The pair whose H_t is the given one at the dots and linear in t in between, hence larger.

    Args:
        dots: losses >= 0 over the grid, from 0 upwards, shape (k,).
        grid: width of the grid.
        log_above: log of H_t at t = e^loss, shape (k,).
        log_below: the same for the other direction of the pair.

    Returns:
        The distribution of the loss under the first of the pair. A bend of H at t is mass of the
        second there, hence t times as much of the first; the bends of the other direction are
        mass of the first at −loss. Source: Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022.
    """
    t = np.exp(dots * grid)
    above, below = np.exp(log_above), np.exp(log_below)
    slopes_above = np.append(np.diff(above) / np.diff(t), 0.0)
    slopes_below = np.append(np.diff(below) / np.diff(t), 0.0)
    last = int(dots[-1])
    mass = np.zeros(2 * last + 1)
    mass[last + dots[1:]] = t[1:] * np.diff(slopes_above)
    mass[last - dots[1:]] = np.diff(slopes_below)
    mass[last] = 1 + slopes_above[0] + slopes_below[0] - above[0]
    return pld_pmf.DensePLDPmf(grid, -last, np.maximum(mass, 0.0), float(above[-1]), True)


def _rounded_up(pmf: pld_pmf.PLDPmf, factor: int) -> pld_pmf.DensePLDPmf:
    dense = pmf.to_dense_pmf()
    steps = -(-(dense._lower_loss + np.arange(dense.size)) // factor)
    mass = np.bincount(steps - steps[0], weights=dense._probs)
    return pld_pmf.DensePLDPmf(
        dense._discretization * factor, int(steps[0]), mass, dense._infinity_mass, True
    )


@lru_cache(maxsize=8)
def composed(mu: float, others: tuple[Event, ...], grid: float) -> pld.PrivacyLossDistribution:
    """The loss distribution of a Gaussian of total μ together with labels and DP-SGD steps.

    Args:
        mu: total μ of all that is Gaussian or dominated by one; 0 for none.
        others: `RandomizedResponse`, `PoissonGaussian` and `ReleasedImages` events.
        grid: width of the grid of losses.
    """
    total = pld.identity(value_discretization_interval=grid)
    if mu > 0:
        total = total.compose(gaussian_pld(mu, grid))
    for event in others:
        part = _on_grid(event, grid)
        if part is None:
            continue
        if _is_disclosed(part):
            return part
        total = total.compose(part)
    return total


def _on_grid(event: Event, grid: float) -> pld.PrivacyLossDistribution | None:
    if isinstance(event, RandomizedResponse):
        return response_loss(event).on_grid(grid)
    if isinstance(event, PoissonGaussian):
        return sampled_pld(event, grid)
    return released_pld(event, grid) if isinstance(event, ReleasedImages) else None


# The second opinion

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
    epsilon = rdp.compute_epsilon(ORDERS.tolist(), divergence.tolist(), delta)[0]
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
