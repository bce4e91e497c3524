"""No character may end a command, whatever the streams can show."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedtranscribe import cli


class Terminal:
    """Standard output and error of one encoding; runs commands and reads what they printed."""

    def __init__(self, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._encoding = encoding
        self._patch = monkeypatch

    def run(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        # Help is written by click, which takes a stream of ASCII for one of UTF-8.
        helped = self._encoding == "ascii" and "--help" in arguments
        raw = {"stdout": io.BytesIO(), "stderr": io.BytesIO()}
        with self._patch.context() as patch:
            for name, buffer in raw.items():
                stream = io.TextIOWrapper(buffer, self._encoding, write_through=True)
                patch.setattr(sys, name, stream)
            assert cli.run([*arguments]) == code
            out, err = (buffer.getvalue() for buffer in raw.values())
        return out.decode("utf-8" if helped else self._encoding), err.decode(self._encoding)


@pytest.fixture(params=["cp1252", "ascii"])
def terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "200")
    return Terminal(request.param, monkeypatch)


def test_a_run_and_all_that_reads_it(terminal: Terminal, tiny_data: Path, tmp_path: Path):
    """Made by commands of each kind; the data's name is not in the encoding either."""
    data, out = tiny_data.rename(tmp_path / "Röntgen-癌.npz"), str(tmp_path / "ψ")
    run = ["transcribe", "--data", str(data), "--epsilon", "50", "--budget", "60", "--force"]
    short = ["--descent-rounds", "0", "--no-generator"]
    assert "epsilon" in terminal.run(*run, *short, "--plan")[1]
    assert "epsilon" in terminal.run(*run, *short, "--out", out)[0]
    printed, _ = terminal.run(*run, *short, "--out", out, "--resume", "--json")
    assert printed.isascii()
    stated = json.loads(printed)
    assert stated["epsilon"] == pytest.approx(50, rel=1e-6)
    assert "/?/report.html" in terminal.run("report", out)[0]
    ledger = next(tmp_path.glob("*.ledger.sqlite"))
    assert "?" in terminal.run("holder", "ledger", "show", str(ledger))[0]


def test_calculators(terminal: Terminal):
    noise = ["--noise-std", "3", "--teachers", "50", "--rows", "10"]
    assert "epsilon" in terminal.run("privacy", "account", "dpsd", *noise)[0]


@pytest.mark.parametrize("command", ["transcribe", "synthesize", "simulate", "privacy"])
def test_help(terminal: Terminal, command: str):
    assert "Usage" in terminal.run(command, "--help")[0]


def test_mistakes(terminal: Terminal, tmp_path: Path):
    _, printed = terminal.run("report", str(tmp_path / "keine-Läufe-ε"), code=7)
    assert "epsilon" in printed
    assert printed.count("error:") == 1


def test_the_command_itself():
    """A process whose streams are those of a file on Windows."""
    shown = subprocess.run(
        [sys.executable, "-c", "from fedtranscribe.cli import main; main()", "privacy", "--help"],
        env={**os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"},
        capture_output=True,
        check=True,
    )
    assert "epsilon" in shown.stdout.decode("cp1252")
