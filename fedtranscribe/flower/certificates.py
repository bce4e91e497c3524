"""A certificate authority of one's own, the SuperLink's certificate, and SuperNodes' keys."""

import ipaddress
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedtranscribe.errors import ConfigError
from fedtranscribe.flower.folders import PRIVATE, PUBLIC, refuse_existing, write_again, write_new
from fedtranscribe.flower.tls import is_authority, load_chain, load_private_key, names_in
from fedtranscribe.noise.key_files import load_private, load_public, new_pair

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY = "server.crt", "server.key"

# The ServerApp's process asks its own SuperLink over loopback, by the same certificate.
LOOPBACK = ("localhost", "127.0.0.1", "::1")

# Clocks differ: a certificate is not refused by a holder that is an hour behind.
_BEFORE = timedelta(hours=1)
_LONGEST_NAME = 64  # of a common name, by X.509


def make_authority(folder: Path, days: int = 3650) -> Path:
    """Make a key and a certificate that signs itself."""
    _check_days(days)
    certificate, key = folder / CA_CERTIFICATE, folder / CA_KEY
    refuse_existing(certificate, key)
    private = ec.generate_private_key(ec.SECP384R1())
    name = _name("fedtranscribe certificate authority")
    signed = (
        _builder(name, name, private.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .sign(private, hashes.SHA384())
    )
    write_new(key, _private_pem(private), PRIVATE)
    write_new(certificate, signed.public_bytes(serialization.Encoding.PEM), PUBLIC)
    return certificate


def make_server(folder: Path, authority: Path, names: Sequence[str], days: int = 365) -> Path:
    """Make the SuperLink's key and certificate, and lay `ca.crt` beside them."""
    _check_days(days)
    general = general_names(names)
    certificate, key = folder / SERVER_CERTIFICATE, folder / SERVER_KEY
    root, signer = _authority(authority)
    mine = folder / CA_CERTIFICATE
    if mine.exists() and load_chain(mine)[0] != root:
        refuse_existing(mine)
    refuse_existing(certificate, key)
    private = ec.generate_private_key(ec.SECP256R1())
    signed = _sign_server(root, signer, names[0], general, private.public_key(), days)
    write_new(key, _private_pem(private), PRIVATE)
    write_new(certificate, signed, PUBLIC)
    if not mine.exists():
        write_new(mine, root.public_bytes(serialization.Encoding.PEM), PUBLIC)
    return certificate


def renew_server(folder: Path, authority: Path, days: int = 365) -> Path:
    """Sign the server's key again, for the same names; a SuperLink reads it when it starts."""
    _check_days(days)
    root, signer = _authority(authority)
    path = folder / SERVER_CERTIFICATE
    old, private = load_chain(path)[0], load_private_key(folder / SERVER_KEY)
    if old.public_key() != private.public_key():
        raise ConfigError(f"{path} does not belong to {folder / SERVER_KEY}; make a new pair.")
    names = names_in(old)
    if not names:
        raise ConfigError(f"{path} names no host; make a new pair with --name.")
    general = general_names(names)
    write_again(path, _sign_server(root, signer, names[0], general, old.public_key(), days), PUBLIC)
    return path


def general_names(names: Iterable[str]) -> list[x509.GeneralName]:
    """Host names and addresses as a certificate holds them, those of loopback included."""
    entries = list(names)
    if not entries:
        raise ConfigError("Expected --name: the host name or address by which holders reach you.")
    return [_general(name) for name in dict.fromkeys([*entries, *LOOPBACK])]


# -------------------------------------------------------------------- parts


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate, key = load_chain(folder / CA_CERTIFICATE)[0], load_private_key(folder / CA_KEY)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not is_authority(certificate):
        raise ConfigError(f"{folder} holds no authority made by `fedtranscribe deploy certs`.")
    if certificate.public_key() != key.public_key():
        raise ConfigError(f"{folder / CA_KEY} does not belong to {folder / CA_CERTIFICATE}.")
    if certificate.not_valid_after_utc <= datetime.now(UTC):
        raise ConfigError(
            f"{folder / CA_CERTIFICATE} expired on {certificate.not_valid_after_utc:%Y-%m-%d}; "
            "make a new authority in another folder and send its ca.crt to every holder."
        )
    return certificate, key


def _sign_server(
    root: x509.Certificate,
    signer: ec.EllipticCurvePrivateKey,
    name: str,
    names: Iterable[x509.GeneralName],
    public: CertificatePublicKeyTypes,
    days: int,
) -> bytes:
    builder = _builder(_name(name), root.subject, public, days, root.not_valid_after_utc)
    return (
        builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
            critical=False,
        )
        .sign(signer, hashes.SHA384())
        .public_bytes(serialization.Encoding.PEM)
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: CertificatePublicKeyTypes,
    days: int,
    at_most: datetime | None = None,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    end = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(min(end, at_most) if at_most else end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:_LONGEST_NAME])])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    labels = name.removeprefix("*.").split(".")
    fits = all(
        0 < len(label) < 64
        and label.isascii()
        and label.replace("-", "").replace("_", "").isalnum()
        and label.strip("-") == label
        for label in labels
    )
    # 10.0.0.999 is a mistyped address, not a host name.
    if not fits or labels[-1].isdigit():
        raise ConfigError(
            f"Expected --name {name!r} to be a host name or an IP address, without port or https."
        )
    return x509.DNSName(name)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _check_days(days: int) -> None:
    if not 0 < days <= 36_500:
        raise ConfigError(f"Expected --days {days} between 1 and 36500.")


_LONGEST_COMMENT = 200


class NodeKey(NamedTuple):
    """The public half of a node's key."""

    kind: str  # such as `ecdsa-sha2-nistp384`
    fingerprint: str  # as `ssh-keygen -l` shows it; what two people compare over another channel

    @property
    def usable(self) -> bool:
        """Whether it is of the kind that this project makes and Flower accepts."""
        return self.kind == "ecdsa-sha2-nistp384"


def public_path(private: Path) -> Path:
    """Where the public half of a key lies."""
    return private.with_name(f"{private.name}.pub")


def make_node_key(path: Path, comment: str = "") -> NodeKey:
    """Make a pair: `path` and `path.pub`."""
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
    """The public half out of a `.pub` file."""
    return _described(load_public(path))


def read_private(path: Path) -> NodeKey:
    """The public half of a private key; the secret is not kept."""
    return _described(load_private(path).public_key())


def _described(key: serialization.SSHPublicKeyTypes) -> NodeKey:
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    kind, blob = line.split()[:2]
    digest = sha256(b64decode(blob)).digest()
    return NodeKey(kind.decode(), "SHA256:" + b64encode(digest).decode().rstrip("="))
