"""Plans chosen on the way: against fixed plans, the rule itself, and an adversary."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ledger_cases import DELTA, RECORD, ZERO_OUT, epsilon_of, open_ledger

from fedtranscribe.privacy import renyi
from fedtranscribe.privacy.accountant import epsilon, epsilon_filter
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.closed_forms import (
    ORDERS,
    gaussian_epsilon,
    order_costs,
    renyi_epsilon,
    zcdp_epsilon,
)
from fedtranscribe.privacy.events import Event, Gaussian, PoissonGaussian, Together
from fedtranscribe.privacy.label_events import ExponentialVotes, RandomizedResponse
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.released_images import ReleasedImages
from fedtranscribe.privacy.totals import Spent, renyi_curve
from fedtranscribe.privacy.zcdp import ZeroConcentrated

IMAGES = ReleasedImages(0.93, 60_000, 32, 2_000)
STEPS = PoissonGaussian(0.02, 1.5, 400)
RUN = Together((IMAGES, STEPS))

PLAIN = st.one_of(
    st.builds(Gaussian, st.floats(1e-3, 0.5), st.integers(1, 20)),
    st.builds(RandomizedResponse, st.floats(1e-3, 0.5), st.integers(2, 20), st.integers(1, 50)),
    st.builds(ExponentialVotes, st.floats(1e-3, 0.3), st.integers(2, 20), st.integers(1, 20)),
    st.builds(ZeroConcentrated, st.floats(1e-5, 0.05), st.integers(1, 5)),
)
ANY = st.one_of(PLAIN, st.sampled_from([IMAGES, STEPS, RUN, replace(STEPS, count=50)]))


@pytest.mark.long
@given(events=st.lists(ANY, min_size=1, max_size=5), delta=st.sampled_from([1e-5, 1e-6]))
@example(events=[Gaussian(0.5), ZeroConcentrated(1 / 64)], delta=1e-6)
@settings(deadline=None, max_examples=25)
def test_no_filter_is_below_the_same_plan_fixed_beforehand(
    events: list[Event], delta: float
) -> None:
    fixed = epsilon(events, delta)
    # Adding roundings of the grid, which fixed plans with labels or DP-SGD have.
    assert epsilon_filter(events, delta) >= fixed * (1 - 1e-3) - 2e-4


@given(events=st.lists(ANY, min_size=1, max_size=5), more=ANY)
@settings(deadline=None, max_examples=40)
def test_more_never_costs_less(events: list[Event], more: Event) -> None:
    before = epsilon_filter(events, DELTA)
    assert epsilon_filter([*events, more], DELTA) >= before * (1 - 1e-9)
    assert epsilon_filter(events, DELTA / 3) >= before * (1 - 1e-9)


@given(
    first=ANY,
    rest=st.lists(ANY, max_size=4),
    limit=st.floats(0.05, 30.0),
)
@settings(deadline=None, max_examples=80)
def test_comparing_with_a_limit_is_that_limits_own_filter(
    first: Event, rest: list[Event], limit: float
) -> None:
    # The order that has room for most of the first event, by brute force; then one sum.
    rooms = (limit - order_costs(DELTA)) / renyi_curve([first])
    best = int(np.argmax(rooms))
    spent = float(renyi_curve([first, *rest])[best])
    reported = Spent([first, *rest]).renyi_filter(DELTA)
    if reported <= limit:
        assert spent + order_costs(DELTA)[best] <= limit * (1 + 1e-9)
    if limit < renyi_epsilon(renyi_curve([first, *rest]), DELTA):
        assert reported > limit * (1 - 1e-9)


@pytest.mark.parametrize("event", [STEPS, IMAGES, RUN, Gaussian(0.1), ZeroConcentrated(0.01)])
@pytest.mark.parametrize("times", [1, 7, 60])
def test_more_of_the_same_is_counted_at_its_best_order(event: Event, times: int) -> None:
    curve = renyi_curve([event]) * times
    found = Spent([event] * times).renyi_filter(DELTA)
    assert found == pytest.approx(renyi_epsilon(curve, DELTA), rel=1e-6)


def test_without_sampling_the_filter_is_that_of_rho() -> None:
    events = [ZeroConcentrated(0.01, 3), Gaussian(0.1, 5), RandomizedResponse(0.2, 3, 7)]
    rho = math.fsum(event.zcdp_rho for event in events)
    assert epsilon_filter(events, DELTA) == pytest.approx(zcdp_epsilon(rho, DELTA), rel=1e-9)


@pytest.mark.parametrize("event", [STEPS, IMAGES])
def test_the_fine_curve_lies_on_or_above_what_is_known(
    event: PoissonGaussian | ReleasedImages,
) -> None:
    known = renyi.renyi(event)
    usable = np.isfinite(known) & (known < event.zcdp_rho * renyi.ORDERS)
    curve = np.interp(renyi.ORDERS[usable], ORDERS, renyi_curve([event]))
    assert (curve >= known[usable] * (1 - 1e-6)).all()
    # Straight lines lie visibly above only where the divergence takes off.
    assert np.mean(curve / known[usable] < 1.01) > 0.9
    assert (np.diff(renyi_curve([event])) >= -1e-12).all()
    assert (renyi_curve([event]) <= event.zcdp_rho * ORDERS * (1 + 1e-12)).all()


def test_training_keeps_its_gain_from_sampling_wherever_it_comes() -> None:
    rows = Gaussian(0.05, 10)
    without_gain = gaussian_epsilon(math.hypot(RUN.gdp_mu, rows.gdp_mu), DELTA)
    fixed = epsilon([RUN, rows], DELTA)
    after, before = epsilon_filter([RUN, rows], DELTA), epsilon_filter([rows, RUN], DELTA)
    assert fixed < after < 1.25 * fixed
    assert after < before < without_gain / 4


def test_gaussians_first_do_not_feel_the_share_kept_for_others() -> None:
    for mu in (0.05, 0.268, 2.0):
        assert epsilon_filter([Gaussian(mu)], DELTA) == pytest.approx(
            gaussian_epsilon(mu, DELTA), rel=1e-9
        )


def test_mixed_kinds_are_finite_whatever_comes_first() -> None:
    rows, sums = Gaussian(0.1, 10), ZeroConcentrated(1e-4, 100)
    in_rho = zcdp_epsilon(rows.zcdp_rho + sums.zcdp_rho, DELTA)
    assert epsilon_filter([sums, rows], DELTA) == pytest.approx(in_rho, rel=1e-9)
    assert in_rho * 0.8 < epsilon_filter([rows, sums], DELTA) < in_rho * 1.05
    assert epsilon_filter([rows, sums, RUN], DELTA) < math.inf


def test_free_events_decide_nothing() -> None:
    assert epsilon_filter([Gaussian(0.0), RUN], DELTA) == epsilon([RUN], DELTA)


def test_the_best_adversary_stays_below_delta() -> None:
    """Every adaptive choice among three kinds of labels, by dynamic programming.

    The value of a state is the largest E[(1 − e^(limit − loss))+] that is still to be had; the
    filter's promise is that it starts at δ or below.
    """
    delta, unit = 0.05, 0.2
    kinds = [RandomizedResponse(unit * n, 2) for n in (1, 2, 5)]
    for first in kinds:
        limit = epsilon_filter([first] * (10 if first is kinds[0] else 3), delta)

        @cache
        def allowed(counts: tuple[int, ...], first: Event = first, limit: float = limit) -> bool:
            events = [
                first,
                *(replace(k, count=n) for k, n in zip(kinds, counts, strict=True) if n),
            ]
            return epsilon_filter(events, delta) <= limit

        @cache
        def worst(counts: tuple[int, ...], lost: int, limit: float = limit) -> float:
            value = max(0.0, -math.expm1(limit - unit * lost))
            for i, (kind, steps) in enumerate(zip(kinds, (1, 2, 5), strict=True)):
                after = tuple(n + (i == j) for j, n in enumerate(counts))
                if allowed(after):
                    truth = 1 / (1 + math.exp(-kind.epsilon0))
                    value = max(
                        value,
                        truth * worst(after, lost + steps)
                        + (1 - truth) * worst(after, lost - steps),
                    )
            return value

        start = (0, 0, 0)
        steps = round(first.epsilon0 / unit)
        truth = 1 / (1 + math.exp(-first.epsilon0))
        reached = truth * worst(start, steps) + (1 - truth) * worst(start, -steps)
        assert 0 < reached <= delta


# In the ledger


def booked(ledger, *events: Event) -> None:
    for i, event in enumerate(events):
        ledger.reserve(f"q{i}", "h", MechanismRelease("x", 1, {RECORD: {ZERO_OUT: event}}), "run")


def test_a_run_alone_costs_its_loss_distribution_and_fills_a_budget_exactly(
    tmp_path: Path,
) -> None:
    fixed = epsilon([RUN], DELTA)
    with open_ledger(tmp_path / "l", Budget(fixed, DELTA, RECORD, ZERO_OUT)) as ledger:
        booked(ledger, RUN)
        assert epsilon_of(ledger) == pytest.approx(fixed, rel=1e-12)


def test_a_second_run_like_the_first_was_chosen_after_it(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "l") as ledger:
        booked(ledger, RUN, RUN, RUN)
        total = epsilon_of(ledger)
    assert total == pytest.approx(epsilon_filter([RUN] * 3, DELTA), rel=1e-9)
    assert total > epsilon([replace(RUN, count=3)], DELTA)


def test_a_run_survives_the_book(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "l") as ledger:
        booked(ledger, RUN, Gaussian(0.1), ZeroConcentrated(0.01))
        expected = epsilon_filter([RUN, Gaussian(0.1), ZeroConcentrated(0.01)], DELTA)
    with open_ledger(tmp_path / "l") as again:
        assert again.releases()[0].event(RECORD, ZERO_OUT) == RUN
        assert epsilon_of(again) == pytest.approx(expected, rel=1e-12)
