"""Long-lived keys in files: ECDSA P-384 in OpenSSH's formats, the private one without passphrase.

A holder's own pair, and a folder with the public half of every holder that it will sum with, one
file `NAME.pub` each. The holder fills that folder itself, after comparing fingerprints.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    SSHPrivateKeyTypes,
    SSHPublicKeyTypes,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedtranscribe.errors import ConfigError
from fedtranscribe.text import expect_name

SUFFIX = ".pub"


def new_pair() -> tuple[bytes, bytes]:
    """A fresh pair as the contents of two files: private, and public without comment or newline."""
    private = ec.generate_private_key(ec.SECP384R1())
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), public


def load_public(path: Path) -> SSHPublicKeyTypes:
    """The key in a `.pub` file, of whatever kind.

    Raises:
        ConfigError: it is absent or is no public key.
    """
    try:
        return load_ssh_public_key(_read(path))
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{path} is no public key in OpenSSH's form; make a new pair.") from None


def load_private(path: Path) -> SSHPrivateKeyTypes:
    """A private key, of whatever kind.

    Raises:
        ConfigError: it is absent, no key, or has a passphrase.
    """
    try:
        return load_ssh_private_key(_read(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(
            f"{path} is no private key in OpenSSH's form without a passphrase; make a new pair: "
            "fedtranscribe deploy keys create PATH."
        ) from None


@dataclass(frozen=True)
class Identity:
    """How a holder signs, and whose signatures it believes.

    Attributes:
        name: how it is called in every cohort.
        signer: its long-lived private key.
        roster: public keys by name, its own among them.
    """

    name: str
    signer: ec.EllipticCurvePrivateKey = field(repr=False)
    roster: Mapping[str, ec.EllipticCurvePublicKey]

    @classmethod
    def read(cls, name: str, key: Path, roster: Path) -> Self:
        """Read a key and a folder of `NAME.pub` files.

        Raises:
            ConfigError: a file is absent, no key or of another kind; the roster lacks this holder
                or has another key under its name.
        """
        signer = load_private(key)
        if not (isinstance(signer, ec.EllipticCurvePrivateKey) and _is_p384(signer.curve)):
            raise ConfigError(f"Expected an ECDSA P-384 key in {key}; make a new pair.")
        known = read_roster(roster)
        if known.get(name) != signer.public_key():
            raise ConfigError(
                f"Expected this holder's own public key as {roster / (name + SUFFIX)}; copy "
                f"{key.name}{SUFFIX} there."
            )
        return cls(name, signer, known)


def read_roster(folder: Path) -> dict[str, ec.EllipticCurvePublicKey]:
    """Every `NAME.pub` in a folder, by name.

    Raises:
        ConfigError: there is no such folder, none in it, or one is no ECDSA P-384 key or has a
            name that no holder can have.
    """
    roster: dict[str, ec.EllipticCurvePublicKey] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        key = load_public(path)
        if not (isinstance(key, ec.EllipticCurvePublicKey) and _is_p384(key.curve)):
            raise ConfigError(f"Expected an ECDSA P-384 key in {path}; ask for another one.")
        roster[expect_name("holder", path.name.removesuffix(SUFFIX))] = key
    if not roster:
        raise ConfigError(f"Expected a folder of public keys, NAME.pub each, in {folder}.")
    return roster


def _is_p384(curve: ec.EllipticCurve) -> bool:
    return isinstance(curve, ec.SECP384R1)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"Cannot read the key {path}: {error.strerror}.") from None
