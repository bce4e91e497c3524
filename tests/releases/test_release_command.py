"""`fedtranscribe release RUN` and `fedtranscribe release verify DIR`."""

import json
import shutil

import pytest

from fedtranscribe import cli
from fedtranscribe.releases import writing
from fedtranscribe.releases.statement import LOUD


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """Without ONNX, whose export takes most of the time."""
    monkeypatch.setattr(writing, "export_onnx", lambda _: None)


def test_release_and_verify(run, tmp_path, capsys):
    folder = tmp_path / "handed-over"
    assert cli.run(["release", str(run), "--out", str(folder)]) == 0
    shown = capsys.readouterr()
    assert "a private set of the holder" in shown.out
    assert "nothing was chosen by" in shown.out
    assert str(folder) in shown.out
    assert shown.err == ""
    assert cli.run(["release", "verify", str(folder)]) == 0
    assert "not ok" not in capsys.readouterr().out


def test_json_says_it_to_programs(run, capsys):
    assert cli.run(["release", "--json", str(run)]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["folder"] == str(run / "release")
    assert made["schema"] == "fedtranscribe-privacy-1"
    assert cli.run(["release", "verify", made["folder"], "--json"]) == 0
    verified = json.loads(capsys.readouterr().out)
    assert verified["ok"] is True
    assert all(set(check) == {"name", "ok", "words"} for check in verified["checks"])


def test_a_rejected_release_ends_as_one_line_and_lists_every_failed_check(run, capsys):
    assert cli.run(["release", str(run)]) == 0
    statement = run / "release" / "privacy.json"
    value = json.loads(statement.read_text(encoding="utf-8"))
    statement.write_text(json.dumps({**value, "epsilon": 1.0}), encoding="utf-8")
    capsys.readouterr()
    assert cli.run(["release", "verify", str(run / "release"), "--json"]) == 5
    shown = capsys.readouterr()
    verified = json.loads(shown.out)
    assert verified["ok"] is False
    assert [c["name"] for c in verified["checks"] if not c["ok"]] == ["epsilon", "card"]
    assert shown.err.startswith("error: The release in ")
    assert "states ε = 1.0" in shown.err
    assert shown.err.count("\n") == 1
    assert cli.run(["release", "verify", str(run / "release")]) == 5
    assert "not ok" in capsys.readouterr().out


def test_a_stamp_is_loud_on_the_terminal(seeded, tmp_path, capsys):
    asked = ["release", str(seeded.run), "--out", str(tmp_path / "x")]
    assert cli.run(asked) == 5
    assert "--stamp-not-private" in capsys.readouterr().err
    assert cli.run([*asked, "--stamp-not-private", "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith(LOUD)
    assert json.loads(shown.out)["stamp"].startswith(LOUD)
    assert cli.run(["release", "verify", str(tmp_path / "x")]) == 5


def test_choices_can_be_repeated(run, capsys):
    asked = ["release", str(run), "--choice", "the seed", "--choice", "the rows"]
    assert cli.run(asked) == 5
    assert "the seed; " in capsys.readouterr().err
    assert cli.run([*asked, "--stamp-not-private"]) == 0
    assert "the rows" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["verify", "RUN", "-x"])
def test_a_run_of_an_odd_name_can_be_released(run, name, tmp_path, monkeypatch, capsys):
    shutil.copytree(run, tmp_path / "runs" / name)
    monkeypatch.chdir(tmp_path / "runs")
    given = name if name == "RUN" else f"./{name}"
    assert cli.run(["release", given]) == 0
    assert cli.run(["release", "verify", f"./{name}/release"]) == 0


@pytest.mark.parametrize("asked", ["release", "release --help"])
def test_help_shows_both_spellings(asked, capsys):
    assert cli.run(asked.split()) == 0
    shown = capsys.readouterr().out
    assert "Usage: fedtranscribe release [OPTIONS] RUN" in " ".join(shown.split())
    assert "fedtranscribe release runs/scans --out" in shown
    assert "fedtranscribe release verify scans-student" in shown
    assert "--stamp-not-private" in shown


def test_help_of_verify_has_examples(capsys):
    assert cli.run(["release", "verify", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "fedtranscribe release verify runs/scans/release" in shown
    assert "DIR" in shown


@pytest.mark.parametrize(
    ("asked", "code", "named"),
    [
        ("release verify", 2, "DIR"),
        ("release --json", 2, "RUN"),
        ("release a b", 2, "unexpected"),
        ("release verify a b", 2, "unexpected"),
        ("release absent", 7, "No run in absent"),
        ("release verify absent", 7, "No release in absent"),
        ("release absent --colour red", 2, "--colour"),
    ],
)
def test_mistakes_end_as_one_line(asked, code, named, capsys):
    assert cli.run(asked.split()) == code
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert named in shown.err
    assert shown.err.count("\n") == 1
