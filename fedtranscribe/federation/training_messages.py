"""The messages of a private training as Flower records, and a holder's replies to them.

    message type   terms                              arrays
    query.train    run, asked (JSON), seconds         –
    (reply)        stage, done, total, …, finished    –
    query.model    run                                –
    (reply)        facts (JSON), release (JSON)       network

The server repeats `query.train` until the training is finished; every message also has `protocol`
and `holder`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from flwr.app import RecordDict

from fedtranscribe.errors import ConfigError, ProtocolError
from fedtranscribe.federation import records
from fedtranscribe.federation.node import Node
from fedtranscribe.federation.records import (
    array_of,
    asked_terms,
    get,
    get_name,
    record,
    told_terms,
)
from fedtranscribe.federation.refusals import Refusal, RefusalCode
from fedtranscribe.federation.trainings import Standing, Trained
from fedtranscribe.privacy.release_plan import Release
from fedtranscribe.reading import parse_json
from fedtranscribe.result import TrainedFacts

_SENSELESS = (ConfigError, KeyError, TypeError, ValueError, OverflowError)
_MOST_SECONDS = 3_600.0


def ask_train(holder: int, run: str, asked: Mapping[str, Any], seconds: float) -> RecordDict:
    """Begin a training or go on with it."""
    told = json.dumps(dict(asked), sort_keys=True)
    return record({"holder": holder, "run": run, "asked": told, "seconds": seconds})


def ask_model(holder: int, run: str) -> RecordDict:
    """Ask for the network of a finished training."""
    return record({"holder": holder, "run": run})


def reply(content: RecordDict, message_type: str, node: Node) -> RecordDict:
    """What a holder says to one of these messages.

    Raises:
        Refusal: PROTOCOL, MALFORMED, and whatever the node refuses with.
    """
    terms = asked_terms(content)
    try:
        run = get_name(terms, "run")
        if message_type == records.MODEL:
            trained = node.trained(run)
            told = {"facts": trained.facts.to_json(), "release": dict(trained.release)}
            network = np.frombuffer(trained.network, dtype=np.uint8)
            packed = {name: json.dumps(value) for name, value in told.items()}
            return record(packed, {"network": network})
        asked, seconds = parse_json(get(terms, "asked", str)), get(terms, "seconds", float)
        if not isinstance(asked, dict) or not 0 < seconds <= _MOST_SECONDS:
            raise ConfigError("Expected settings by name and a number of seconds.")
    except _SENSELESS:
        raise Refusal(RefusalCode.MALFORMED) from None
    return record(
        {k.replace("_", "-"): v for k, v in asdict(node.train(run, asked, seconds)).items()}
    )


def read_standing(content: RecordDict) -> Standing:
    """How far a training is.

    Raises:
        Refusal: what the holder said instead.
        ProtocolError: it makes no sense.
    """
    terms = told_terms(content)
    try:
        counts = {n: get(terms, n.replace("_", "-"), int) for n in _COUNTS}
        return Standing(get_name(terms, "stage"), finished=get(terms, "finished", bool), **counts)
    except _SENSELESS:
        raise ProtocolError("What a holder says of its training makes no sense.") from None


def read_trained(content: RecordDict) -> Trained:
    """A finished training; raises as `read_standing`."""
    terms = told_terms(content)
    try:
        facts, release = (parse_json(get(terms, name, str)) for name in ("facts", "release"))
        if not isinstance(release, dict):
            raise TypeError("release")
        Release.from_json(release)
        network = array_of(content, "network", "u").tobytes()
        return Trained(network, TrainedFacts.model_validate(facts), release)
    except _SENSELESS:
        raise ProtocolError("A holder's trained network makes no sense.") from None


_COUNTS = ("done", "total", "steps_done", "steps")
