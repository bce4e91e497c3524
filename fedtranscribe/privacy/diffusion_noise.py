"""How much noise private diffusion needs for a target ε; what its Phase I leaves of a budget."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from functools import cache
from typing import TypeVar

from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.accountant import epsilon as epsilon_of_plan
from fedtranscribe.privacy.accountant import epsilon_rdp
from fedtranscribe.privacy.diffusion import DpPromisePlan, DpSadPlan
from fedtranscribe.privacy.events import Event
from fedtranscribe.privacy.label_events import GRID
from fedtranscribe.privacy.released_images import ReleasedImages
from fedtranscribe.privacy.units import Adjacency, expect_delta, expect_epsilon

_SMALLEST_SIGMA, _LARGEST_SIGMA = 1e-3, 1e6
_BOLDEST = 0.5
"""How far one step of a search for noise goes at most, as a ratio."""
_CLOSE = 1e-3
"""How close below its target a calibrated ε lies, as a ratio."""


class CalibrateBy(StrEnum):
    """Which figure a target ε means."""

    SOUND = "sound"
    PUBLISHED = "published"


DiffusionPlan = TypeVar("DiffusionPlan", DpPromisePlan, DpSadPlan)


def sound_epsilon(
    plan: DpPromisePlan | DpSadPlan, delta: float, adjacency: Adjacency = Adjacency.ZERO_OUT
) -> float:
    """ε of a plan.

    Raises:
        UnsupportedAdjacencyError: the plan has no guarantee there.
        ConfigError: delta is not inside (0, 1).
    """
    return epsilon_of_plan([plan.event(adjacency)], delta)


def calibrated(
    plan: DiffusionPlan,
    epsilon: float,
    delta: float,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    by: CalibrateBy = CalibrateBy.SOUND,
    before: Sequence[Event] = (),
) -> DiffusionPlan:
    """The plan with the smallest noise at which it costs at most ε; its own sigma is not used.

    Args:
        plan: everything but the noise.
        epsilon: target, reached from below to one part in a thousand.
        delta: target.
        adjacency: in which the target is meant; the papers' formulas know none.
        by: whether the target is the sound figure or what the paper's formula prints.
        before: what the same run releases besides, in this adjacency; the sound ε is of it all.

    Raises:
        ConfigError: a value is out of range, epsilon is too small to be distinguished from 0, or no
            noise suffices: dp-promise's Phase I alone costs more; the message names a boundary that
        fits. UnsupportedAdjacencyError: the plan has no guarantee in that adjacency.
    """
    expect_epsilon(epsilon)
    expect_delta(delta)
    if by is CalibrateBy.SOUND and epsilon < GRID:
        raise ConfigError(
            f"Expected epsilon={epsilon:g} >= {GRID:g}: the accountant resolves no smaller one."
        )

    @cache
    def cost(sigma: float) -> float:
        candidate = replace(plan, sigma=sigma)
        if by is CalibrateBy.PUBLISHED:
            return candidate.published(delta).epsilon
        return epsilon_of_plan([*before, candidate.event(adjacency)], delta)

    if isinstance(plan, DpPromisePlan) and by is CalibrateBy.SOUND:
        expect_phase1_fits(plan, epsilon, delta, adjacency, before)
    start = float(plan.dilution) if isinstance(plan, DpSadPlan) else 1.0
    if by is CalibrateBy.PUBLISHED:
        return replace(plan, sigma=_smallest_sigma(cost, epsilon, start))

    @cache
    def bound(sigma: float) -> float:
        return epsilon_rdp([*before, replace(plan, sigma=sigma).event(adjacency)], delta)

    # The bound in Rényi DP takes milliseconds where a composition takes seconds, and leads to
    # within a few per cent of the noise that is sought, but for an ε too small for its orders.
    factor = _BOLDEST
    with suppress(ConfigError):
        start, factor = _smallest_sigma(bound, epsilon, start), 0.9
    return replace(plan, sigma=_smallest_sigma(cost, epsilon, start, factor))


def expect_phase1_fits(
    plan: DpPromisePlan,
    epsilon: float,
    delta: float,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    before: Sequence[Event] = (),
) -> None:
    """Refuse a plan whose Phase I, and what comes `before`, leave nothing of ε for Phase II.

    At most one composition: at a holder's node a server may ask for this as often as it likes.

    Raises:
        ConfigError: names a boundary that fits.
    """
    if plan.has_phase1 and not _fits(plan, epsilon, delta, adjacency, before):
        cost = _phase1_cost(plan, epsilon, delta, adjacency, before)
        smallest = smallest_boundary(plan, epsilon, delta, adjacency, plan.boundary, before)
        who = "Phase I and the private start cost" if before else "Phase I alone costs"
        last = " (no Phase I at all)" if smallest > plan.time_steps else ""
        if last and not plan.cached:
            last = " (no Phase I at all; a smaller one may do)"
        raise ConfigError(
            f"Expected boundary={plan.boundary} >= {smallest}{last}: {who} "
            f"{cost} ({adjacency.value}, delta={delta:g}); raise the boundary, train fewer "
            f"epochs in Phase I, or allow a larger epsilon."
        )


def _phase1_cost(
    plan: DpPromisePlan,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    before: Sequence[Event],
) -> str:
    event = plan.phase1_event(adjacency)
    assert event is not None
    # Where one step is too much already, composing all of them takes minutes and adds nothing.
    if isinstance(event, ReleasedImages) and event.exceeds(epsilon, delta):
        return f"more than epsilon={epsilon:g} in every step"
    return f"epsilon={epsilon_of_plan([*before, event], delta):.4g} of {epsilon:g}"


def smallest_boundary(
    plan: DpPromisePlan,
    epsilon: float,
    delta: float,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    above: int = 0,
    before: Sequence[Event] = (),
) -> int:
    """The smallest S whose Phase I is known to cost less than ε, 1..T + 1, without composing it.

    The plan's own S is not used. Images that are drawn anew are bounded in Rényi DP, which takes
    milliseconds where a composition takes seconds: S may be a few steps larger than need be.
    `above` is an S that is known not to fit; `before` as for `calibrated`.

    Raises:
        ConfigError: a value is out of range.
    """
    expect_epsilon(epsilon)
    expect_delta(delta)
    fails, fits = above, plan.time_steps + 1
    while fits - fails > 1:
        middle = (fails + fits) // 2
        if _surely_fits(replace(plan, boundary=middle), epsilon, delta, adjacency, before):
            fits = middle
        else:
            fails = middle
    # At S = T no time step is left for Phase I to train.
    return plan.time_steps + 1 if fits == plan.time_steps else fits


def _fits(
    plan: DpPromisePlan,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    before: Sequence[Event],
) -> bool:
    event = plan.phase1_event(adjacency)
    if event is None or _surely_fits(plan, epsilon, delta, adjacency, before):
        return True
    if isinstance(event, ReleasedImages) and event.exceeds(epsilon, delta):
        return False  # spares a long composition
    return epsilon_of_plan([*before, event], delta) < epsilon * (1 - 2 * _CLOSE)


def _surely_fits(
    plan: DpPromisePlan,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    before: Sequence[Event],
) -> bool:
    """Whether Phase I is seen to fit at once: by its closed form, or by its bound in Rényi DP."""
    event = plan.phase1_event(adjacency)
    if event is None:
        return True
    if isinstance(event, ReleasedImages):
        if event.exceeds(epsilon, delta):
            return False
        bound = epsilon_rdp([*before, event], delta)
    else:
        bound = epsilon_of_plan([*before, event], delta)
    return bound < epsilon * (1 - 2 * _CLOSE)


def _smallest_sigma(
    cost: Callable[[float], float], epsilon: float, start: float, factor: float = _BOLDEST
) -> float:
    """Where the cost, which falls with σ, is between target · (1 − 1e-3) and target.

    The search starts at `start` and moves by `factor`, more boldly with every step.
    """
    low = high = start
    while cost(high) > epsilon:
        low, high = high, high / factor
        factor = max(_BOLDEST, factor**2)
        if high > _LARGEST_SIGMA:
            raise ConfigError(
                f"Expected a noise multiplier below {_LARGEST_SIGMA:g} to reach "
                f"epsilon={epsilon:g}; allow a larger epsilon, train fewer epochs, or lower "
                "start_share where there is a private start."
            )
    while low == high or cost(low) <= epsilon:
        low, high = low * factor, low
        factor = max(_BOLDEST, factor**2)
        if high < _SMALLEST_SIGMA:
            return high
    while cost(high) < epsilon * (1 - _CLOSE):
        if cost(high) == 0:
            raise ConfigError(
                f"Expected a larger epsilon={epsilon:g}: at this delta the accountant cannot "
                "distinguish it from 0."
            )
        # A straight line in logarithms to the middle of what is close, kept away from the ends.
        aim = epsilon * (1 - _CLOSE / 2)
        above, below = math.log(cost(low) / aim), math.log(aim / cost(high))
        share = min(0.9, max(0.1, above / (above + below)))
        middle = low ** (1 - share) * high**share
        if cost(middle) <= epsilon:
            high = middle
        else:
            low = middle
    return high
