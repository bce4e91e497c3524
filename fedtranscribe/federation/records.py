"""The form of every message between server and holders; what they mean is `protocol.py`'s part.

A message is a record of terms, scalars and short lists, and perhaps one of arrays. Every message
says its protocol version and which of a node's holders it is about. Nothing here needs torch, so
that a process that only passes messages on starts fast and stays small.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib.format import read_array_header_1_0, read_magic

from fedtranscribe.errors import ProtocolError
from fedtranscribe.federation.refusals import Refusal, RefusalCode
from fedtranscribe.names import expect_name

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


@dataclass(frozen=True)
class Form:
    """What the header of an array says; it takes no memory to read it.

    Attributes:
        dtype, shape: of the array.
        fortran: whether its values come column by column.
        start: where in its bytes they begin.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    fortran: bool
    start: int


def form_of(content: RecordDict, name: str) -> Form | None:
    """The form of an array, proved to fit its bytes; None where there is no such array.

    Raises:
        ValueError: it is no array of plain numbers, or its header claims what is not there.
    """
    array = content.array_records.get(ARRAYS, {}).get(name)
    if array is None:
        return None
    try:
        stream = BytesIO(array.data)
        if read_magic(stream) != (1, 0):
            raise ValueError("of another version")
        shape, fortran, dtype = read_array_header_1_0(stream)
    except Exception as error:  # numpy's reader raises many kinds
        raise ValueError(f"{name!r} is no array ({type(error).__name__})") from None
    form = Form(dtype, shape, fortran, stream.tell())
    # Python's integers: a product of claimed sizes must not wrap around.
    if math.prod(shape) * dtype.itemsize != len(array.data) - form.start or dtype.hasobject:
        raise ValueError(f"{name!r} is not what its header says")
    return form


def array_of(content: RecordDict, name: str, kinds: str) -> np.ndarray:
    """An array of one of these dtype kinds; a copy: what comes off the wire is read-only memory.

    Raises:
        KeyError: there is none.
        ValueError: whatever is wrong with it.
    """
    form = form_of(content, name)
    if form is None:
        raise KeyError(name)
    if form.dtype.kind not in kinds:
        raise ValueError(f"{name!r} holds {form.dtype}")
    data = content.array_records[ARRAYS][name].data
    flat = np.frombuffer(data, dtype=form.dtype, offset=form.start)
    return flat.reshape(form.shape, order="F" if form.fortran else "C").copy()


def get_name(terms: ConfigRecord, name: str) -> str:
    """A term that names something.

    Raises:
        KeyError, TypeError: it is absent, or no text.
        ConfigError: it cannot be a name.
    """
    return expect_name(name, get(terms, name, str))


def get_names(terms: ConfigRecord, name: str) -> list[str]:
    """A term that is a list of names; raises as `get_name`."""
    return [expect_name(name, str(each)) for each in get(terms, name, list)]


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
