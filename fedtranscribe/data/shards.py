"""Which shard, and which part, a record belongs to, by a keyed hash of its id."""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from fedtranscribe.errors import ConfigError

# Public and fixed for ever: a record held out once must never be trained on later.
_HELD_OUT_KEY = b"fedtranscribe held-out split 1"


def assign_shards(ids: Sequence[str], shards: int, key: bytes) -> NDArray[np.int64]:
    """Shard number of each record: keyed BLAKE2b of its id, modulo `shards`.

    Args:
        ids: [n] persistent ids; equal ids share a shard, and the guarantee is then per id.
            With `row-<i>` (positions) only replace and zero-out adjacency hold.
        shards: how many disjoint parts; some may stay small or even empty.
        key: 1 to 64 bytes of public randomness, the same for as long as the shards are to
            stay the same.

    Returns:
        int64 [n] in [0, shards).
    """
    if shards < 1:
        raise ConfigError(f"Expected shards={shards} >= 1.")
    if shards > len(ids):
        raise ConfigError(f"Expected shards={shards} <= {len(ids)} records; ask for fewer shards.")
    if not 1 <= len(key) <= blake2b.MAX_KEY_SIZE:
        raise ConfigError(
            f"Expected a shard key of 1 to {blake2b.MAX_KEY_SIZE} bytes, got {len(key)}."
        )
    # 128 bits: the bias of the modulus is below 2^-100 for any thinkable shard count.
    numbers = (_hash(record, key) % shards for record in ids)
    return np.fromiter(numbers, dtype=np.int64, count=len(ids))


def held_out(ids: Sequence[str], one_in: int = 5) -> NDArray[np.bool_]:
    """True for the records (one in `one_in` on average) that are kept for testing.

    The rule is public, fixed and depends on each record's own id alone.
    """
    if one_in < 2:
        raise ConfigError(f"Expected one_in={one_in} >= 2.")
    verdicts = (_hash(record, _HELD_OUT_KEY) % one_in == 0 for record in ids)
    return np.fromiter(verdicts, dtype=np.bool_, count=len(ids))


def _hash(record: str, key: bytes) -> int:
    return int.from_bytes(blake2b(record.encode(), digest_size=16, key=key).digest(), "big")
