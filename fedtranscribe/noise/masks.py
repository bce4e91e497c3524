"""Masks from seeds that serve one round, and Shamir's shares of those seeds."""

import hashlib
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedtranscribe.errors import ConfigError, ProtocolError
from fedtranscribe.noise.mask_keys import KeyBook, statement

SEED_BYTES = 32

Residues = NDArray[np.unsignedinteger]

# Little-endian on every machine: what one holder adds another subtracts.
_TYPES = {8: np.dtype("<u1"), 16: np.dtype("<u2"), 32: np.dtype("<u4"), 64: np.dtype("<u8")}
_LONGEST = 2**32
_NONCE = bytes(16)


def residue_type(word: int) -> np.dtype[np.unsignedinteger]:
    """How residues modulo 2^word are stored and sent.

    Raises:
        ConfigError: no machine word.
    """
    if word not in _TYPES:
        raise ConfigError(f"Expected word={word} to be one of {', '.join(map(str, _TYPES))} bits.")
    return _TYPES[word]


class RoundKey:
    """A holder's X25519 key for one round."""

    def __init__(self, secret: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(secret)
        self.public = self._key.public_key().public_bytes_raw()

    def pair_seed(self, name: str, other: str, key: bytes) -> bytes:
        """The seed of a pair's mask; both sides find the same.

        Args:
            name: whose key this is.
            other: the other one of the pair.
            key: its public key for the round.

        Guarantee:
            HKDF-SHA256 keyed by the pair's X25519 secret. Each key serves one round: seeds of
            different pairs and rounds are independent to anyone without both secret keys.

        Raises:
            ProtocolError: a key that no secret comes of.
        """
        try:
            secret = self._key.exchange(X25519PublicKey.from_public_bytes(key))
        except ValueError:
            raise ProtocolError(f"Holder {other} sent a key that no secret comes of.") from None
        return _derive(secret, _ends("pair mask", {name: self.public, other: key}))


def sealing_key(book: KeyBook, other: str, this_round: bytes, sender: str) -> bytes:
    """The key under which one of a pair sends the other its shares in one round."""
    return _of_pair(book, other, "shares", this_round, sender)


def tag(book: KeyBook, other: str, this_round: bytes, sender: str) -> bytes:
    """Proof for one of a pair that the other, the sender, has masked with it in one round."""
    return _of_pair(book, other, "has masked", this_round, sender)


def keystream(seed: bytes, length: int, word: int) -> Residues:
    """`length` residues modulo 2^word, each uniform to anyone without the seed.

    ChaCha20 under the full 32-byte seed. A seed gives one stream only, hence the fixed nonce.

    Raises:
        ConfigError: longer than one ChaCha20 stream may safely be.
    """
    kind = residue_type(word)
    if not 1 <= length * kind.itemsize <= _LONGEST:
        raise ConfigError(f"Expected a vector of 1 to {_LONGEST // kind.itemsize} values.")
    stream = np.empty(length, dtype=kind)
    cipher = Cipher(ChaCha20(seed, _NONCE), mode=None).encryptor()
    cipher.update_into(_zeros(length * kind.itemsize), stream.view(np.uint8).data)
    return stream


def masked(
    values: Residues, word: int, name: str, own_seed: bytes, pair_seeds: Mapping[str, bytes]
) -> Residues:
    """Values under this holder's own mask and those of its pairs.

    Guarantee:
        Uniform on all of (Z/2^word)^n to anyone without the own seed, or without one pair's seed:
        that keystream is uniform, and adding anything independent keeps it so.
    """
    length = len(values)
    total = values.astype(residue_type(word)) + keystream(own_seed, length, word)
    for other, seed in pair_seeds.items():
        total += signed_keystream(seed, length, word, name, other)
    return total


def signed_keystream(seed: bytes, length: int, word: int, name: str, other: str) -> Residues:
    """A pair's mask as `name` adds it: plus on the side that comes first, minus on the other."""
    stream = keystream(seed, length, word)
    return stream if name < other else np.negative(stream)


@lru_cache(maxsize=1)
def _zeros(size: int) -> bytes:
    return bytes(size)


def _of_pair(book: KeyBook, other: str, kind: str, this_round: bytes, sender: str) -> bytes:
    keys = {name: book.keys[name] for name in (book.name, other)}
    return _derive(book.shared_with(other), _ends(kind, keys, this_round, sender.encode()))


def _ends(kind: str, keys: Mapping[str, bytes], *parts: bytes) -> bytes:
    """Both names and both keys: a holder that was sent another key finds another secret."""
    ends = [part for name in sorted(keys) for part in (name.encode(), keys[name])]
    return statement(kind, *ends, *parts)


def _derive(secret: bytes, info: bytes) -> bytes:
    hkdf = HKDF(algorithm=hashes.SHA256(), length=SEED_BYTES, salt=None, info=info)
    return hkdf.derive(secret)


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
