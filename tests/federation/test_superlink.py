"""A private SuperLink's surroundings, and that nothing outlives it. Slow: with Flower and Ray."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from fedtranscribe.errors import SimulationError
from fedtranscribe.flower import superlink
from fedtranscribe.flower.keeper import LOG, lives
from fedtranscribe.flower.superlink import PrivateSuperLink, RunStatus

TOY = Path(__file__).parent / "toy_app"

# Starts a process as Ray does: in a session of its own, with nothing of our environment, deaf to
# a polite request; and then one whose parent goes at once.
PROGRAM = """
import os, subprocess, sys, time
deaf = ("import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "open(os.path.join({where!r}, str(os.getpid())), 'w').close(); time.sleep(600)")
start = [sys.executable, "-c", deaf]
subprocess.Popen(start, env={{}}, start_new_session=True)
orphan = f"import subprocess; subprocess.Popen({{start}}, env={{{{}}}}, start_new_session=True)"
subprocess.run([sys.executable, "-c", orphan], env={{}})
print("the program has started", flush=True)
time.sleep(600)
"""
SAID = "the program has started"
KEEP = """
import sys
from pathlib import Path
from fedtranscribe.flower import keeper
keeper.GRACE_SECONDS = 0.3
sys.exit(keeper.keep(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
"""


def until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def keeper_command(folder: Path) -> list[str]:
    """A keeper whose family notes its process ids in `folder/pids`."""
    for name in ("home", "pids"):
        (folder / name).mkdir()
    program = PROGRAM.format(where=str(folder / "pids"))
    keeper = [sys.executable, "-c", KEEP, str(folder / "home"), str(folder / "kept.log")]
    return [*keeper, sys.executable, "-c", program]


def family(folder: Path) -> list[psutil.Process]:
    """The two deaf processes, once both are there and the program has said so."""
    until(lambda: len(list((folder / "pids").iterdir())) == 2)
    until(lambda: SAID in (folder / "home" / LOG).read_text())
    return [psutil.Process(int(entry.name)) for entry in (folder / "pids").iterdir()]


def test_the_keeper_ends_orphans_in_other_sessions(tmp_path: Path) -> None:
    with subprocess.Popen(keeper_command(tmp_path), stdin=subprocess.PIPE) as keeper:
        members = family(tmp_path)
        assert all(lives(member) for member in members)
        assert keeper.stdin is not None
        keeper.stdin.close()
        assert keeper.wait(60) == 128 + signal.SIGTERM
    assert not any(lives(member) for member in members)
    assert not (tmp_path / "home").exists()
    assert SAID in (tmp_path / "kept.log").read_text()


def test_a_caller_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    caller = (
        "import subprocess, sys, time;"
        "subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True);"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", caller, *keeper_command(tmp_path)]) as process:
        members = family(tmp_path)
        process.kill()
    until(lambda: not any(lives(member) for member in members))
    until(lambda: not (tmp_path / "home").exists())


def test_the_environment_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("RAY_ADDRESS", "ray://elsewhere")
    monkeypatch.setenv("FLWR_HOME", "/elsewhere")
    monkeypatch.setenv("NO_PROXY", "intranet")
    environment = superlink._environment(tmp_path)
    assert {"PYTHONDONTWRITEBYTECODE", "RAY_ADDRESS"}.isdisjoint(environment)
    assert environment["FLWR_HOME"] == str(tmp_path)
    assert environment["RAY_TMPDIR"].startswith(str(tmp_path))
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert environment["NO_PROXY"] == "intranet,127.0.0.1"
    assert str(Path(sys.executable).parent) in environment["PATH"].split(os.pathsep)[:2]


def test_ray_gets_short_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "x" * 90)
    assert superlink._short_base() == "/tmp"
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
    assert superlink._short_base() == "/var/tmp"


@pytest.mark.parametrize(
    ("state", "finished", "completed"),
    [
        ("pending", False, False),
        ("running", False, False),
        ("finished:completed", True, True),
        ("finished:failed", True, False),
        ("finished:stopped", True, False),
    ],
)
def test_what_flower_says_of_a_run(state: str, finished: bool, completed: bool) -> None:
    status = RunStatus(state, "")
    assert (status.finished, status.completed) == (finished, completed)


def test_a_superlink_that_dies_is_reported_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bin" / "flower-superlink"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho the port is taken\nexit 3\n")
    broken.chmod(0o755)
    homes: list[Path] = []
    usual = superlink._environment

    def environment(home: Path) -> dict[str, str]:
        homes.append(home)
        return {**usual(home), "PATH": f"{broken.parent}{os.pathsep}{os.environ['PATH']}"}

    monkeypatch.setattr(superlink, "_environment", environment)
    kept = tmp_path / "superlink.log"
    with pytest.raises(SimulationError, match=r"exit code 3: the port is taken"):
        PrivateSuperLink(kept).__enter__()
    assert kept.read_text() == "the port is taken\n"
    assert not homes[0].exists()


@pytest.mark.long
def test_a_run_on_a_real_superlink(tmp_path: Path) -> None:
    out = tmp_path / "a run"
    with PrivateSuperLink(tmp_path / "kept.log") as link:
        keeper = psutil.Process(link._keeper.pid)
        with pytest.raises(SimulationError, match="flwr run failed"):
            link.submit(TOY, {"colour": "red"}, {"num-supernodes": 2})
        run = link.submit(TOY, {"out": str(out), "note": 'it\'s "x"'}, {"num-supernodes": 2})
        seen: set[psutil.Process] = set()
        status = link.status(run)
        while not status.finished:
            seen |= {*keeper.children(recursive=True)}
            time.sleep(1)
            status = link.status(run)
        link.add_run_log(run)
    assert status.completed, status
    assert '"note": "it\'s \\"x\\""' in (out / "metrics.json").read_text()
    assert "Starting Flower Simulation" in (tmp_path / "kept.log").read_text()
    assert len(seen) > 3, "Ray was looked for while it ran"
    assert not [process for process in {keeper, *seen} if lives(process)]
    assert not link.home.exists()
