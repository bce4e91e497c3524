"""Masks: keystreams over the whole modulus, from seeds that serve one round only.

A masked vector is value + own mask + Σ ± pair masks modulo 2^word. Each pair's mask enters with
opposite signs on its two sides, so that it cancels in the sum; own masks are taken off by the
shares of their seeds. Bonawitz et al. 2017, section 4.
"""

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedtranscribe.errors import ConfigError
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


def pair_seed(book: KeyBook, other: str, this_round: bytes) -> bytes:
    """The seed of a pair's mask in one round; both sides find the same.

    Guarantee:
        HKDF-SHA256 keyed by the pair's X25519 secret: seeds of different rounds are independent
        to whoever lacks that secret, so that a revealed one tells of no other round.
    """
    low, high = sorted((book.name, other))
    return _derived(book, other, "pair mask", this_round, low.encode(), high.encode())


def sealing_key(book: KeyBook, other: str, this_round: bytes, sender: str) -> bytes:
    """The key under which one of a pair sends the other its shares in one round."""
    return _derived(book, other, "shares", this_round, sender.encode())


def keystream(seed: bytes, length: int, word: int) -> Residues:
    """`length` residues modulo 2^word, each uniform to whoever lacks the seed.

    ChaCha20 under the full 32-byte seed. A seed gives one stream only, hence the fixed nonce.

    Raises:
        ConfigError: longer than one ChaCha20 stream may safely be.
    """
    kind = residue_type(word)
    if not 1 <= length * kind.itemsize <= _LONGEST:
        raise ConfigError(f"Expected a vector of 1 to {_LONGEST // kind.itemsize} values.")
    stream = Cipher(ChaCha20(seed, _NONCE), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(length * kind.itemsize)), dtype=kind)


def masked(
    values: Residues, word: int, name: str, own_seed: bytes, pair_seeds: Mapping[str, bytes]
) -> Residues:
    """Values under this holder's own mask and those of its pairs.

    Guarantee:
        Uniform on all of (Z/2^word)^n to whoever lacks the own seed, or lacks one pair's seed:
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


def _derived(book: KeyBook, other: str, kind: str, *parts: bytes) -> bytes:
    info = statement(kind, *parts)
    hkdf = HKDF(algorithm=hashes.SHA256(), length=SEED_BYTES, salt=book.digest, info=info)
    return hkdf.derive(book.shared_with(other))
