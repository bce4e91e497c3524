"""Certificates and keys in PEM form, and TLS as server and holder will do it."""

import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from fedtranscribe.errors import ConfigError


@dataclass(frozen=True)
class Certificate:
    """What a certificate file says."""

    path: Path  # the file
    subject: str  # its owner
    issuer: str  # who signed it
    names: tuple[str, ...]  # host names and addresses that it is good for
    not_before: datetime  # start of its validity
    not_after: datetime  # end of its validity
    authority: bool  # whether it may sign others
    fingerprint: str  # SHA-256, as `openssl x509 -fingerprint` shows it

    def days_left(self, now: datetime | None = None) -> int:
        """Whole days until it expires; negative once it has."""
        return (self.not_after - (now or datetime.now(UTC))).days


def read_certificate(path: Path) -> Certificate:
    """What the first certificate of a PEM file says."""
    first = load_chain(path)[0]
    digest = first.fingerprint(hashes.SHA256()).hex().upper()
    return Certificate(
        path=path,
        subject=first.subject.rfc4514_string(),
        issuer=first.issuer.rfc4514_string(),
        names=names_in(first),
        not_before=first.not_valid_before_utc,
        not_after=first.not_valid_after_utc,
        authority=is_authority(first),
        fingerprint=":".join(digest[i : i + 2] for i in range(0, len(digest), 2)),
    )


def load_chain(path: Path) -> list[x509.Certificate]:
    """The certificates of a PEM file, the owner's first."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"Cannot read the certificate {path}: {error.strerror}.") from None
    except ValueError:
        raise ConfigError(f"{path} holds no certificate in PEM form; copy it again.") from None


def load_private_key(path: Path) -> PrivateKeyTypes:
    """A private key in PEM form."""
    try:
        return serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise ConfigError(f"Cannot read the key {path}: {error.strerror}.") from None
    except TypeError:
        raise ConfigError(f"{path} has a passphrase; a server needs a key without one.") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{path} holds no private key in PEM form; make a new pair.") from None


def names_in(certificate: x509.Certificate) -> tuple[str, ...]:
    """Host names and addresses that a certificate is good for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    hosts = found.get_values_for_type(x509.DNSName)
    return (*hosts, *(str(a) for a in found.get_values_for_type(x509.IPAddress)))


def is_authority(certificate: x509.Certificate) -> bool:
    """Whether a certificate may sign others."""
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except x509.ExtensionNotFound:
        return False
    return constraints.value.ca


_ROUNDS = 10
_SECONDS = 10.0


class UnreachableError(Exception):
    """No server answers; says why."""


def fault_of_pair(certificate: Path, key: Path) -> str | None:
    """Why a server could not use its certificate with its key; None if it can."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_passphrase)
    except (OSError, ValueError) as error:
        return _words(error)
    return None


def fault_in_memory(certificate: Path, key: Path, roots: Path, name: str) -> str | None:
    """Why a holder that trusts `roots` would refuse this server under `name`; None if it would not.

    Args:
        certificate: the server's.
        key: the server's.
        roots: the holder's `ca.crt`.
        name: the host name or address that the holder asks for.
    """
    try:
        server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_side.load_cert_chain(certificate, key, _no_passphrase)
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = holder_context(roots).wrap_bio(down, up, server_hostname=name)
        server = server_side.wrap_bio(up, down, server_side=True)
        for _ in range(_ROUNDS):
            # The client first: it is the one who judges, and its words are wanted.
            done = [_step(client), _step(server)]
            if all(done):
                return None
    except (OSError, ValueError) as error:
        return _words(error)
    return "the TLS handshake did not finish"


def fault_of_server(host: str, port: int, roots: Path) -> str | None:
    """Why a holder that trusts `roots` will not speak with a running SuperLink; None if it will."""
    try:
        context = holder_context(roots)
    except (OSError, ValueError) as error:
        return _words(error)
    try:
        plain = socket.create_connection((host, port), timeout=_SECONDS)
    except OSError as error:
        raise UnreachableError(_words(error)) from None
    try:
        with plain, context.wrap_socket(plain, server_hostname=host):
            return None
    except (OSError, ValueError) as error:
        return _words(error)


def holder_context(roots: Path) -> ssl.SSLContext:
    """TLS as a SuperNode does it: these roots and no others, names compared, and X.509 strictly."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # What Python 3.13 does by default.
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(roots)
    return context


def _step(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _no_passphrase() -> str:
    # Without this OpenSSL would ask at the terminal.
    raise ValueError("the key has a passphrase")


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError):
        return (error.reason or "TLS fails").replace("_", " ").lower()
    if isinstance(error, OSError):
        return (error.strerror or str(error) or type(error).__name__).lower()
    return str(error)
