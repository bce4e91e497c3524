"""Privacy loss distributions of fixed plans, and the second opinion by Rényi divergences."""

import math
from functools import lru_cache

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.privacy_accountant import NeighboringRelation

from fedtranscribe.privacy.events import Event, PoissonGaussian
from fedtranscribe.privacy.label_events import GRID, RandomizedResponse, response_loss
from fedtranscribe.privacy.released_images import ReleasedImages, largest_loss
from fedtranscribe.privacy.units import Adjacency

_TAIL = 1e-13
"""Probability below which a tail is cut; what is cut upwards counts as certain disclosure."""

_MOST_DOTS = 20_000
"""At how many losses the profile of a released image is evaluated."""

_MOST_POINTS = 200_000
"""How long the grid of one step of released images may become for the sake of fineness."""

_AS_GOOD_AS_NONE = 1e-9
"""Probability that images are not identified with certainty, so small that δ is 1 whatever ε."""


def responses_pld(event: RandomizedResponse, grid: float = GRID) -> pld.PrivacyLossDistribution:
    """Labels by randomised response on the grid, each sum of losses rounded up once."""
    exact = response_loss(event)
    below, above = np.cumsum(exact.mass), np.cumsum(exact.mass[::-1])[::-1]
    atoms = np.flatnonzero((below > _TAIL) & (above > _TAIL))
    mass = exact.mass[atoms]
    mass[0] += exact.mass[: atoms[0]].sum()
    steps = np.ceil(exact.losses[atoms] / grid).astype(int)
    rounded: dict[int, float] = {}
    for step, probability in zip(steps.tolist(), mass.tolist(), strict=True):
        rounded[step] = rounded.get(step, 0.0) + probability
    certain = exact.certain + float(exact.mass[atoms[-1] + 1 :].sum())
    return pld.PrivacyLossDistribution.create_from_rounded_probability(
        rounded, certain, grid, symmetric=True
    )


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
        return responses_pld(event, grid)
    if isinstance(event, PoissonGaussian):
        return sampled_pld(event, grid)
    return released_pld(event, grid) if isinstance(event, ReleasedImages) else None
