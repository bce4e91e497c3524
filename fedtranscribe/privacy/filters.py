"""The privacy filter of a ledger that holds more than Gaussians: Rényi divergences at one order.

Who chooses what is asked next after seeing earlier answers may not add up privacy loss
distributions: those add for plans that are fixed. Rényi divergences do add, at an order that was
fixed beforehand.

Guarantee
    Let events be chosen one by one, each after all earlier answers, event i with
    D_α(P_i‖Q_i) ≤ r_i(α) in both directions whatever came before, and let an event be refused if
    Σ r_i(α) would exceed B. Then all answers together are (ε, δ)-DP with
    ε = B + log(1 − 1/α) − (log δ + log α)/(α − 1).
    Proof. L_i, the loss of answer i, has E_P[e^{(α−1) L_i} | earlier] = e^{(α−1) D_α} ≤
    e^{(α−1) r_i(α)}, where r_i(α) is known before the answer. So
    exp((α − 1) Σ (L_i − r_i(α))) is a supermartingale that starts at 1, and as the sum of all
    r_i(α) never exceeds B, E_P e^{(α−1) L} ≤ e^{(α−1) B}: divergence at most B at order α. The
    conversion is Canonne, Kamath and Steinke 2020, Proposition 12. ∎
    Source: Feldman and Zrnic 2021, Theorem 4.3; Lécuyer 2021, Theorem 1.

Several orders
    "Go on as long as ANY order has room left" is not covered: which order will be the last one
    is up to the answers, and the proof above gives δ for each. What holds is the union bound:
    with shares w_k that add up to 1, filter k run at w_k δ, and a refusal only when all of them
    refuse, what was answered is (ε, δ)-DP. Proof. Cut the interaction off where filter k first
    refuses: that is (ε, w_k δ)-DP, and agrees with the real one on the set E_k of endings that
    filter k allows. Costs only add up, so every ending lies in some E_k. Split a set of outcomes
    into parts of the E_k and add: Σ (e^ε Q(part) + w_k δ). ∎

Which order
    One order, the best for more and more of what was booked FIRST, at the limit in force: no
    answer can have influenced either. As ε the filter reports the smallest limit from which on
    it allows what was booked, so that comparing it with a limit is that limit's own filter.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fedtranscribe.privacy import renyi
from fedtranscribe.privacy.closed_forms import ORDERS, order_costs
from fedtranscribe.privacy.events import Event, PoissonGaussian, flat
from fedtranscribe.privacy.released_images import ReleasedImages


def renyi_curve(events: Sequence[Event]) -> np.ndarray:
    """Total Rényi divergence at every one of `closed_forms.ORDERS`; finite everywhere.

    What gains from sampling is looked up at the coarser `renyi.ORDERS`; (α − 1) D_α is convex in α
    and 0 at α = 1, so that straight lines between two of them lie above. Everything else, and
    every order that is too high for a gain, is counted in ρ: D_α ≤ ρ α.
    """
    total, rho = np.zeros_like(ORDERS), 0.0
    for event in events:
        for part in flat(event):
            if isinstance(part, PoissonGaussian | ReleasedImages):
                total = total + _sampled_curve(part)
            else:
                rho += part.zcdp_rho
    return total + rho * ORDERS


def renyi_filter(events: Sequence[Event], delta: float) -> float:
    """ε of all events, in the order they were booked, when each was chosen after earlier answers.

    Args:
        events: each of them costs something; the first chooses the order.
        delta: the filter's own δ.
    """
    total = renyi_curve(events)
    orders, starts = _plan(events[0], delta)
    # In the stretch of limits that is an order's own, it refuses below `needed`.
    needed = total[orders] + order_costs(delta)[orders]
    refused_up_to = np.minimum(needed, np.append(starts[1:], np.inf))
    return max(0.0, float(refused_up_to[needed > starts].max(initial=0.0)))


@lru_cache(maxsize=64)
def _plan(first: Event, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the orders that are best for some limit, and the limit where each takes over.

    At a limit ε order α has room for (ε − cost)/r(α) more of the first event; the best orders
    are the upper envelope of these lines in ε.
    """
    steepness = 1 / renyi_curve([first])
    slopes, heights = steepness.tolist(), (-order_costs(delta) * steepness).tolist()
    # r grows with α, so that from the highest order down the lines get steeper.
    kept: list[int] = []
    starts: list[float] = []
    for index in range(len(ORDERS) - 1, -1, -1):
        start = -math.inf
        while kept:
            rise = slopes[index] - slopes[kept[-1]]
            behind = heights[kept[-1]] - heights[index]
            start = behind / rise if rise > 0 else math.copysign(math.inf, behind)
            if start > starts[-1]:
                break
            kept.pop()
            starts.pop()
            start = -math.inf
        if start < math.inf:
            kept.append(index)
            starts.append(start)
    return np.array(kept), np.array(starts)


@lru_cache(maxsize=256)
def _sampled_curve(event: PoissonGaussian | ReleasedImages) -> np.ndarray:
    coarse = renyi.renyi(event)
    known = np.isfinite(coarse)
    at, gaps = renyi.ORDERS[known], renyi.ORDERS[known] - 1
    lines = np.interp(
        ORDERS, np.append(1.0, at), np.append(0.0, gaps * coarse[known]), right=np.inf
    )
    return np.minimum(lines / (ORDERS - 1), event.zcdp_rho * ORDERS)
