"""Each planted fault is named, and nothing else is."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fedtranscribe.cli import run
from fedtranscribe.flower.certificates import make_authority, make_node_key, make_server
from fedtranscribe.flower.folder_check import (
    FolderCheck,
    FolderVerdict,
    check_client,
    check_server,
    first_fault,
)
from tests.deploy.conftest import NAME


def wrong(checks: list[FolderCheck]) -> dict[str, str]:
    assert all(check.fix for check in checks if check.verdict is not FolderVerdict.OK)
    return {check.name: check.found for check in checks if check.verdict is not FolderVerdict.OK}


def test_sound_folders_are_sound(client: Path, server: Path) -> None:
    assert wrong(check_client(client)) == {}
    assert wrong(check_server(server, [NAME])) == {}


def edit(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def remove(name: str) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return act


def mode(name: str, bits: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).chmod(bits)


def with_teachers(plant: Callable[[Path], object]) -> Callable[[Path], None]:
    """Teachers instead of records, and then a fault."""

    def act(folder: Path) -> None:
        policy = folder / "policy.toml"
        text = policy.read_text().replace("# teachers = ", "teachers = ")
        policy.write_text(text.replace("\nrecords = ", "\n# records = "))
        (folder / "teachers" / "manifest.json").write_text("{}")
        assert wrong(check_client(folder)) == {}
        plant(folder)

    return act


def other_key(folder: Path) -> None:
    make_node_key(folder / "other")
    shutil.copy(folder / "other.pub", folder / "keys" / "node.pub")


def leaf_as_authority(folder: Path) -> None:
    make_authority(folder / "x")
    make_server(folder / "y", folder / "x", [NAME])
    shutil.copy(folder / "y" / "server.crt", folder / "certificates" / "ca.crt")


@pytest.mark.parametrize(
    ("plant", "name", "words"),
    [
        (edit("policy.toml", "epsilon = -1"), "policy", "epsilon=-1"),
        (edit("policy.toml", "="), "policy", "not valid TOML"),
        (remove("policy.toml"), "policy", "No such file"),
        (remove("ledger/records.npz"), "records", "no such file"),
        (with_teachers(remove("teachers/manifest.json")), "teachers", "empty"),
        (with_teachers(remove("teachers")), "teachers", "no such file"),
        (with_teachers(mode("teachers", 0o755)), "teachers", "mode 755"),
        (mode("ledger", 0o701), "ledger's folder", "mode 701"),
        (with_teachers(remove("ledger")), "ledger's folder", "no such file"),
        (remove("socket"), "socket's folder", "no such file"),
        (remove("certificates/ca.crt"), "ca.crt", "No such file"),
        (edit("certificates/ca.crt", "nonsense"), "ca.crt", "holds no certificate"),
        (leaf_as_authority, "ca.crt", "not an authority's"),
        (remove("keys/node"), "node key", "No such file"),
        (edit("keys/node", "nonsense"), "node key", "no private key"),
        (mode("keys/node", 0o640), "node key's mode", "mode 640"),
        (other_key, "node key's public half", "another key"),
        (remove("keys/node.pub"), "node key's public half", "No such file"),
        (edit(".env", "SUPERLINK=here"), "server's address", "no host:port"),
        (remove(".env"), "server's address", "SUPERLINK=''"),
    ],
)
def test_faults_of_a_holders_folder(
    client: Path, plant: Callable[[Path], object], name: str, words: str
) -> None:
    plant(client)
    found = wrong(check_client(client))
    assert list(found) == [name]
    assert words in found[name]


def test_an_authority_that_ends_soon_is_a_warning(client: Path, tmp_path: Path) -> None:
    soon = make_authority(tmp_path / "soon", days=20)
    shutil.copy(soon, client / "certificates" / "ca.crt")
    checks = check_client(client)
    assert list(wrong(checks)) == ["ca.crt's end"]
    assert first_fault(checks) is None


def test_a_server_that_is_not_trusted_or_not_there(
    client: Path, server: Path, tmp_path: Path, tls_server: Callable[[Path], int]
) -> None:
    port = tls_server(server / "certificates")
    (client / ".env").write_text(f"SUPERLINK=localhost:{port}\n")
    assert wrong(check_client(client, connect=True)) == {}
    make_authority(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "ca.crt", client / "certificates" / "ca.crt")
    found = wrong(check_client(client, connect=True))
    assert list(found) == [f"TLS with localhost:{port}"]
    assert "issuer" in found[f"TLS with localhost:{port}"]
    (client / ".env").write_text("SUPERLINK=127.0.0.1:1\n")
    assert "nobody answers" in wrong(check_client(client, connect=True))["TLS with 127.0.0.1:1"]


def other_authority(folder: Path) -> None:
    make_authority(folder / "x")
    shutil.copy(folder / "x" / "ca.crt", folder / "certificates" / "ca.crt")


def other_pair(folder: Path) -> None:
    make_authority(folder / "x")
    make_server(folder / "y", folder / "x", [NAME])
    shutil.copy(folder / "y" / "server.key", folder / "certificates" / "server.key")


def keep_ca_key(folder: Path) -> None:
    (folder / "certificates" / "ca.key").write_text("")


@pytest.mark.parametrize(
    ("plant", "names"),
    [
        (other_authority, {"server.crt under ca.crt"}),
        (other_pair, {"server.key belongs to server.crt"}),
        (mode("certificates/server.key", 0o604), {"server.key's mode"}),
        (
            remove("certificates/server.key"),
            {"server.key's mode", "server.key belongs to server.crt"},
        ),
        (remove("certificates/server.crt"), {"server.crt", "server.key belongs to server.crt"}),
        (keep_ca_key, {"authority's key"}),
        (remove("state"), {"state"}),
        (mode("state", 0o755), {"state"}),
        (remove("runs"), {"runs"}),
    ],
)
def test_faults_of_a_servers_folder(
    server: Path, plant: Callable[[Path], object], names: set[str]
) -> None:
    plant(server)
    assert set(wrong(check_server(server, [NAME]))) == names


def test_an_expired_certificate_is_told_twice_as_what_it_is_and_what_follows(
    server: Path, authority: Path, at: Callable[[int], None]
) -> None:
    home = server / "certificates"
    for name in ("server.crt", "server.key"):
        (home / name).unlink()
    at(2020)
    make_server(home, authority, [NAME])
    found = wrong(check_server(server))
    assert found["server.crt's end"] == "it expired on 2020-12-31"
    assert "expired" in found["server.crt under ca.crt"]


def test_a_name_that_is_not_in_the_certificate(server: Path) -> None:
    assert set(wrong(check_server(server, [NAME, "other.org"]))) == {"name other.org"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_a_folder_of_another_user(client: Path) -> None:
    (client / "ledger").chmod(0o500)
    assert set(wrong(check_client(client))) == {"ledger's folder"}


def test_the_command_says_it_in_json_and_by_its_exit_code(
    client: Path, server: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["deploy", "check", "server", str(server), "--name", NAME, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is True
    assert {check["verdict"] for check in told["checks"]} == {"ok"}
    (client / "keys" / "node").chmod(0o644)
    assert run(["deploy", "check", "client", str(client), "--json"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["ok"] is False
    assert "node key's mode" in captured.err
    assert "chmod 600" in captured.err


@pytest.mark.parametrize("arguments", [["client", "--name", "x"], ["server", "--connect"]])
def test_options_of_the_other_kind_are_refused(arguments: list[str], tmp_path: Path) -> None:
    assert run(["deploy", "check", arguments[0], str(tmp_path), *arguments[1:]]) == 2
