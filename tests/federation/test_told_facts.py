"""Numbers and names that a holder tells are bounded before a server acts on them."""

import json

import numpy as np
import pytest

from fedtranscribe.errors import ConfigError, ProtocolError
from fedtranscribe.privacy import Adjacency, Gaussian, MechanismRelease, Unit
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.questions.capabilities import Capabilities
from fedtranscribe.questions.messages import Message
from fedtranscribe.questions.query_messages import read_capabilities, tell_capabilities
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.training_messages import read_trained

FACTS = {
    **{"name": "a", "classes": 3, "channels": 1, "size": 28, "shards": 5, "positional_ids": False},
    **{"kinds": (Kind.VOTE,), "noise": NoiseMode.LOCAL},
    **{"rows_per_message": 100, "rows_per_run": 1_000},
}
TRAINING = {
    **{"run": "run-1", "method": "dp-sad", "epsilon": 1.0, "delta": 1e-5, "private": True},
    **{"sigma": 2.0, "steps": {"student": 3}, "records": 90, "classes": 3, "channels": 1},
    **{"size": 28, "unet": "tiny", "sampling": {"steps": 2}, "sha256": "0" * 64, "resolved": {}},
}
RELEASE = MechanismRelease(
    "network", 1, {Unit.RECORD: {Adjacency.ZERO_OUT: Gaussian(0.1)}}
).to_json()


@pytest.mark.parametrize("name", ["classes", "channels", "size", "shards"])
def test_a_holder_cannot_make_the_server_build_anything_of_any_size(name):
    Capabilities(**FACTS)
    with pytest.raises(ValueError, match="are more than"):
        Capabilities(**FACTS | {name: 10**9})


@pytest.mark.parametrize("name", ["shards_declared_by", "weights_declared_by"])
def test_who_vouches_for_teachers_travels_and_is_one_printable_name(name):
    facts = Capabilities(**FACTS | {name: "J. Doe"})
    assert read_capabilities(tell_capabilities(facts)) == facts
    with pytest.raises(ConfigError, match="printable"):
        Capabilities(**FACTS | {name: "J.\nDoe"})


def told(facts: dict, release: object):
    packed = {"facts": json.dumps(facts), "release": json.dumps(release)}
    return read_trained(Message.of(packed, {"network": np.zeros(3, dtype=np.uint8)}))


def test_of_a_training_only_known_facts_are_taken():
    more = {"settings": {"data": "x"}, "ledger": {"booked": 3.0}, "accuracy": {"student": 0.5}}
    assert told(TRAINING | more, RELEASE).facts.to_json() == TRAINING


@pytest.mark.parametrize("name", ["run", "epsilon", "delta", "sigma", "sha256"])
def test_facts_that_lack_one_or_hold_another_type_are_refused(name):
    others = {key: value for key, value in TRAINING.items() if key != name}
    for facts in (others, TRAINING | {name: [1]}):
        with pytest.raises(ProtocolError, match="cannot be read"):
            told(facts, RELEASE)


@pytest.mark.parametrize("wrong", [{}, [], RELEASE | {"rows": 1.5}, RELEASE | {"more": 1}, "x"])
def test_a_release_that_is_none_is_refused(wrong):
    with pytest.raises(ProtocolError, match="cannot be read"):
        told(TRAINING, wrong)


def test_deep_facts_are_refused():
    packed = dict.fromkeys(("facts", "release"), "[" * 100_000)
    content = Message.of(packed, {"network": np.zeros(3, dtype=np.uint8)})
    with pytest.raises(ProtocolError, match="cannot be read"):
        read_trained(content)
