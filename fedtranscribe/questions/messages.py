"""The form of every message between server and holders, whatever carries it."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any, Self, TypeVar

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_magic, write_array
from safetensors.numpy import load, save

from fedtranscribe.errors import ProtocolError
from fedtranscribe.files import parse_json
from fedtranscribe.questions.refusals import Refusal, RefusalCode
from fedtranscribe.text import expect_name

VERSION = 8
CAPABILITIES = "query.capabilities"
ANSWER = "query.answer"
# The stages of a masked sum, see `masked.py`.
SECAGG_KEY = "query.secagg_key"
SECAGG_OPEN = "query.secagg_open"
SECAGG_MASK = "query.secagg_mask"
SECAGG_SIGN = "query.secagg_sign"
SECAGG_REVEAL = "query.secagg_reveal"
MASKED = (SECAGG_KEY, SECAGG_OPEN, SECAGG_MASK, SECAGG_SIGN, SECAGG_REVEAL)
# A private training at one holder, see `trainings.py`.
TRAIN = "query.train"
MODEL = "query.model"
TRAINING = (TRAIN, MODEL)
MESSAGES = (CAPABILITIES, ANSWER, *MASKED, *TRAINING)

Terms = Mapping[str, Any]


@dataclass(frozen=True)
class Message:
    """A query, an answer or a refusal on its way.

    Attributes:
        terms: scalars, and lists of them.
        arrays: bytes of a .npy file each.
    """

    terms: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, terms: Terms, arrays: Mapping[str, np.ndarray] | None = None) -> Self:
        """A message of this protocol version."""
        packed_arrays = {name: packed(array) for name, array in (arrays or {}).items()}
        return cls({"protocol": VERSION, **terms}, packed_arrays)

    def and_arrays(self, arrays: Mapping[str, np.ndarray]) -> Self:
        """The same message with more arrays."""
        more = {name: packed(array) for name, array in arrays.items()}
        return replace(self, arrays={**self.arrays, **more})

    @property
    def payload(self) -> int:
        """Bytes of the arrays on the wire."""
        return sum(map(len, self.arrays.values()))


def refuse(refusal: Refusal) -> Message:
    """A refusal on its way out: its code, nothing else."""
    return Message.of({"refusal": refusal.code.value})


def echo_holder(reply: Message, asked: Message) -> Message:
    """Copy the number of the holder that was asked into the reply; 0 where there is none."""
    number = asked.terms.get("holder")
    reply.terms["holder"] = number if isinstance(number, int) else 0
    return reply


def echoed_holder(reply: Message) -> int:
    """The number that `echo_holder` put there; -1 where there is none."""
    number = reply.terms.get("holder")
    return number if isinstance(number, int) else -1


def packed(array: np.ndarray) -> bytes:
    """An array as the bytes of a .npy file."""
    stream = BytesIO()
    write_array(stream, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
    return stream.getvalue()


# ---------------------------------------------------------------- reading

T = TypeVar("T")


def asked_terms(content: Message) -> Terms:
    """The terms of a message, as a holder reads them.

    Raises:
        Refusal: PROTOCOL.
    """
    if content.terms.get("protocol") != VERSION:
        raise Refusal(RefusalCode.PROTOCOL)
    return content.terms


def reply_terms(content: Message) -> Terms:
    """The terms of a reply, as the server reads them.

    Raises:
        Refusal: what the holder said instead.
        ProtocolError: another protocol version.
    """
    version, code = content.terms.get("protocol"), content.terms.get("refusal")
    if version != VERSION:
        raise ProtocolError(
            f"Expected a reply of protocol {VERSION}, got {version}; run one version of "
            "fedtranscribe."
        )
    if code is not None:
        known = code in list(RefusalCode)
        raise Refusal(RefusalCode(code) if known else RefusalCode.INTERNAL)
    return content.terms


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


def form_of(content: Message, name: str) -> Form | None:
    """The form of an array, proved to fit its bytes; None where there is no such array.

    Raises:
        ValueError: it is no array of plain numbers, or its header claims what is not there.
    """
    data = content.arrays.get(name)
    if data is None:
        return None
    try:
        stream = BytesIO(data)
        if read_magic(stream) != (1, 0):
            raise ValueError("of another version")
        shape, fortran, dtype = read_array_header_1_0(stream)
    except Exception as error:  # numpy's reader raises many kinds
        raise ValueError(f"{name!r} is no array ({type(error).__name__})") from None
    form = Form(dtype, shape, fortran, stream.tell())
    # Python's integers: a product of claimed sizes must not wrap around.
    if math.prod(shape) * dtype.itemsize != len(data) - form.start or dtype.hasobject:
        raise ValueError(f"{name!r} is not what its header says")
    return form


def array_of(content: Message, name: str, kinds: str) -> np.ndarray:
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
    flat = np.frombuffer(content.arrays[name], dtype=form.dtype, offset=form.start)
    return flat.reshape(form.shape, order="F" if form.fortran else "C").copy()


def get_name(terms: Terms, name: str) -> str:
    """A term that names something.

    Raises:
        KeyError, TypeError: it is absent, or no text.
        ConfigError: it cannot be a name.
    """
    return expect_name(name, get(terms, name, str))


def get_names(terms: Terms, name: str) -> list[str]:
    """A term that is a list of names; raises as `get_name`."""
    return [expect_name(name, str(each)) for each in get(terms, name, list)]


def get(terms: Terms, name: str, kind: type[T]) -> T:
    """One term.

    Raises:
        KeyError, TypeError: it is absent, or of another type.
    """
    value = terms[name]
    # A bool is an int to Python, but not to us.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name} is not {kind.__name__}")
    return value


MOST_TERMS = 2**20
"""Bytes of a message's terms: scalars, and names of up to a thousand holders."""

_TERMS_ENTRY = "."
# Signed and unsigned integers and floats.
_NUMBERS = "iuf"
# A safetensors file begins with the length of its header, and no message has ten arrays.
_LENGTH_BYTES = 8
_LONGEST_HEADER = 10_000


def pack(content: Message) -> bytes:
    """A message as bytes.

    Raises:
        Refusal: MALFORMED, for a message that is none of ours.
    """
    try:
        terms = json.dumps(content.terms).encode()
        arrays = {name: array_of(content, name, _NUMBERS) for name in content.arrays}
        return save({_TERMS_ENTRY: np.frombuffer(terms, dtype=np.uint8), **arrays})
    # numpy's readers raise many kinds for a broken array.
    except Exception:
        raise Refusal(RefusalCode.MALFORMED) from None


def unpack(frame: bytes) -> Message:
    """The message in bytes of `pack`.

    Raises:
        Refusal: MALFORMED.
    """
    try:
        if int.from_bytes(frame[:_LENGTH_BYTES], "little") > _LONGEST_HEADER:
            raise ValueError("header")
        arrays = load(frame)
        terms = parse_json(arrays.pop(_TERMS_ENTRY).tobytes(), MOST_TERMS)
        if not isinstance(terms, dict) or not all(map(_is_term, terms.values())):
            raise ValueError("terms")
        content = Message(terms, {name: packed(array) for name, array in sorted(arrays.items())})
    # Deeply nested JSON, text that is no UTF-8, a type that numpy lacks, values of mixed types, …
    except Exception:
        raise Refusal(RefusalCode.MALFORMED) from None
    return content


def _is_term(value: object) -> bool:
    """Scalars, and lists of scalars of one type, as Flower's records hold them."""
    if isinstance(value, list):
        return len({type(each) for each in value}) <= 1 and all(map(_is_scalar, value))
    return _is_scalar(value)


def _is_scalar(value: object) -> bool:
    return isinstance(value, bool | int | float | str)
