"""From events to ε: plans fixed beforehand, plans chosen on the way, and a second opinion.

- `epsilon`: everything was fixed before the first answer. Privacy loss distributions, optimal
  composition; a list of Gaussians has a Gaussian loss, so the closed form is its exact PLD.
- `epsilon_filter`: what is asked next may depend on earlier answers. What a ledger needs.
- `epsilon_rdp`: Rényi DP instead of the PLD; never below `epsilon`, and close to it.

Guarantee
    All events together are (ε, δ)-DP for the unit and adjacency whose pairs the events state.
    Never too small: grids are rounded up, cut tails are counted as disclosed.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import scipy

from fedtranscribe.errors import ConfigError, UnsupportedAdjacencyError
from fedtranscribe.privacy.closed_forms import (
    gaussian_delta,
    gaussian_epsilon,
    renyi_delta,
    renyi_epsilon,
)
from fedtranscribe.privacy.events import Event, Gaussian, PoissonGaussian, Together, flat
from fedtranscribe.privacy.label_events import (
    GRID,
    MOST_RESPONSES,
    ExponentialVotes,
    RandomizedResponse,
    response_loss,
)
from fedtranscribe.privacy.release_plan import MechanismRelease, PrivacyPlan
from fedtranscribe.privacy.released_images import ReleasedImages
from fedtranscribe.privacy.renyi import epsilon_of_renyi, renyi
from fedtranscribe.privacy.totals import Spent, renyi_curve
from fedtranscribe.privacy.units import Adjacency, Guarantee, Unit, expect_delta
from fedtranscribe.privacy.zcdp import ZeroConcentrated

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

CLOSED_FORM = "PLD, closed form"
ON_GRID = "PLD"
ZCDP = "zCDP"
RENYI = "Rényi"
PURE = "sum of pure ε"
PURE_BESIDE = "pure ε of labels beside the rest"
DOMINATED = "dominating Gaussian"

_FINE_UP_TO, _FINE_SAMPLED_UP_TO, _GRID_UP_TO = 50.0, 1_000.0, 20_000.0
"""Rough bounds on ε up to which the grid is fine (without and with DP-SGD), or there is a grid.

In between it is coarser in proportion, so that it has about as many points. DP-SGD alone is
composed on the grid, where roundings add up, and its rough bound is much too large.
"""

_MOST_POINTS = 500_000
"""Of the grid of one step of DP-SGD: enough for a noise multiplier of 0.25 at the finest grid."""

_LARGEST_LOSS = 700.0
"""e to this power is still a double."""

_LOSS_OF_SECONDS = 100.0
"""Largest loss of released images whose grid takes as long as that of other events."""

_FEW_RESPONSES = 2**16
"""Labels whose loss is found in milliseconds."""

_MOST_STEPS = 2_000_000
"""Sampled steps that are composed on the grid; more take minutes, and no training has as many."""

_MOST_COUNTED = 10**9
"""Sampled steps up to which the library finds a quantile of the coins; it warns and gives NaN at
2⁵³."""

_SPARE = 2.0**-32
"""Share of δ that a ledger of Gaussians keeps for everything else: too small to be felt in their ε,
while the Rényi filter pays only for its logarithm."""

_SAMPLED = PoissonGaussian | ReleasedImages
"""Events in which a unit takes part by its own coin."""

_LABELS = ExponentialVotes | RandomizedResponse
"""Events that have a pure ε."""

_ROUGH_DELTA = 1e-9
"""Where `delta_of` sizes its grid; any value serves."""


def epsilon(events: Sequence[Event], delta: float) -> float:
    """ε of a plan fixed beforehand; 0 for no events, and wherever it is exactly 0.

    Raises:
        ConfigError: delta is not inside (0, 1).
    """
    return quote(events, delta)[0]


def quote(events: Sequence[Event], delta: float) -> tuple[float, str]:
    """`epsilon`, and which accountant found it.

    Raises:
        ConfigError: delta is not inside (0, 1).
    """
    expect_delta(delta)
    return _quote(_merged(events), delta)


def grid_work(events: Sequence[Event]) -> frozenset[tuple[tuple[Event, ...], int]]:
    """What `quote` would have to compose for these events, before anything is computed.

    Returns:
        The plan and how many of its events are composed on a grid, each of which takes up to some
        seconds (images with little noise count several times); nothing for a plan that has a
        closed form, and for labels alone that are found in milliseconds. Plans that cost the same
        are equal.
    """
    merged = _merged(events)
    parts = [event for event in merged if isinstance(event, _SAMPLED | RandomizedResponse)]
    quick = len(merged) == 1 and all(
        isinstance(event, RandomizedResponse) and event.count <= _FEW_RESPONSES for event in parts
    )
    return frozenset() if quick or not parts else frozenset({(merged, sum(map(_work, parts)))})


def _work(event: Event) -> int:
    if isinstance(event, ReleasedImages):
        return 1 + int(min(_reach(event.mu), _LARGEST_LOSS) / _LOSS_OF_SECONDS)
    return 1


def delta_of(events: Sequence[Event], epsilon: float) -> float:
    """δ of a plan fixed beforehand, at ε >= 0; the inverse of `epsilon`.

    Raises:
        ConfigError: epsilon is negative or not finite.
    """
    if not (epsilon >= 0 and math.isfinite(epsilon)):
        raise ConfigError(f"Expected epsilon={epsilon} >= 0 and finite.")
    merged = _merged(events)
    if not merged:
        return 0.0
    if _only_in_zcdp(merged):
        dominated = gaussian_delta(_total_mu(merged), epsilon)
        by_curve = renyi_delta(renyi_curve(merged), epsilon)
        return min(dominated, by_curve, _delta_beside(merged, epsilon))
    mu, others = _split(merged)
    if not others:
        bounds = [gaussian_delta(mu, epsilon)]
    elif len(merged) == len(others) == 1 and isinstance(merged[0], RandomizedResponse):
        bounds = [response_loss(merged[0]).delta(epsilon)]
    else:
        rough = _dominated_epsilon(mu, others, _ROUGH_DELTA)
        if rough > _GRID_UP_TO or _too_long(others):
            raise ConfigError(
                f"Expected events that cost less than about {_GRID_UP_TO:g} in ε, of at most "
                f"{_MOST_STEPS:,} sampled steps, got about {rough:.3g}."
            )
        bounds = [float(_composed(mu, others, rough).get_delta_for_epsilon(epsilon))]
    if any(isinstance(event, _LABELS) for event in merged):
        bounds.append(renyi_delta(renyi_curve(merged), epsilon))
    return min(*bounds, _delta_beside(merged, epsilon))


def epsilon_rdp(events: Sequence[Event], delta: float) -> float:
    """A second opinion by Rényi DP, for the same plans as `epsilon`.

    Raises:
        ConfigError: delta is not inside (0, 1).
    """
    expect_delta(delta)
    merged = _merged(events)
    if not merged:
        return 0.0
    divergences = np.sum([renyi(event) for event in merged], axis=0)
    return epsilon_of_renyi(divergences, delta)


def epsilon_filter(events: Sequence[Event], delta: float) -> float:
    """ε of all events, in the order they were booked, when each was chosen after earlier answers.

    See `spent_epsilon`.

    Raises:
        ConfigError: delta is not inside (0, 1).
    """
    return spent_epsilon(Spent(events), delta)


def spent_epsilon(spent: Spent, delta: float) -> float:
    """ε of everything that was booked, when each event was chosen after earlier answers.

    Refusing every event that would lift this figure above a fixed limit makes all that was
    answered (limit, δ)-DP together.

    Guarantee
        The first event, which no answer can have influenced, decides for good.
        - A Gaussian: μ² adds over everything, other kinds at the μ of a Gaussian that dominates
          them (Gaussian DP filter: Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023),
          at all of δ but 2⁻³² of it. That share belongs to a Rényi filter beside it, for what
          no Gaussian dominates and for what gains from sampling; an event is refused only if
          both refuse it, which `filters` proves to be sound.
        - Anything else: Rényi divergences add at one order (`filters`); ρ, where nothing gains
          from sampling.
        - A training run, booked as ONE event, and nothing after it: by its loss distribution.
          Either the limit has room for it by the Rényi filter, and then that filter covers all
          that is ever answered, or it has not, and then nothing else is ever answered. The limit
          alone decides which, not the answers, so that no share of δ is lost.

    Raises:
        ConfigError: delta is not inside (0, 1).
    """
    expect_delta(delta)
    first = spent.first
    if first is None:
        return 0.0
    if isinstance(first, Gaussian):
        gaussian = gaussian_epsilon(spent.mu, (1 - _SPARE) * delta)
        return min(gaussian, spent.renyi_filter(_SPARE * delta))
    if spent.number == 1 and isinstance(first, PoissonGaussian | ReleasedImages | Together):
        return epsilon([first], delta)
    return spent.renyi_filter(delta)


def guarantee(plan: PrivacyPlan) -> Guarantee:
    """The headline of a plan that is fixed before its first answer.

    Raises:
        UnsupportedAdjacencyError: a release has no cost in the plan's unit and adjacency.
        ConfigError: the plan's delta is not inside (0, 1).
    """
    events = [release.event(plan.unit, plan.adjacency) for release in plan.releases]
    value, accountant = quote(events, plan.delta)
    return Guarantee(plan.unit, plan.adjacency, value, plan.delta, accountant)


def sound_table(
    releases: Sequence[MechanismRelease], unit: Unit, delta: float
) -> dict[Adjacency, float]:
    """ε of a fixed plan under every adjacency that all of its releases support.

    Raises:
        ConfigError: delta is not inside (0, 1).
    """
    table: dict[Adjacency, float] = {}
    for adjacency in Adjacency:
        try:
            events = [release.event(unit, adjacency) for release in releases]
        except UnsupportedAdjacencyError:
            continue
        table[adjacency] = epsilon(events, delta)
    return table


def _composed(mu: float, others: tuple[Event, ...], rough: float) -> "PrivacyLossDistribution":
    # Of dp_accounting, which takes a second to import: closed forms do without.
    from fedtranscribe.privacy import loss

    sampled = any(isinstance(event, _SAMPLED) for event in others)
    fine = _FINE_SAMPLED_UP_TO if sampled else _FINE_UP_TO
    # Images have a finer grid of their own, so that what they cost alone need not be sampled.
    images = [event for event in others if isinstance(event, ReleasedImages)]
    alone = _dominated_epsilon(0.0, images, _ROUGH_DELTA) if images else 0.0
    steps = [event.distance for event in others if isinstance(event, PoissonGaussian)]
    widest = max(map(_reach, [mu, *steps]))
    width = max(1.0, rough / fine, alone / _FINE_UP_TO, widest / GRID / _MOST_POINTS)
    return loss.composed(mu, others, GRID * width)


@lru_cache(maxsize=256)
def _quote(merged: tuple[Event, ...], delta: float) -> tuple[float, str]:
    if _only_in_zcdp(merged):
        # Without a gain from sampling anywhere the first is the conversion of the sum of all ρ;
        # a plan that is mostly Gaussian has less under the Gaussian that dominates all of it.
        dominated = gaussian_epsilon(_total_mu(merged), delta)
        by_curve = renyi_epsilon(renyi_curve(merged), delta)
        return min((by_curve, ZCDP), (dominated, DOMINATED), *_labels_beside(merged, delta))
    mu, others = _split(merged)
    candidates: list[tuple[float, str]] = []
    if not others:
        closed = CLOSED_FORM if all(isinstance(e, Gaussian) for e in merged) else DOMINATED
        candidates.append((gaussian_epsilon(mu, delta), closed))
    elif len(merged) == len(others) == 1 and isinstance(merged[0], RandomizedResponse):
        candidates.append((response_loss(merged[0]).epsilon(delta), ON_GRID))
    else:
        rough = _dominated_epsilon(mu, others, delta)
        candidates.append((rough, DOMINATED))
        if rough <= _GRID_UP_TO and not _too_long(others):
            pld = _composed(mu, others, rough)
            with np.errstate(over="ignore"):  # far out, where hardly any mass is left
                candidates.append((float(pld.get_epsilon_for_delta(delta)), ON_GRID))
    # At a tiny δ the grid's own error hides what labels cost together.
    if any(isinstance(event, _LABELS) for event in merged):
        by = RENYI if any(isinstance(event, _SAMPLED) for event in merged) else ZCDP
        candidates.append((renyi_epsilon(renyi_curve(merged), delta), by))
    return min([*candidates, *_labels_beside(merged, delta)])


def _labels_beside(merged: tuple[Event, ...], delta: float) -> list[tuple[float, str]]:
    """Labels at their pure ε, which takes nothing of δ, and the rest at all of δ; if any."""
    rest = _without_labels(merged)
    if len(rest) == len(merged):
        return []
    beside, accountant = _quote(rest, delta) if rest else (0.0, PURE)
    return [(_pure(merged) + beside, PURE_BESIDE if rest else accountant)]


def _delta_beside(merged: tuple[Event, ...], epsilon: float) -> float:
    """δ of the rest, at what the pure ε of labels leaves; 1 without labels, or if they leave none.

    The inverse of `_labels_beside`.
    """
    rest, left = _without_labels(merged), epsilon - _pure(merged)
    return delta_of(rest, left) if len(rest) < len(merged) and left >= 0 else 1.0


def _dominated_epsilon(mu: float, others: Sequence[Event], delta: float) -> float:
    """An upper bound that holds at any size: who was sampled is given away as well.

    With probability 1 − δ/2 a unit joins no more steps of a sampled event than its coin's upper
    quantile; each such step is a plain Gaussian. Labels are taken at their dominating Gaussian.
    """
    sampled = [event for event in others if isinstance(event, _SAMPLED)]
    share = delta / 2 / max(1, len(sampled))
    squares = [mu**2]
    for event in others:
        if isinstance(event, _SAMPLED):
            joined = _most_joined(event.count, event.sampling_probability, share)
            squares.append(joined * event.distance**2)
        else:
            squares.append(event.gdp_mu**2)
    return gaussian_epsilon(math.sqrt(math.fsum(squares)), delta / 2 if sampled else delta)


def _most_joined(count: int, coin: float, share: float) -> float:
    """A number of steps that a unit's coin exceeds with probability at most `share`.

    The upper quantile of the binomial; the library finds none for huge counts. There Bernstein's
    inequality, which is looser by about a standard deviation:
    P(X >= nq + t) <= exp(-t² / (2 nq(1 − q) + 2t/3)), solved for t.
    """
    quantile = (
        float(scipy.stats.binom.isf(share, count, coin)) if count <= _MOST_COUNTED else math.nan
    )
    if math.isfinite(quantile):
        return quantile
    log_share = -math.log(share)
    third = log_share / 3
    beyond = third + math.sqrt(third**2 + 2 * log_share * count * coin * (1 - coin))
    return min(float(count), count * coin + beyond)


def _pure(events: Sequence[Event]) -> float:
    """What the labels among events cost in pure ε."""
    return math.fsum(
        event.pure if isinstance(event, ExponentialVotes) else event.epsilon0 * event.count
        for event in events
        if isinstance(event, _LABELS)
    )


def _without_labels(merged: Sequence[Event]) -> tuple[Event, ...]:
    return tuple(event for event in merged if not isinstance(event, _LABELS))


def _split(merged: Sequence[Event]) -> tuple[float, tuple[Event, ...]]:
    """Total μ of what is Gaussian or is counted by its dominating one, and the rest."""
    plain = [event for event in merged if isinstance(event, Gaussian | ExponentialVotes)]
    plain += [event for event in merged if _too_many(event)]
    return _total_mu(plain), tuple(event for event in merged if event not in plain)


def _too_many(event: Event) -> bool:
    """Whether its own loss distribution would take more memory than it is worth."""
    return isinstance(event, RandomizedResponse) and event.count > MOST_RESPONSES


def _too_long(events: Sequence[Event]) -> bool:
    """Whether sampled steps are too many for a grid, or single losses too large for a double."""
    steps = [event for event in events if isinstance(event, _SAMPLED)]
    return any(
        event.count > _MOST_STEPS
        or (isinstance(event, PoissonGaussian) and _reach(event.distance) > _LARGEST_LOSS)
        for event in steps
    )


def _reach(mu: float) -> float:
    """A loss that N(0, 1) against N(μ, 1) exceeds with probability below 1e-18."""
    return mu * (mu / 2 + 9)


def _only_in_zcdp(merged: Sequence[Event]) -> bool:
    """Whether one of them has a bound in ρ and no other, so that all have to be counted in ρ."""
    return any(isinstance(event, ZeroConcentrated) for event in merged)


def _total_mu(events: Sequence[Event]) -> float:
    return math.sqrt(math.fsum(event.gdp_mu**2 for event in events))


def _merged(events: Sequence[Event]) -> tuple[Event, ...]:
    """Equal events composed by count, in a fixed order; those that cost nothing left out."""
    counts: defaultdict[Event, int] = defaultdict(int)
    for event in (part for each in events for part in flat(each)):
        if event.gdp_mu > 0:
            if isinstance(event, PoissonGaussian) and event.adjacency is Adjacency.ADD_REMOVE:
                event = replace(event, adjacency=Adjacency.ZERO_OUT)  # the same pair
            counts[replace(event, count=1)] += event.count
    merged = [replace(event, count=count) for event, count in counts.items()]
    return tuple(sorted(merged, key=repr))
