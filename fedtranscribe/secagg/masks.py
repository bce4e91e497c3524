"""Masks: keystreams over the whole modulus, from seeds that serve one round only.

A masked vector is value + own mask + Σ ± pair masks modulo 2^word. Each pair's mask enters with
opposite signs on its two sides, so that it cancels in the sum; own masks are taken off by the
shares of their seeds. Bonawitz et al. 2017, section 4.

A pair has two secrets. That of its keys for the run seals what the two send each other and proves
that both have masked; it is never revealed. That of their keys for one round gives the pair's mask;
the round key of a holder that dropped out is opened, and with it all masks of its pairs in that
round, so that they can be taken off.
"""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedtranscribe.errors import ConfigError, ProtocolError
from fedtranscribe.secagg.keys import KeyBook, statement

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
