"""Start a SuperLink or a SuperNode, after a look at everything that it needs.

Flower says little about a wrong key, certificate or address, and some of it only in a log. Here
each fault is printed with its fix, and TLS, node authentication and the rest are never left out.
The process then becomes Flower's own program, so that the program that started it (compose,
systemd, a terminal) has the real one in hand.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fedtranscribe.errors import ConfigError, FederationError
from fedtranscribe.flower.certificates import CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY
from fedtranscribe.flower.folder_check import (
    FolderCheck,
    FolderVerdict,
    check_node,
    check_server,
    first_fault,
)
from fedtranscribe.flower.folders import CERTIFICATES, KEYS, NODE_KEY, STATE

SUPERNODE, SUPERLINK = "flower-supernode", "flower-superlink"

_LOOK_SECONDS = 1.0
# No telemetry leaves a federation, and no app brings packages of its own.
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}

Say = Callable[[str], None]


@dataclass(frozen=True)
class NodeProcess:
    """A SuperNode to be started."""

    folder: Path  # holds `certificates/ca.crt` and `keys/node`; nothing else of the holder's
    superlink: str  # the server's host:port
    socket: Path  # the holder service's
    # local, for Flower's own processes; a second SuperNode on the machine needs another
    port: int = 9094
    health: str | None = None  # address for gRPC health checks; None: no such checks

    def command(self) -> list[str]:
        """The command line of the SuperNode."""
        socket = str(self.socket.absolute())
        # It stands within double quotes that Flower reads as TOML.
        if not socket.isprintable() or set(socket) & set("\"\\'"):
            raise ConfigError(f"Expected --socket {socket!r} without quotes; choose another path.")
        return [
            *(SUPERNODE, "--superlink", self.superlink),
            *("--root-certificates", str(self.folder / CERTIFICATES / CA_CERTIFICATE)),
            *("--auth-supernode-private-key", str(self.folder / KEYS / NODE_KEY)),
            *("--node-config", f'holder-socket="{socket}"'),
            *("--port", str(self.port)),
            *_health(self.health),
        ]


@dataclass(frozen=True)
class ServerProcess:
    """A SuperLink to be started."""

    folder: Path  # made by `deploy init server`
    host: str = "127.0.0.1"  # address to listen on
    port: int = 8000  # for SuperNodes and `flwr` alike
    health: str | None = None  # address for gRPC health checks; None: no such checks

    def command(self) -> list[str]:
        """The command line of the SuperLink."""
        certificates = self.folder / CERTIFICATES
        return [
            *(SUPERLINK, "--host", self.host, "--port", str(self.port)),
            *("--ssl-ca-certfile", str(certificates / CA_CERTIFICATE)),
            *("--ssl-certfile", str(certificates / SERVER_CERTIFICATE)),
            *("--ssl-keyfile", str(certificates / SERVER_KEY)),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
            *("--database", str(self.folder / STATE / "superlink.db")),
            *_health(self.health),
        ]


def join(node: NodeProcess, wait: float, say: Say) -> NoReturn:
    """FolderCheck, wait for the holder service, and become the SuperNode.

    Args:
        node: what to start.
        wait: seconds to wait for the holder service.
        say: called with each warning.
    """
    command = node.command()
    _insist(check_node(node.folder, node.superlink), say)
    _await_holder(node.socket.absolute(), wait)
    _become(command, {})


def serve(server: ServerProcess, say: Say) -> NoReturn:
    """FolderCheck, and become the SuperLink."""
    _insist(check_server(server.folder), say)
    home = server.folder.absolute()
    places = {"FLWR_HOME": str(home / STATE / "flwr"), "FEDTRANSCRIBE_HOME": str(home)}
    _become(server.command(), places)


def _insist(checks: Iterable[FolderCheck], say: Say) -> None:
    checks = list(checks)
    fault = first_fault(checks)
    if fault is not None:
        found = fault.found.rstrip(".")
        raise ConfigError(f"Not starting ({fault.name}): {found}. Fix: {fault.fix}.")
    for check in checks:
        if check.verdict is FolderVerdict.WARNING:
            say(f"{check.name}: {check.found}; {check.fix}")


def _await_holder(socket: Path, wait: float) -> None:
    from fedtranscribe.holder.link import is_reachable

    if not is_reachable(socket, max(wait, _LOOK_SECONDS)):
        raise FederationError(
            f"No holder service answers on {socket}; start it with `fedtranscribe holder "
            "serve`, and check that this user is in the group of the socket."
        )


def _become(command: list[str], places: Mapping[str, str]) -> NoReturn:
    """Replace this process; what the environment says goes before `places`."""
    beside = Path(sys.executable).parent / command[0]
    program = str(beside) if beside.exists() else shutil.which(command[0])
    if program is None:
        raise ConfigError(f"No program {command[0]}; run: pip install 'fedtranscribe[federation]'")
    # It starts Flower's other programs by their names.
    path = os.pathsep.join([str(Path(program).parent), os.environ.get("PATH", "")])
    os.execve(program, command, {**_QUIET, **places, **os.environ, "PATH": path})


def _health(address: str | None) -> list[str]:
    return ["--health-server-address", address] if address else []
