"""Numbers and names that a holder tells are bounded before a server acts on them."""

import json

import numpy as np
import pytest

from fedtranscribe.capabilities import Capabilities
from fedtranscribe.errors import ProtocolError
from fedtranscribe.privacy import Adjacency, Gaussian, Release, Unit
from fedtranscribe.privacy.calibrate import NoiseMode
from fedtranscribe.query import Kind
from fedtranscribe.wire import Message
from fedtranscribe.wire.trainings import TOLD, read_trained

FACTS = {
    **{"name": "a", "classes": 3, "channels": 1, "size": 28, "shards": 5, "positional_ids": False},
    **{"kinds": (Kind.VOTE,), "noise": NoiseMode.LOCAL},
    **{"rows_per_message": 100, "rows_per_run": 1_000},
}
RELEASE = Release("network", 1, {Unit.RECORD: {Adjacency.ZERO_OUT: Gaussian(0.1)}}).to_json()


@pytest.mark.parametrize("name", ["classes", "channels", "size", "shards"])
def test_a_holder_cannot_make_the_server_build_anything_of_any_size(name):
    Capabilities(**FACTS)
    with pytest.raises(ValueError, match="are more than"):
        Capabilities(**FACTS | {name: 10**9})


def told(facts: dict, release: object):
    packed = {"facts": json.dumps(facts), "release": json.dumps(release)}
    return read_trained(Message.of(packed, {"network": np.zeros(3, dtype=np.uint8)}))


def test_of_a_training_only_known_facts_are_taken():
    facts = dict.fromkeys(TOLD, 1)
    assert set(told(facts | {"settings": {"data": "x"}}, RELEASE).facts) == set(TOLD)
    with pytest.raises(ProtocolError):
        told(dict.fromkeys(TOLD[1:], 1), RELEASE)


@pytest.mark.parametrize("wrong", [{}, [], RELEASE | {"rows": 1.5}, RELEASE | {"more": 1}, "x"])
def test_a_release_that_is_none_is_refused(wrong):
    with pytest.raises(ProtocolError, match="makes no sense"):
        told(dict.fromkeys(TOLD, 1), wrong)


def test_deep_facts_are_refused():
    packed = dict.fromkeys(("facts", "release"), "[" * 100_000)
    content = Message.of(packed, {"network": np.zeros(3, dtype=np.uint8)})
    with pytest.raises(ProtocolError, match="makes no sense"):
        read_trained(content)
