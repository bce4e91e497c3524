"""Messages as bytes between the ClientApp and the holder service: one safetensors file each.

The terms travel as JSON in a byte tensor of their own. Reading runs no code and trusts nothing:
any process that can reach the service's socket may send anything. What a frame takes in memory is a
small multiple of its length: its header and its terms, which could grow when they are read, have
limits.
"""

import json

import numpy as np
from safetensors.numpy import load, save

from fedtranscribe.reading import parse_json
from fedtranscribe.refusals import Refusal, RefusalCode
from fedtranscribe.wire.message import Message, array_of, packed

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
