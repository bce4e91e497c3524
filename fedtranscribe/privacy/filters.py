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
from collections.abc import Iterable, Sequence
from copy import copy
from fractions import Fraction
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
    return Spent(events).curve


class Spent:
    """What a filter needs to know of everything that was booked, kept as running sums.

    Adding an event takes the same time however many there are. Sums of μ² and ρ are exact; that of
    curves has the rounding of a double.

    Attributes:
        first: the first event that costs something; None before there is one.
        number: how many such events were booked.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.first: Event | None = None
        self.number = 0
        self._squares = self._rho = Fraction(0)
        self._sampled = np.zeros_like(ORDERS)
        for event in events:
            self.add(event)

    def add(self, event: Event, times: int = 1) -> None:
        """Book an event so many times more, as so many events."""
        if event.gdp_mu > 0:
            self.first = self.first or event
            self.number += times
        self._squares += times * Fraction(event.gdp_mu**2)
        for part in flat(event):
            if isinstance(part, PoissonGaussian | ReleasedImages):
                self._sampled += times * _sampled_curve(part)
            else:
                self._rho += times * Fraction(part.zcdp_rho)

    def copy(self) -> "Spent":
        """One that can go on by itself."""
        twin = copy(self)
        twin._sampled = self._sampled.copy()
        return twin

    @property
    def mu(self) -> float:
        """Total μ of a Gaussian that dominates everything."""
        return math.sqrt(self._squares)

    @property
    def curve(self) -> np.ndarray:
        """Total Rényi divergence at every one of `ORDERS`, as `renyi_curve`."""
        return self._sampled + float(self._rho) * ORDERS

    def renyi_filter(self, delta: float) -> float:
        """ε of everything, each event chosen after earlier answers, at the filter's own δ.

        The first event chooses the order; there has to be one.
        """
        assert self.first is not None
        total = self.curve
        orders, starts = _plan(self.first, delta)
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
