"""Messages as bytes between the ClientApp and the holder service: one safetensors file each.

The terms travel as JSON in a byte tensor of their own. Reading runs no code and trusts nothing:
whoever can reach the service's socket may send anything. What a frame takes in memory is a small
multiple of its length: its header and its terms, which could grow when they are read, have limits.
"""

import json

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors.numpy import load, save

from fedtranscribe.federation.records import ARRAYS, TERMS
from fedtranscribe.federation.refusals import Refusal, RefusalCode
from fedtranscribe.reading import parse_json

MOST_TERMS = 2**20
"""Bytes of a message's terms: scalars, and names of up to a thousand holders."""

_TERMS_ENTRY = "."
# A safetensors file begins with the length of its header, and no message has ten arrays.
_LENGTH_BYTES = 8
_LONGEST_HEADER = 10_000


def pack(content: RecordDict) -> bytes:
    """A message as bytes.

    Raises:
        Refusal: MALFORMED, for a message that is none of ours.
    """
    try:
        terms = json.dumps(dict(content.config_records.get(TERMS, {}))).encode()
        arrays = {
            name: np.ascontiguousarray(array.numpy())
            for name, array in content.array_records.get(ARRAYS, {}).items()
        }
        return save({_TERMS_ENTRY: np.frombuffer(terms, dtype=np.uint8), **arrays})
    # Flower's and numpy's readers raise many kinds for a broken array.
    except Exception:
        raise Refusal(RefusalCode.MALFORMED) from None


def unpack(frame: bytes) -> RecordDict:
    """The message in bytes of `pack`.

    Raises:
        Refusal: MALFORMED.
    """
    try:
        if int.from_bytes(frame[:_LENGTH_BYTES], "little") > _LONGEST_HEADER:
            raise ValueError("header")
        arrays = load(frame)
        terms = parse_json(arrays.pop(_TERMS_ENTRY).tobytes(), MOST_TERMS)
        content = RecordDict({TERMS: ConfigRecord(terms)})
        if arrays:
            content[ARRAYS] = ArrayRecord({k: Array(v) for k, v in sorted(arrays.items())})
    # Deeply nested JSON, text that is no UTF-8, a type that numpy lacks, values of mixed types, …
    except Exception:
        raise Refusal(RefusalCode.MALFORMED) from None
    return content
