"""What becomes Flower's programs, and what keeps them from starting."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from fedtranscribe.errors import ConfigError, FederationError
from fedtranscribe.flower import launch
from fedtranscribe.flower.certificates import make_authority
from fedtranscribe.flower.health import is_healthy
from fedtranscribe.flower.launch import NodeProcess, ServerProcess, join, serve
from fedtranscribe.holder.link import is_reachable


class BecameError(Exception):
    """Instead of replacing the test's process."""


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def execve(*call: Any) -> None:
        calls.extend(call)
        raise BecameError

    monkeypatch.setattr(launch.os, "execve", execve)
    return calls


@pytest.fixture
def service() -> Iterator[tuple[Path, health.HealthServicer]]:
    """A healthy holder service on a socket whose path is short enough."""
    folder = Path(tempfile.mkdtemp(prefix="fts-"))
    server, state = grpc.server(ThreadPoolExecutor(1)), health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(state, server)
    server.add_insecure_port(f"unix:{folder / 'h.sock'}")
    state.set("", health_pb2.HealthCheckResponse.SERVING)
    server.start()
    yield folder / "h.sock", state
    server.stop(None).wait()
    shutil.rmtree(folder)


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_whoever_answers_is_reachable(service: tuple[Path, health.HealthServicer]) -> None:
    socket, state = service
    assert is_reachable(socket)
    state.enter_graceful_shutdown()
    assert is_reachable(socket), "it need not be well"
    assert not is_reachable(socket.with_name("nobody.sock"), timeout=0.2)


def test_health_is_what_the_service_says(service: tuple[Path, health.HealthServicer]) -> None:
    socket, state = service
    assert is_healthy(f"unix:{socket}")
    state.enter_graceful_shutdown()
    assert not is_healthy(f"unix:{socket}")
    assert not is_healthy("127.0.0.1:1", timeout=2)


def test_a_sound_node_becomes_a_supernode(
    client: Path,
    server: Path,
    service: tuple[Path, health.HealthServicer],
    tls_server: Callable[[Path], int],
    became: list[Any],
) -> None:
    address = f"localhost:{tls_server(server / 'certificates')}"
    said: list[str] = []
    with pytest.raises(BecameError):
        join(NodeProcess(client, address, service[0], 9096, "127.0.0.1:9097"), 5, said.append)
    program, command, environment = became
    assert Path(program).name == command[0] == "flower-supernode"
    assert option(command, "--superlink") == address
    assert option(command, "--root-certificates") == str(client / "certificates" / "ca.crt")
    assert option(command, "--auth-supernode-private-key") == str(client / "keys" / "node")
    assert option(command, "--node-config") == f'holder-socket="{service[0]}"'
    assert option(command, "--health-server-address") == "127.0.0.1:9097"
    assert "--insecure" not in command
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["PATH"].startswith(str(Path(program).parent))
    assert said == []


def test_a_server_that_is_not_there_yet_is_waited_for_by_flower(
    client: Path, service: tuple[Path, health.HealthServicer], became: list[Any]
) -> None:
    said: list[str] = []
    with pytest.raises(BecameError):
        join(NodeProcess(client, "127.0.0.1:1", service[0]), 5, said.append)
    assert "nobody answers" in said[0]


def test_without_a_holder_service_nothing_joins(client: Path, became: list[Any]) -> None:
    with pytest.raises(FederationError, match="fedtranscribe holder serve"):
        join(NodeProcess(client, "127.0.0.1:1", client / "socket" / "h.sock"), 0, print)
    assert became == []


def test_what_is_wrong_is_told_before_anything_is_waited_for(
    client: Path, became: list[Any]
) -> None:
    (client / "keys" / "node").unlink()
    with pytest.raises(ConfigError, match=r"Not starting \(node key\).*deploy keys create"):
        join(NodeProcess(client, "127.0.0.1:1", client / "h.sock"), 1e9, print)
    assert became == []


def test_a_server_of_another_authority_is_not_joined(
    client: Path, server: Path, tls_server: Callable[[Path], int], tmp_path: Path
) -> None:
    address = f"localhost:{tls_server(server / 'certificates')}"
    shutil.copy(make_authority(tmp_path / "other"), client / "certificates" / "ca.crt")
    with pytest.raises(ConfigError, match=r"Not starting \(TLS with .*issuer"):
        join(NodeProcess(client, address, client / "h.sock"), 0, print)


def test_a_socket_that_would_change_the_nodes_settings_is_refused() -> None:
    with pytest.raises(ConfigError, match="without quotes"):
        NodeProcess(Path("x"), "a:1", Path('/run/h" other="y')).command()


def test_a_sound_server_becomes_a_superlink(
    server: Path, became: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLWR_HOME", raising=False)
    with pytest.raises(BecameError):
        serve(ServerProcess(server, "0.0.0.0", 8123), print)
    program, command, environment = became
    assert Path(program).name == command[0] == "flower-superlink"
    assert {"--enable-supernode-auth", "--disable-runtime-dependency-installation"} <= set(command)
    assert "--insecure" not in command
    assert option(command, "--ssl-keyfile") == str(server / "certificates" / "server.key")
    assert option(command, "--database") == str(server / "state" / "superlink.db")
    assert (option(command, "--host"), option(command, "--port")) == ("0.0.0.0", "8123")
    assert environment["FLWR_HOME"] == str(server / "state" / "flwr")
    # What the environment says goes first.
    assert environment["FEDTRANSCRIBE_HOME"] == os.environ["FEDTRANSCRIBE_HOME"]


def test_a_server_with_a_wrong_certificate_does_not_start(server: Path, became: list[Any]) -> None:
    (server / "certificates" / "server.crt").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"Not starting \(server\.crt\)"):
        serve(ServerProcess(server), print)
    assert became == []
