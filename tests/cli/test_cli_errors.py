import subprocess
import sys
from pathlib import Path

import pytest

import fedtranscribe
from fedtranscribe import cli
from fedtranscribe.errors import BudgetExhaustedError

DPSD = "privacy calibrate dpsd --rows 100 --teachers 10"
LABEL = "privacy account label --epsilon0 0.1 --classes 10"


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (f"{DPSD} --epsilon 0", "epsilon=0.0"),
        (f"{DPSD} --epsilon -3", "epsilon=-3.0"),
        (f"{DPSD} --epsilon nan", "epsilon=nan"),
        (f"{DPSD} --epsilon inf", "epsilon=inf"),
        (f"{DPSD} --epsilon ten", "--epsilon"),
        (f"{DPSD} --epsilon 1 --delta 0", "delta=0.0"),
        (f"{DPSD} --epsilon 1 --delta 1", "delta=1.0"),
        (f"{DPSD} --epsilon 1 --rows 0", "rows=0"),
        (f"{DPSD} --epsilon 1 --teachers 0", "teachers=0"),
        (f"{DPSD} --epsilon 1 --holders 3", "holders=3"),
        (f"{DPSD} --epsilon 1 --unit patient", "patient"),
        (f"{DPSD} --epsilon 1 --noise none", "none"),
        (DPSD, "--epsilon"),
        (f"{DPSD} --epsilon 1 --colour red", "--colour"),
        ("privacy account dpsd --noise-std 0 --rows 1 --teachers 1", "noise_std=0.0"),
        (f"{LABEL} --queries 0", "count=0"),
        (f"{LABEL} --queries 10 --epsilon0 -1", "epsilon0=-1.0"),
        ("privacy account dp-sgd --records 10 --batch 20 --epochs 1 --sigma 1", "batch=20"),
        (
            "privacy account dp-sgd --records 10 --batch 2 --epochs 1 --sigma 0",
            "noise_multiplier=0.0",
        ),
        ("privacy published dpsd --sigma -1", "sigma=-1.0"),
        ("privacy published dp-promise --boundary 2000", "boundary=2000"),
        ("privacy forecast dpsd --epsilon 1 --teachers 5 --classes 1", "classes=1"),
        ("transmogrify", "transmogrify"),
    ],
)
def test_mistakes_end_as_one_line(
    command: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(command.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert named in captured.err


@pytest.mark.parametrize("command", ["transcrib", "transcribe --epsilom 5", "teacher infos"])
def test_a_close_name_is_suggested_once(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(command.split()) == 2
    said = capsys.readouterr().err
    assert said.count("Did you mean") == 1
    assert said.endswith("? Try --help.\n")


@pytest.mark.parametrize("command", ["transcribe", "synthesize"])
def test_a_run_that_is_not_there_is_not_resumed_and_nothing_is_planned(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.run([command, "--resume", "--out", str(tmp_path / "none")]) == 7
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        f"error: No run in {tmp_path / 'none'} to resume; leave out --resume to start one.\n"
    )
    assert not (tmp_path / "none").exists()


def raising(error: BaseException):
    def command(*_: object, **__: object) -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (BudgetExhaustedError("Expected\nless."), 5, "Expected less."),
        (
            OSError(28, "No space left on device", "run/state"),
            7,
            "No space left on device: run/state",
        ),
        (OSError("odd"), 7, "odd"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (cli.Terminated(), 143, "terminated"),
    ],
)
def test_errors_from_below(
    error: BaseException,
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli, "app", raising(error))
    assert cli.run([]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {said}")
    assert captured.err.count("\n") == 1


def test_our_own_mistakes_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "app", raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.run([])


@pytest.mark.parametrize("command", ["", "privacy", "privacy calibrate", "privacy published"])
def test_a_group_shows_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(command.split()) == 0
    assert "Commands" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"fedtranscribe {fedtranscribe.__version__}\n"


def test_main_exits_with_the_code() -> None:
    code = "from fedtranscribe.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *f"{DPSD} --epsilon 0".split()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: Expected epsilon=0.0 > 0 and finite.\n"


def test_help_shows_brackets_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Typer escapes them for rich, which does not print our help."""
    assert cli.run(["simulate", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "[required]" in shown
    assert "\\[" not in shown
