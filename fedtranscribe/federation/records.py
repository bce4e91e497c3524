"""The form of every message between server and holders; what they mean is `protocol.py`'s part.

A message is a record of terms, scalars and short lists, and perhaps one of arrays. Every message
says its protocol version and which of a node's holders it is about. Nothing here needs torch, so
that a process that only passes messages on starts fast and stays small.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedtranscribe.errors import ProtocolError
from fedtranscribe.federation.refusals import Refusal, RefusalCode

VERSION = 2
CAPABILITIES = "query.capabilities"
ANSWER = "query.answer"
# The stages of a masked sum, see `masked_messages.py`.
SECAGG_KEY = "query.secagg_key"
SECAGG_OPEN = "query.secagg_open"
SECAGG_MASK = "query.secagg_mask"
SECAGG_SIGN = "query.secagg_sign"
SECAGG_REVEAL = "query.secagg_reveal"
MASKED = (SECAGG_KEY, SECAGG_OPEN, SECAGG_MASK, SECAGG_SIGN, SECAGG_REVEAL)
# A private training at one holder, see `training_messages.py`.
TRAIN = "query.train"
MODEL = "query.model"
TRAINING = (TRAIN, MODEL)
MESSAGES = (CAPABILITIES, ANSWER, *MASKED, *TRAINING)

TERMS, ARRAYS = "terms", "arrays"


def record(terms: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> RecordDict:
    """A message of this protocol version."""
    content = RecordDict({TERMS: ConfigRecord({"protocol": VERSION, **terms})})
    return content if arrays is None else with_arrays(content, arrays)


def with_arrays(content: RecordDict, arrays: Mapping[str, np.ndarray]) -> RecordDict:
    """Add arrays to a message."""
    there = dict(content.array_records.get(ARRAYS, {}))
    added = {name: Array(value) for name, value in arrays.items()}
    content[ARRAYS] = ArrayRecord(there | added)
    return content


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


# ---------------------------------------------------------------- reading

T = TypeVar("T")


def asked_terms(content: RecordDict) -> ConfigRecord:
    """The terms of a message, as a holder reads them.

    Raises:
        Refusal: PROTOCOL.
    """
    terms = content.config_records.get(TERMS)
    if terms is None or terms.get("protocol") != VERSION:
        raise Refusal(RefusalCode.PROTOCOL)
    return terms


def told_terms(content: RecordDict) -> ConfigRecord:
    """The terms of a reply, as the server reads them.

    Raises:
        Refusal: what the holder said instead.
        ProtocolError: another protocol version.
    """
    terms = content.config_records.get(TERMS)
    if terms is None or terms.get("protocol") != VERSION:
        raise ProtocolError(
            f"Expected a reply of protocol {VERSION}, got "
            f"{None if terms is None else terms.get('protocol')}; run one version of fedtranscribe."
        )
    code = terms.get("refusal")
    if code is not None:
        known = code in list(RefusalCode)
        raise Refusal(RefusalCode(code) if known else RefusalCode.INTERNAL)
    return terms


def arrays_of(content: RecordDict, kinds: str) -> dict[str, np.ndarray]:
    """Arrays of these dtype kinds, as copies: what comes off the wire is read-only memory.

    Raises:
        ValueError: whatever is wrong with them; numpy's reader raises many kinds.
    """
    arrays = {}
    for name, array in content.array_records[ARRAYS].items():
        try:
            value = array.numpy().copy()
        except Exception as error:
            raise ValueError(f"{name!r} is no array ({type(error).__name__})") from None
        if value.dtype.kind not in kinds:
            raise ValueError(f"{name!r} holds {value.dtype}")
        arrays[name] = value
    return arrays


def get(terms: ConfigRecord, name: str, kind: type[T]) -> T:
    """One term.

    Raises:
        KeyError, TypeError: it is absent, or of another type.
    """
    value = terms[name]
    # A bool is an int to Python, but not to us.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name} is not {kind.__name__}")
    return value
