"""Messages as bytes between the ClientApp and the holder service: one safetensors file each.

The terms travel as JSON in a byte tensor of their own. Reading runs no code and trusts nothing:
whoever can reach the service's socket may send anything.
"""

import json

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedtranscribe.federation.records import ARRAYS, TERMS
from fedtranscribe.federation.refusals import Refusal, RefusalCode

_TERMS_ENTRY = "."


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
        arrays = load(frame)
        terms = json.loads(arrays.pop(_TERMS_ENTRY).tobytes())
        content = RecordDict({TERMS: ConfigRecord(terms)})
        if arrays:
            content[ARRAYS] = ArrayRecord({k: Array(v) for k, v in sorted(arrays.items())})
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError):
        raise Refusal(RefusalCode.MALFORMED) from None
    return content
