"""Events out of files and messages: nothing is converted, and none can stop the accountant."""

import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtranscribe.errors import ConfigError, FedtranscribeError
from fedtranscribe.privacy import (
    Adjacency,
    Gaussian,
    MechanismRelease,
    PoissonGaussian,
    Together,
    Unit,
)
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.events import MOST_COUNT, event_from_json
from fedtranscribe.privacy.label_events import ExponentialVotes, RandomizedResponse
from fedtranscribe.privacy.released_images import ReleasedImages
from fedtranscribe.privacy.zcdp import ZeroConcentrated

EVENTS = [
    Gaussian(0.1, 3),
    RandomizedResponse(0.1, 10, 5),
    ExponentialVotes(0.2, 10, 5),
    PoissonGaussian(0.01, 1.5, 100, Adjacency.REPLACE),
    ZeroConcentrated(0.01, 7),
    ReleasedImages(0.5, 1_000, 32, 10),
    Together((Gaussian(0.1), Together((Gaussian(0.2, 2),), 3)), 2),
]
NO_INTEGERS = (1.5, 2.0, "2", True, None, math.inf, math.nan, 2**53 + 1, 10**400, [1])
NO_NUMBERS = ("1", True, None, math.inf, math.nan, 10**400, 1e300, -1.0, [1.0])


def written(event) -> dict:
    return json.loads(json.dumps(event.to_json()))


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.kind)
def test_every_event_comes_back(event):
    assert event_from_json(written(event)) == event


WRONG = [
    (event, name, value)
    for event in EVENTS
    for name, right in asdict(event).items()
    for value in (
        NO_INTEGERS if type(right) is int else NO_NUMBERS if type(right) is float else ("x", 1, [])
    )
]


@pytest.mark.parametrize(("event", "name", "value"), WRONG, ids=str)
def test_a_field_of_another_type_or_out_of_range_is_refused(event, name, value):
    with pytest.raises(ConfigError):
        event_from_json(written(event) | {name: value})


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.kind)
def test_fields_too_many_or_too_few_are_refused(event):
    whole = written(event)
    for name in whole:
        with pytest.raises(ConfigError):
            event_from_json({k: v for k, v in whole.items() if k != name})
    with pytest.raises(ConfigError, match="'more' is unknown or absent"):
        event_from_json(whole | {"more": 1})


def test_counts_of_counts_are_bounded_in_all():
    inner = Together((Gaussian(0.1, 2**30),), 2**20)
    assert event_from_json(written(inner)) == inner
    with pytest.raises(ConfigError, match=f"<= {MOST_COUNT} in all"):
        event_from_json({"kind": "together", "parts": [written(inner)], "count": 2**20})


@pytest.mark.parametrize(
    "wrong",
    [{"rows": 1.5}, {"rows": True}, {"rows": "1"}, {"mechanism": 1}, {"more": 1}, {"costs": 3}],
)
def test_a_release_is_read_as_strictly(wrong):
    release = MechanismRelease("rows", 2, {Unit.RECORD: {Adjacency.ZERO_OUT: Gaussian(0.1, 2)}})
    assert MechanismRelease.from_json(written(release)) == release
    with pytest.raises(ConfigError):
        MechanismRelease.from_json(written(release) | wrong)


def test_a_distance_is_bounded_so_that_nothing_overflows():
    for make in (Gaussian, lambda mu: PoissonGaussian(0.1, 1 / mu)):
        with pytest.raises(ConfigError, match="<="):
            make(1e300)
    assert epsilon([Gaussian(1e12, 2**53)], 1e-5) > 1e30


def numbers(low: float, high: float):
    return st.floats(math.log10(low), math.log10(high)).map(lambda x: min(high, 10**x))


COUNTS = st.integers(1, 2**53) | st.integers(1, 100)
GAUSSIANS = st.builds(Gaussian, numbers(1e-300, 1e12), COUNTS)
VOTES = st.builds(ExponentialVotes, numbers(1e-9, 300), st.sampled_from([2, 10]), COUNTS)
MASKED = st.builds(ZeroConcentrated, numbers(1e-12, 1e23), COUNTS)
LABELS = st.builds(
    RandomizedResponse,
    numbers(1e-9, 300),
    st.sampled_from([1, 2, 10, 2**53]),
    st.integers(2**22, 2**53) | st.integers(1, 100),
)
STEPS = st.builds(PoissonGaussian, numbers(1e-12, 1), numbers(1e-12, 1e-2), COUNTS)
MANY_STEPS = st.builds(
    PoissonGaussian, numbers(1e-12, 1), numbers(1e-12, 1e12), st.integers(10**8, 2**53)
)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.one_of(GAUSSIANS, VOTES, MASKED, LABELS, STEPS, MANY_STEPS), max_size=3))
def test_whatever_is_read_is_accounted_for(events):
    read = [event_from_json(written(event)) for event in events]
    try:
        found = epsilon(read, 1e-5)
    except FedtranscribeError:
        return
    assert found >= 0
    assert not math.isnan(found)
