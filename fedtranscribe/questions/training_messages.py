"""What server and holder say to each other of a private training.

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
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedtranscribe.errors import ConfigError, ProtocolError
from fedtranscribe.files import parse_json
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.questions.messages import (
    Message,
    array_of,
    asked_terms,
    get,
    get_name,
    reply_terms,
)
from fedtranscribe.results.result import TrainedFacts

_SENSELESS = (ConfigError, KeyError, TypeError, ValueError, OverflowError)
_MOST_SECONDS = 3_600.0
_COUNTS = ("done", "total", "steps_done", "steps")


@dataclass(frozen=True)
class TrainingProgress:
    """How far a training is; public, and all that is reported on the way.

    Attributes:
        stage: of the method.
        done: steps of it that were taken.
        total: steps that it has.
        steps_done: over all stages.
        steps: over all stages.
        finished: every stage is through.
    """

    stage: str
    done: int
    total: int
    steps_done: int
    steps: int
    finished: bool


@dataclass(frozen=True)
class TrainedNetwork:
    """A finished training as it leaves the holder.

    Attributes:
        network: the released network's file, safetensors.
        facts: what was trained and what it cost.
        release: what the ledger booked, JSON-able.
    """

    network: bytes
    facts: TrainedFacts
    release: Mapping[str, Any]


# ---------------------------------------------------------------- the server asks


def ask_train(holder: int, run: str, asked: Mapping[str, Any], seconds: float) -> Message:
    """Begin a training or go on with it."""
    settings = json.dumps(dict(asked), sort_keys=True)
    return Message.of({"holder": holder, "run": run, "asked": settings, "seconds": seconds})


def ask_model(holder: int, run: str) -> Message:
    """Ask for the network of a finished training."""
    return Message.of({"holder": holder, "run": run})


# ---------------------------------------------------------------- the holder


def read_asked(content: Message) -> tuple[str, dict[str, Any], float]:
    """Run, settings and seconds of `ask_train`.

    Raises:
        Refusal: PROTOCOL.
        ConfigError, KeyError, TypeError, ValueError: it cannot be read.
    """
    terms = asked_terms(content)
    asked, seconds = parse_json(get(terms, "asked", str)), get(terms, "seconds", float)
    if not isinstance(asked, dict) or not 0 < seconds <= _MOST_SECONDS:
        raise ConfigError("Expected settings by name and a number of seconds.")
    return get_name(terms, "run"), asked, seconds


def tell_progress(progress: TrainingProgress) -> Message:
    """How far a training is, on its way out."""
    return Message.of({name.replace("_", "-"): value for name, value in asdict(progress).items()})


def tell_trained(trained: TrainedNetwork) -> Message:
    """A finished training on its way out."""
    terms = {"facts": trained.facts.to_json(), "release": trained.release}
    network = np.frombuffer(trained.network, dtype=np.uint8)
    return Message.of(
        {name: json.dumps(dict(value)) for name, value in terms.items()}, {"network": network}
    )


# ---------------------------------------------------------------- the server reads


def read_progress(content: Message) -> TrainingProgress:
    """How far a training is.

    Raises:
        Refusal: what the holder said instead.
        ProtocolError: it cannot be read.
    """
    terms = reply_terms(content)
    try:
        counts = {n: get(terms, n.replace("_", "-"), int) for n in _COUNTS}
        finished = get(terms, "finished", bool)
        return TrainingProgress(get_name(terms, "stage"), finished=finished, **counts)
    except _SENSELESS:
        raise ProtocolError("A holder sent facts of its training that cannot be read.") from None


def read_trained(content: Message) -> TrainedNetwork:
    """A finished training; raises as `read_progress`."""
    terms = reply_terms(content)
    try:
        facts, release = (parse_json(get(terms, name, str)) for name in ("facts", "release"))
        if not (isinstance(facts, dict) and isinstance(release, dict)):
            raise TypeError("facts and release")
        MechanismRelease.from_json(release)
        network = array_of(content, "network", "u").tobytes()
        return TrainedNetwork(network, TrainedFacts.model_validate(facts), release)
    except _SENSELESS:
        raise ProtocolError("A holder sent a trained network that cannot be read.") from None
