"""The key pair by which a SuperLink knows a SuperNode: ECDSA P-384 in OpenSSH's formats.

What `ssh-keygen -t ecdsa -b 384` makes. The holder makes it, the private half never leaves the
holder's machine, and the operator registers the public half after comparing fingerprints.
"""

from base64 import b64decode, b64encode
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives import serialization

from fedtranscribe.deploy.new_files import PRIVATE, PUBLIC, refuse_existing, write_new
from fedtranscribe.errors import ConfigError
from fedtranscribe.secagg.key_files import load_private, load_public, new_pair

_LONGEST_COMMENT = 200


class NodeKey(NamedTuple):
    """The public half of a node's key.

    Attributes:
        kind: such as `ecdsa-sha2-nistp384`.
        fingerprint: as `ssh-keygen -l` shows it; what two people compare over another channel.
    """

    kind: str
    fingerprint: str

    @property
    def usable(self) -> bool:
        """Whether it is of the kind that this project makes and Flower accepts."""
        return self.kind == "ecdsa-sha2-nistp384"


def public_path(private: Path) -> Path:
    """Where the public half of a key lies."""
    return private.with_name(f"{private.name}.pub")


def make_node_key(path: Path, comment: str = "") -> NodeKey:
    """Make a pair: `path` and `path.pub`.

    Raises:
        ConfigError: the comment would break the line that it stands in.
        StorageError: one of the two is there, or cannot be written.
    """
    if not comment.isprintable() or len(comment) > _LONGEST_COMMENT:
        raise ConfigError(
            f"Expected --comment {comment!r} to be one line of at most {_LONGEST_COMMENT} "
            "characters."
        )
    refuse_existing(path, public_path(path))
    secret, public = new_pair()
    line = b" ".join([public, comment.encode()]) if comment else public
    write_new(path, secret, PRIVATE)
    write_new(public_path(path), line + b"\n", PUBLIC)
    return read_public(public_path(path))


def read_public(path: Path) -> NodeKey:
    """The public half out of a `.pub` file.

    Raises:
        ConfigError: it is absent or is no public key.
    """
    return _described(load_public(path))


def read_private(path: Path) -> NodeKey:
    """The public half of a private key; the secret is not kept.

    Raises:
        ConfigError: it is absent, no key, or has a passphrase.
    """
    return _described(load_private(path).public_key())


def _described(key: serialization.SSHPublicKeyTypes) -> NodeKey:
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    kind, blob = line.split()[:2]
    digest = sha256(b64decode(blob)).digest()
    return NodeKey(kind.decode(), "SHA256:" + b64encode(digest).decode().rstrip("="))
