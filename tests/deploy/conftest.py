"""Certificates and ready folders; a clock that stands still for making expired ones."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fedtranscribe.flower import certificates
from fedtranscribe.flower.certificates import make_authority, make_node_key, make_server
from fedtranscribe.flower.folders import FolderKind, init

NAME = "superlink.example.org"


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make certificates as if it were the first of January of a year."""

    def set_year(year: int) -> None:
        class Then(datetime):
            @classmethod
            def now(cls, tz: object = None) -> datetime:  # pyright: ignore
                return datetime(year, 1, 1, tzinfo=UTC)

        monkeypatch.setattr(certificates, "datetime", Then)

    return set_year


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    folder = tmp_path / "authority"
    make_authority(folder)
    return folder


@pytest.fixture
def server(tmp_path: Path, authority: Path) -> Path:
    """A server's folder in which nothing is wrong."""
    folder = init(FolderKind.SERVER, tmp_path / "server")
    make_server(folder / "certificates", authority, [NAME])
    return folder


@pytest.fixture
def client(tmp_path: Path, authority: Path) -> Path:
    """A holder's folder in which nothing is wrong, but that its records are empty."""
    folder = init(FolderKind.CLIENT, tmp_path / "client")
    (folder / "certificates" / "ca.crt").write_bytes((authority / "ca.crt").read_bytes())
    make_node_key(folder / "keys" / "node", "hospital")
    (folder / "ledger" / "records.npz").write_bytes(b"")
    (folder / ".env").write_text("# the server's\nSUPERLINK=superlink.example.org:8000\n")
    return folder


@pytest.fixture
def tls_server() -> Iterator[Callable[[Path], int]]:
    """Serve TLS on a loopback port with a folder's server.crt; anything sent comes back."""
    with contextlib.ExitStack() as stack:

        def start(folder: Path) -> int:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder / "server.crt", folder / "server.key")
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            thread = threading.Thread(target=_echo, args=(listener, context))
            thread.start()
            stack.callback(thread.join, 10)
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            return listener.getsockname()[1]

        yield start


def _echo(listener: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        with plain, contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as s:
            s.sendall(s.recv(100))
