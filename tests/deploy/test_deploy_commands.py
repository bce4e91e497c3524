import json
from pathlib import Path

import pytest

from fedtranscribe.cli import run
from fedtranscribe.flower.folder_check import check_server, first_fault


def test_from_nothing_to_a_sound_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["deploy", "init", "server", "server"]) == 0
    create = ["deploy", "certs", "create", "server/certificates", "--name", "a.example.org"]
    assert run([*create, "--days", "90"]) == 0
    assert (tmp_path / "authority" / "ca.key").exists()
    assert not (tmp_path / "server" / "certificates" / "ca.key").exists()
    assert first_fault(check_server(Path("server"), ["a.example.org"])) is None
    capsys.readouterr()
    assert run(["deploy", "certs", "renew", "server/certificates", "--days", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["days left"] in (4, 5)
    assert run(create) == 7
    assert "never overwritten" in capsys.readouterr().err


def test_a_mistaken_name_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["deploy", "certs", "create", "c", "--name", "https://a.org"]) == 2
    assert [p.name for p in tmp_path.iterdir() if p.name != "home"] == []


def test_no_command_prints_a_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for extra in ([], ["--json"]):
        place = f"made{len(extra)}"
        assert run(["deploy", "certs", "create", place, "--name", "a.org", *extra]) == 0
        assert run(["deploy", "keys", "create", f"{place}/node", *extra]) == 0
        for half in ("node", "node.pub"):
            assert run(["deploy", "keys", "show", f"{place}/{half}", *extra]) == 0
        assert run(["deploy", "certs", "show", f"{place}/server.crt", *extra]) == 0
        assert run(["deploy", "certs", "show", f"{place}/server.key", *extra]) == 2
    captured = capsys.readouterr()
    said = captured.out + captured.err
    secrets = [tmp_path / "authority/ca.key", *tmp_path.glob("made*/server.key")]
    secrets += tmp_path.glob("made*/node")
    assert len(secrets) == 5
    for secret in secrets:
        for line in secret.read_text().splitlines():
            assert line not in said


def test_the_fingerprint_is_shown_whole_in_a_narrow_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    run(["deploy", "certs", "create", "c", "--name", "a.org"])
    shown = capsys.readouterr().out
    run(["deploy", "certs", "show", "c/server.crt", "--json"])
    digits = json.loads(capsys.readouterr().out)["fingerprint"].split(":")
    table = "".join(c for c in shown.split("fingerprint")[1] if c.isalnum())
    assert "".join(digits) in table


@pytest.mark.parametrize(
    "command",
    [
        *("certs create", "certs renew", "certs show", "keys create", "keys show"),
        *("init", "check", "join", "serve"),
    ],
)
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["deploy", *command.split(), "--help"]) == 0
    assert f"fedtranscribe deploy {command}" in capsys.readouterr().out
