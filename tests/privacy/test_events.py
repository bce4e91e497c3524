import itertools
import json
import math

import numpy as np
import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtranscribe.errors import ConfigError, UnsupportedAdjacencyError
from fedtranscribe.privacy.closed_forms import gaussian_delta
from fedtranscribe.privacy.events import (
    Event,
    Gaussian,
    PoissonGaussian,
    Together,
    event_from_json,
    flat,
)
from fedtranscribe.privacy.label_events import ExponentialVotes, RandomizedResponse
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.released_images import ReleasedImages
from fedtranscribe.privacy.units import Adjacency, Unit

COUNTS = st.integers(1, 10**6)
POSITIVE = st.floats(1e-6, 50.0)
COUNTED_EVENTS = st.one_of(
    st.builds(Gaussian, POSITIVE, COUNTS),
    st.builds(RandomizedResponse, POSITIVE, st.integers(1, 300), COUNTS),
    st.builds(ExponentialVotes, POSITIVE, st.integers(1, 300), COUNTS),
    st.builds(PoissonGaussian, st.floats(1e-6, 1.0), POSITIVE, COUNTS, st.sampled_from(Adjacency)),
    st.builds(
        ReleasedImages,
        POSITIVE,
        st.integers(1_000, 10**6),
        st.integers(1, 1_000),
        COUNTS,
        st.sampled_from([Adjacency.ZERO_OUT, Adjacency.REPLACE]),
    ),
)
EVENTS = st.one_of(
    COUNTED_EVENTS,
    st.builds(Together, st.lists(COUNTED_EVENTS, min_size=1, max_size=3).map(tuple), COUNTS),
)


def response(epsilon0: float, classes: int, truth: int) -> np.ndarray:
    """The distribution of one answer."""
    weights = np.ones(classes)
    weights[truth] = math.exp(epsilon0)
    return weights / weights.sum()


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


@given(event=EVENTS)
@settings(deadline=None, max_examples=100)
def test_events_survive_canonical_json(event: Event) -> None:
    # Canonical JSON writes 1.0 as 1, so the way back must restore the types.
    stored = rfc8785.dumps(event.to_json())
    again = event_from_json(json.loads(stored))
    assert again == event
    assert rfc8785.dumps(again.to_json()) == stored
    assert [type(v) for v in vars(again).values()] == [type(v) for v in vars(event).values()]


@given(event=EVENTS, times=st.integers(1, 1000))
@settings(deadline=None, max_examples=100)
def test_totals_grow_with_the_count_exactly(event: Event, times: int) -> None:
    many = type(event)(**{**vars(event), "count": event.count * times})
    assert many.zcdp_rho == pytest.approx(times * event.zcdp_rho, rel=1e-9)
    assert many.gdp_mu == pytest.approx(math.sqrt(times) * event.gdp_mu, rel=1e-9)


def test_parts_are_counted_with_the_whole() -> None:
    inner = Together((Gaussian(0.1, 2), RandomizedResponse(0.2, 3)), 3)
    outer = Together((inner, Gaussian(0.5)), 2)
    assert list(flat(outer)) == [
        Gaussian(0.1, 12),
        RandomizedResponse(0.2, 3, 6),
        Gaussian(0.5, 2),
    ]
    assert outer.zcdp_rho == pytest.approx(sum(part.zcdp_rho for part in flat(outer)))
    assert outer.gdp_mu**2 == pytest.approx(sum(part.gdp_mu**2 for part in flat(outer)))


@pytest.mark.parametrize("epsilon0", [0.01, 0.5, 2.0, 8.0])
@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_response_is_dominated_by_its_gaussian_and_by_no_weaker_one(
    epsilon0: float, classes: int
) -> None:
    p, q = response(epsilon0, classes, 0), response(epsilon0, classes, 1)
    mu = RandomizedResponse(epsilon0, classes).gdp_mu
    grid = np.linspace(-epsilon0 * 1.5, epsilon0 * 1.5, 401)
    exact = np.array([hockey_stick(p, q, e) for e in grid])
    bound = np.array([gaussian_delta(mu, e) for e in grid])
    weaker = np.array([gaussian_delta(0.99 * mu, e) for e in grid])
    assert (exact <= bound + 1e-12).all()
    assert (exact > weaker).any()


@pytest.mark.parametrize("epsilon0", [0.01, 0.5, 2.0, 8.0])
@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_response_renyi_is_exact_and_below_rho(epsilon0: float, classes: int) -> None:
    p, q = response(epsilon0, classes, 0), response(epsilon0, classes, 1)
    event = RandomizedResponse(epsilon0, classes)
    orders = np.array([1.01, 1.5, 2, 5, 20, 64])
    exact = [math.log(float((p**a * q ** (1 - a)).sum())) / (a - 1) for a in orders]
    assert event.renyi(orders) == pytest.approx(exact, rel=1e-9, abs=1e-12)
    assert (event.renyi(orders) <= event.zcdp_rho * orders).all()
    assert event.zcdp_rho <= epsilon0**2 / 2
    tight = float(
        (event.renyi(np.geomspace(1.0001, 1e4, 4000)) / np.geomspace(1.0001, 1e4, 4000)).max()
    )
    assert event.zcdp_rho == pytest.approx(tight, rel=5e-3)


@pytest.mark.parametrize("eta", [0.05, 0.7, 3.0])
@pytest.mark.parametrize("classes", [2, 3])
def test_exponential_votes_bounds_hold_for_every_neighbour(eta: float, classes: int) -> None:
    event = ExponentialVotes(eta, classes)
    orders = np.array([1.01, 2.0, 8.0, 32.0])
    for votes in itertools.product(range(5), repeat=classes):
        for source, target in itertools.permutations(range(classes), 2):
            if votes[source] == 0:
                continue
            moved = np.array(votes, dtype=float)
            moved[source] -= 1
            moved[target] += 1
            p, q = (np.exp(eta * (v - v.max())) for v in (np.array(votes, dtype=float), moved))
            p, q = p / p.sum(), q / q.sum()
            assert np.abs(np.log(p / q)).max() <= event.pure + 1e-12
            for a in orders:
                divergence = math.log(float((p**a * q ** (1 - a)).sum())) / (a - 1)
                assert divergence <= a * event.zcdp_rho + 1e-12
            for e in np.linspace(-2 * eta, 2 * eta, 41):
                assert hockey_stick(p, q, e) <= gaussian_delta(event.gdp_mu, e) + 1e-12


def test_one_voter_is_randomised_response() -> None:
    one_vote = np.array([1.0, 0.0, 0.0])
    weights = np.exp(0.3 * one_vote)
    assert weights / weights.sum() == pytest.approx(response(0.3, 3, 0))


def test_a_set_of_one_class_costs_nothing() -> None:
    for event in (RandomizedResponse(1.0, 1, 100), ExponentialVotes(1.0, 1, 100)):
        assert (event.gdp_mu, event.zcdp_rho) == (0.0, 0.0)


@pytest.mark.parametrize("event", [RandomizedResponse(300.0, 3), ExponentialVotes(300.0, 3)])
def test_extreme_strengths_stay_finite(event: Event) -> None:
    assert 10 < event.gdp_mu < 100
    assert math.isfinite(event.zcdp_rho)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Gaussian(-1.0), "0 <= mu=-1.0"),
        (lambda: Gaussian(math.nan), "mu=nan"),
        (lambda: Gaussian(math.inf), "mu=inf"),
        (lambda: Gaussian(1.0, 0), "count=0 >= 1"),
        (lambda: RandomizedResponse(-0.1, 3), "epsilon0=-0.1"),
        (lambda: RandomizedResponse(math.nan, 3), "epsilon0=nan"),
        (lambda: RandomizedResponse(301.0, 3), "epsilon0=301.0"),
        (lambda: RandomizedResponse(0.1, 0), "classes=0 >= 1"),
        (lambda: ExponentialVotes(-0.1, 3), "eta=-0.1"),
        (lambda: PoissonGaussian(0.0, 1.0), "sampling_probability=0.0"),
        (lambda: PoissonGaussian(1.1, 1.0), "sampling_probability=1.1"),
        (lambda: PoissonGaussian(0.5, 0.0), "noise_multiplier=0.0 > 0"),
        (lambda: Together(()), "at least one part"),
        (lambda: MechanismRelease("rows", 0, {}), "rows=0 >= 1"),
        (lambda: event_from_json({"kind": "laplace"}), "accounting event"),
        (lambda: event_from_json({"kind": "gaussian"}), "accounting event"),
        (lambda: event_from_json({"kind": "gaussian", "mu": 1, "eta": 1}), "accounting event"),
        (lambda: MechanismRelease.from_json({"mechanism": "rows"}), "Expected a release"),
    ],
)
def test_values_out_of_range(build, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


def make_release() -> MechanismRelease:
    event = Gaussian(0.1, 10)
    costs = {Adjacency.ZERO_OUT: event, Adjacency.REPLACE: event}
    return MechanismRelease("noisy-mean-rows", 5, {Unit.RECORD: costs})


def test_release_survives_canonical_json() -> None:
    release = make_release()
    stored = rfc8785.dumps(release.to_json())
    assert MechanismRelease.from_json(json.loads(stored)) == release


def test_release_knows_its_events() -> None:
    release = make_release()
    assert release.event(Unit.RECORD, Adjacency.REPLACE) == Gaussian(0.1, 10)
    with pytest.raises(UnsupportedAdjacencyError, match="add-remove"):
        release.event(Unit.RECORD, Adjacency.ADD_REMOVE)
    with pytest.raises(UnsupportedAdjacencyError, match="holder"):
        release.event(Unit.HOLDER, Adjacency.REPLACE)


def test_release_with_other_rows_costs_the_same_per_row() -> None:
    assert make_release().with_rows(15).event(Unit.RECORD, Adjacency.REPLACE) == Gaussian(0.1, 30)
    assert make_release().with_rows(15).rows == 15
    odd = MechanismRelease("rows", 3, {Unit.RECORD: {Adjacency.REPLACE: Gaussian(0.1, 10)}})
    with pytest.raises(ConfigError, match="count=10 to be a multiple of rows=3"):
        odd.with_rows(6)
