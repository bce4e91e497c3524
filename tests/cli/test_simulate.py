"""`fedtranscribe simulate`: what it makes of a command line and of a run's files.

Slow, at the end: the whole command with the toy app, on a real SuperLink with real Ray workers.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from fedtranscribe import cli
from fedtranscribe.cli.transcribe import show_simulation
from fedtranscribe.config.catalogue import files_of
from fedtranscribe.errors import (
    BudgetExhaustedError,
    ConfigError,
    DataNotFoundError,
    FedtranscribeError,
    PrivacyError,
    SimulationError,
    StorageError,
)
from fedtranscribe.flower import simulate
from fedtranscribe.flower.apps import App, find_app
from fedtranscribe.flower.keeper import lives
from fedtranscribe.flower.simulate import Tail, raise_mistake
from fedtranscribe.results.result import ScoredResult
from tests.results import changed, result_of

TOY = Path(__file__).parents[1] / "federation" / "toy_app"


@pytest.fixture
def toy() -> App:
    return find_app(str(TOY))


# -------------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("no_such_app", "no_such_app"),
        (f"{TOY} epsilom=5", "did you mean epsilon?"),
        (f"{TOY} --holders 0", "holders=0"),
        (f"{TOY} --holders 3 holders=4", "holders is given twice"),
        (f"{TOY} --cpus 0", "--cpus 0"),
        (f"{TOY} --num-gpus -1", "--num-gpus -1"),
        (f"{TOY} --num-gpus nan", "--num-gpus nan"),
        (f"{TOY} --resume", "--out"),
        ("", "NAME"),
    ],
)
def test_mistakes_end_as_one_line(
    arguments: str,
    named: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["simulate", *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert named in captured.err
    assert not (tmp_path / "runs").exists(), "nothing is made for a command that cannot run"


@pytest.mark.parametrize("app", ["dirichlet_cifar10", "dirichlet_mnist", "dp_promise_mnist"])
def test_data_that_are_not_there_stop_it_before_flower_starts(
    app: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["simulate", app]) == DataNotFoundError.exit_code
    said = capsys.readouterr().err
    assert "data-root=DIR in a simulation" in said
    assert "download=true" in said
    assert "data=digits" in said
    assert files_of(str(find_app(app).defaults["data"])) in said
    assert not (tmp_path / "runs").exists()


def test_without_flower_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert cli.run(["simulate", str(TOY)]) == 2
    assert "pip install 'fedtranscribe[simulation]'" in capsys.readouterr().err


def test_the_command_line_imports_neither_flower_nor_ray() -> None:
    code = "import fedtranscribe.cli, sys; print({'flwr', 'ray', 'torch'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["simulate", "--help"]) == 0
    assert "fedtranscribe simulate dirichlet_mnist" in capsys.readouterr().out


def test_the_run_folder_is_absolute(
    toy: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = simulate.choose(toy, ["epsilon=5"], 5, Path("my run"), False)
    assert chosen == {"epsilon": 5.0, "holders": 5, "out": str(tmp_path / "my run")}
    named = Path(str(simulate.choose(toy, [], None, None, False)["out"]))
    assert named.parent == tmp_path / "runs"
    assert named.name.startswith("simulate-toy_app-")


def test_only_an_app_that_can_resumes(toy: App) -> None:
    assert simulate.choose(toy, [], None, Path("x"), True)["resume"] is True
    unable = App("unable", TOY, {"out": ""})
    with pytest.raises(ConfigError, match="Unknown setting 'resume'"):
        simulate.choose(unable, [], None, Path("x"), True)


def test_there_are_as_many_nodes_as_holders(toy: App) -> None:
    assert simulate.nodes(toy, {"holders": 7}, 2, 0.5) == {
        "num-supernodes": 7,
        "client-resources-num-cpus": 2,
        "client-resources-num-gpus": 0.5,
    }
    assert simulate.nodes(toy, {}, 1, 0.0)["num-supernodes"] == 2
    assert "num-supernodes" not in simulate.nodes(App("plain", TOY, {"out": ""}), {}, 1, 0.0)


def test_a_folder_with_a_run_is_not_touched(tmp_path: Path) -> None:
    run = tmp_path / "run"
    simulate.prepare(run, resume=False)
    (run / "superlink.log").touch()
    (run / "error.json").touch()
    simulate.prepare(run, resume=False)
    assert list(run.iterdir()) == [], "an attempt that became no run is cleared"
    (run / "metrics.json").touch()
    (run / "superlink.log").touch()
    with pytest.raises(StorageError, match="--resume"):
        simulate.prepare(run, resume=False)
    (run / "error.json").touch()
    simulate.prepare(run, resume=True)
    assert {entry.name for entry in run.iterdir()} == {"metrics.json", "superlink.log"}


def test_there_must_be_a_run_to_resume(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No run in"):
        simulate.prepare(tmp_path / "absent", resume=True)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Cannot write"):
        simulate.prepare(tmp_path / "file" / "run", resume=False)


# -------------------------------------------------------------------- a run's files


def test_the_tail_gives_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    tail = Tail(path)
    assert list(tail) == []
    path.write_bytes(b'{"done": 1}\n{"done"')
    assert list(tail) == [{"done": 1}]
    assert list(tail) == []
    with path.open("ab") as stream:
        stream.write(': 2, "stage": "Zeilen ü"}\nnonsense\n[3]\n{"done": 4}\n'.encode())
    assert list(tail) == [{"done": 2, "stage": "Zeilen ü"}, {"done": 4}]
    path.write_bytes(b'{"done": 5}\n')
    assert list(tail) == [{"done": 5}], "a file that was started anew is read anew"


class Bars:
    """Stands in for the bars on the screen."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int, str]] = []

    def __call__(self, stage: str, done: int, total: int, note: str = "") -> None:
        self.calls.append((stage, done, total, note))


def test_bars_show_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    entries = [
        {"stage": "teachers", "done": 1, "total": 5, "accuracy": None, "epsilon": None},
        {"done": 500, "total": 4000, "accuracy": 0.5, "epsilon": 1.25, "bytes": 2_000_000},
        {"done": 1000, "total": 4000, "round": 2},
        {"stage": "no figures"},
    ]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    bars = Bars()
    simulate.advance(Tail(path), bars)  # pyright: ignore[reportArgumentType]
    assert bars.calls == [
        ("teachers", 1, 5, ""),
        ("rows", 500, 4000, "acc. 50.0%, ε 1.25, 2.0 MB"),
        ("rows", 1000, 4000, "round 2"),
    ]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, FedtranscribeError),
        (2, ConfigError),
        (5, PrivacyError),
        (7, StorageError),
        (0, SimulationError),
        (None, SimulationError),
        (99, SimulationError),
    ],
)
def test_a_users_mistake_keeps_its_exit_code(
    tmp_path: Path, code: int | None, kind: type[FedtranscribeError]
) -> None:
    raise_mistake(tmp_path)
    (tmp_path / "error.json").write_text('{"error": "Expected')
    raise_mistake(tmp_path)
    mistake = {"error": "Expected less.", "exit_code": code}
    (tmp_path / "error.json").write_text(json.dumps(mistake))
    with pytest.raises(kind, match=r"Expected less\.") as caught:
        raise_mistake(tmp_path)
    assert caught.value.exit_code == kind.exit_code != 0
    assert BudgetExhaustedError.exit_code == PrivacyError.exit_code


RESULT = result_of(
    method="feddpsd",
    rows=4000,
    holders=5,
    epsilon=9.87,
    unit="record",
    adjacency="zero-out",
    published={"epsilon": 3.21, "reason": "it sums what does not add up"},
)
SCORES = {"private_student": 0.9234, "one teacher": None}


def test_both_figures_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show_simulation(ScoredResult(RESULT, SCORES, ()), Path("/runs/one"))
    out = capsys.readouterr().out
    for part in ["feddpsd", "private student", "92.3%", "9.87", "3.21", "zero-out", "/runs/one"]:
        assert part in out
    assert "it sums what does not add up" in out.replace("\n", " ")


def test_no_guarantee_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    none = changed(RESULT, epsilon=None, published=None)
    show_simulation(ScoredResult(none, SCORES, ()), Path("/runs/one"))
    out = capsys.readouterr().out
    assert "infinite: no guarantee" in out
    assert "published" not in out


# -------------------------------------------------------------------- the whole command


class Ended(NamedTuple):
    code: int
    out: str
    err: str


class Command:
    """Runs the command and keeps an eye on all that it starts."""

    def __init__(self, temporary: Path, folder: Path) -> None:
        self.temporary = temporary
        self.folder = folder
        self.seen: set[psutil.Process] = set()

    def run(self, *arguments: str, send: signal.Signals | None = None) -> Ended:
        """Run it; with `send`, send that signal once the first progress is written."""
        out, err = self.folder / "stdout", self.folder / "stderr"
        start = [sys.executable, "-c", "from fedtranscribe.cli import main; main()"]
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [*start, "simulate", str(TOY), "--out", str(self.folder / "run"), *arguments],
                env={**os.environ, "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"},
                stdout=stdout,
                stderr=stderr,
            )
            while process.poll() is None:
                self._look(process.pid)
                if send is not None and (self.folder / "run" / "progress.jsonl").exists():
                    process.send_signal(send)
                    send = None
                time.sleep(0.2)
        return Ended(process.returncode, out.read_text(), err.read_text())

    def _look(self, pid: int) -> None:
        for root in [*self.seen]:
            if lives(root):
                self._add(root)
        self._add(psutil.Process(pid))

    def _add(self, root: psutil.Process) -> None:
        try:
            self.seen |= {*root.children(recursive=True)}
        except psutil.Error:
            return

    def left(self) -> list[psutil.Process]:
        """Processes that were seen below the command, or that use its temporary folder."""
        return [
            process
            for process in psutil.process_iter()
            if lives(process) and (process in self.seen or self._uses_folder(process))
        ]

    def _uses_folder(self, process: psutil.Process) -> bool:
        try:
            return str(self.temporary) in " ".join(
                [*process.cmdline(), *process.environ().values()]
            )
        except psutil.Error:
            return False

    def check_nothing_left(self) -> None:
        ran = len(self.seen)
        assert ran > 3, "Flower was looked for while it ran"
        assert self.left() == []
        assert list(self.temporary.iterdir()) == []


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """With a temporary folder of its own, whose name is short enough for Ray's sockets."""
    temporary = Path(tempfile.mkdtemp(prefix="ft-", dir="/tmp"))
    yield Command(temporary, tmp_path)
    shutil.rmtree(temporary, ignore_errors=True)


@pytest.mark.long
def test_a_run_to_its_end(command: Command, tmp_path: Path) -> None:
    done = command.run("epsilon=5", "data_root=sets", "--holders", "3", "--json")
    assert done.code == 0, done.err
    metrics = json.loads(done.out)
    assert metrics["shards"] == {"holder-0": 1, "holder-1": 1, "holder-2": 1}
    assert metrics["epsilon"] == 5.0
    assert metrics["out"] == str(tmp_path / "run")
    assert metrics["settings"]["data-root"] == str(Path.cwd() / "sets")
    assert f"run folder: {tmp_path / 'run'}" in done.err.replace("\n", "")
    written = {entry.name for entry in (tmp_path / "run").iterdir()}
    assert written == {"metrics.json", "progress.jsonl", "superlink.log"}
    command.check_nothing_left()


@pytest.mark.long
def test_a_crash_is_a_failure(command: Command, tmp_path: Path) -> None:
    done = command.run("mode=crash")
    assert done.code == SimulationError.exit_code
    assert done.out == ""
    said = done.err.strip().splitlines()[-1]
    assert said.startswith("error: The run ended as finished:failed")
    assert "superlink.log" in said
    log = (tmp_path / "run" / "superlink.log").read_text()
    assert "RuntimeError: the toy was told to crash" in log
    command.check_nothing_left()


@pytest.mark.long
def test_a_users_mistake_is_one_line_with_its_code(command: Command) -> None:
    done = command.run("mode=mistake")
    assert done.code == PrivacyError.exit_code
    assert done.err.strip().splitlines()[-1] == "error: Expected rows=100 to fit the toy."
    command.check_nothing_left()


@pytest.mark.long
@pytest.mark.parametrize(("send", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_nothing_behind(
    command: Command, send: signal.Signals, code: int
) -> None:
    done = command.run("mode=wait", send=send)
    assert done.code == code
    assert "--resume --out" in done.err
    command.check_nothing_left()


@pytest.mark.long
def test_kill_9_leaves_nothing_behind(command: Command) -> None:
    assert command.run("mode=wait", send=signal.SIGKILL).code == -signal.SIGKILL
    deadline = time.monotonic() + 90
    while (command.left() or any(command.temporary.iterdir())) and time.monotonic() < deadline:
        time.sleep(0.2)
    command.check_nothing_left()
