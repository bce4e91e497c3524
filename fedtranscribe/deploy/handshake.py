"""TLS as server and holder will do it, so that a fault shows before anything is started.

Parsing certificates shows what they contain. Only OpenSSL shows whether they work together:
both ends shake hands, in memory for files that are here, or with a SuperLink that runs.
"""

import socket
import ssl
from pathlib import Path

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
    """Why a holder that trusts `roots` will not speak with a SuperLink that runs; None if it will.

    Raises:
        UnreachableError: nobody answers there, so that nothing can be said about TLS.
    """
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
