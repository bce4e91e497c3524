"""Shamir's shares of 32-byte seeds, and sealing them to one receiver.

The arithmetic is our own because the one implementation at hand works bit by bit in GF(2¹²⁸) and
would take seconds where this takes milliseconds. It is all there is of the kind: polynomials over
one fixed prime field, with the same steps whatever the secrets are (Python's integers are not
constant in time; shares are handled on the holder's own machine). A seed is shared with 16 bytes
of its own hash behind it, so that wrong shares are noticed and never take a wrong mask off.
"""

import hashlib
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedtranscribe.errors import ProtocolError

PRIME = 2**384 + 231
"""The smallest prime above 2³⁸⁴: every seed with its check is an element."""
SHARE_BYTES = 49

_SEED_BYTES, _CHECK_BYTES = 32, 16
_NONCE_BYTES = 12


def split(seeds: Sequence[bytes], threshold: int, points: int) -> list[list[bytes]]:
    """Shares of every seed for the points 1 to `points`; result[p − 1][i] is that of seed i.

    Guarantee:
        Any `threshold` shares of a seed give it; fewer are independent of it: the other
        coefficients of its polynomial are uniform and fresh (Shamir 1979).
    """
    polynomials = [
        [_checked(seed), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
        for seed in seeds
    ]
    return [
        [_value(polynomial, point).to_bytes(SHARE_BYTES, "big") for polynomial in polynomials]
        for point in range(1, points + 1)
    ]


def combine(shares: Mapping[int, Sequence[bytes]]) -> list[bytes]:
    """The seeds that exactly `threshold` points' shares belong to.

    Args:
        shares: by point, those of every seed in the same order.

    Raises:
        ProtocolError: they are no shares of seeds, or not of the same ones.
    """
    weights = _weights(tuple(shares))
    seeds = []
    for column in zip(*shares.values(), strict=True):
        terms = zip(weights, column, strict=True)
        value = sum(weight * int.from_bytes(share, "big") for weight, share in terms) % PRIME
        seed = (value >> 8 * _CHECK_BYTES).to_bytes(_SEED_BYTES + 1, "big")[1:]
        if _checked(seed) != value:
            raise ProtocolError("Shares do not fit together; a holder sent a wrong one.")
        seeds.append(seed)
    return seeds


def seal(key: bytes, content: bytes, associated: bytes) -> bytes:
    """AES-256-GCM under a random nonce; `associated` says which message this is."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, content, associated)


def unseal(key: bytes, sealed: bytes, associated: bytes) -> bytes:
    """The inverse of `seal`.

    Raises:
        ProtocolError: forged, damaged, or meant for another round, receiver or cohort.
    """
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], associated)
    except (InvalidTag, ValueError):
        raise ProtocolError(
            "Sealed shares do not open: damaged, or of another round, pair or set of keys."
        ) from None


def _checked(seed: bytes) -> int:
    return int.from_bytes(seed + hashlib.sha256(seed).digest()[:_CHECK_BYTES], "big")


def _value(polynomial: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * point + coefficient) % PRIME
    return value


@lru_cache(maxsize=256)
def _weights(points: tuple[int, ...]) -> list[int]:
    """Lagrange's, for the value at zero."""
    whole = math.prod(points) % PRIME
    below = [
        math.prod((other - own for other in points if other != own), start=own) for own in points
    ]
    return [whole * pow(each, -1, PRIME) % PRIME for each in below]
