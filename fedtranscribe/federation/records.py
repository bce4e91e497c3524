"""The form of every message between server and holders; what they mean is `protocol.py`'s part.

A message is a record of terms, scalars and short lists, and perhaps one of arrays. Every message
says its protocol version and which of a node's holders it is about. Nothing here needs torch, so
that a process that only passes messages on starts fast and stays small.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedtranscribe.federation.refusals import Refusal

VERSION = 1
CAPABILITIES = "query.capabilities"
ANSWER = "query.answer"

TERMS, ARRAYS = "terms", "arrays"


def record(terms: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> RecordDict:
    """A message of this protocol version."""
    record = RecordDict({TERMS: ConfigRecord({"protocol": VERSION, **terms})})
    if arrays is not None:
        record[ARRAYS] = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    return record


def refuse(refusal: Refusal) -> RecordDict:
    """A refusal on its way out: its code, nothing else."""
    return record({"refusal": refusal.code.value})


def echo_holder(reply: RecordDict, asked: RecordDict) -> RecordDict:
    """Copy the number of the holder that was asked into the reply; 0 where there is none."""
    terms = asked.config_records.get(TERMS)
    number = terms.get("holder") if terms is not None else None
    reply.config_records[TERMS]["holder"] = number if isinstance(number, int) else 0
    return reply


def echoed_holder(reply: RecordDict) -> int:
    """The number that `echo_holder` put there; -1 where there is none."""
    terms = reply.config_records.get(TERMS)
    number = terms.get("holder") if terms is not None else None
    return number if isinstance(number, int) else -1


def payload_bytes(content: RecordDict) -> int:
    """Size of a message's arrays on the wire."""
    return sum(len(array.data) for array in content.array_records.get(ARRAYS, {}).values())
