"""Our real apps on a real SuperLink with real Ray workers; no process is left behind."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fedtranscribe.errors import QuorumError
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit

SIMULATIONS = Path(__file__).parents[2] / "simulations"
DYING = Path(__file__).parent / "dying_app"

SMALL = (
    "data=digits",
    "shards=4",
    "teacher=cnn-small",
    "student=cnn-small",
    "rows=60",
    "force=true",
    "device=cpu",
    "dpsd.round-rows=20",
    "dpsd.student-steps=2",
    "dpsd.finish-steps=2",
    "dpsd.pretrain-steps=5",
    "teachers.steps=5",
)

pytestmark = pytest.mark.timeout(1800)


def simulate(
    app: Path | str, out: Path, *settings: str, workers: int = 2, resume: bool = False
) -> subprocess.CompletedProcess[str]:
    # A mark of its own in the environment finds every descendant, whoever adopted it.
    environment = {**os.environ, "FEDTRANSCRIBE_TEST": str(out)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    program = str(Path(sys.executable).with_name("fedtranscribe"))
    chosen = dict(pair.split("=") for pair in (*SMALL, *settings))
    command = [program, "simulate", str(app), *(f"{k}={v}" for k, v in chosen.items())]
    command += ["--resume"] if resume else []
    done = subprocess.run(
        [*command, "--workers", str(workers), "--out", str(out), "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    until = time.monotonic() + 20
    while (left := _marked(str(out))) and time.monotonic() < until:
        time.sleep(0.5)
    assert not left, "processes were left behind"
    return done


def _marked(mark: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("FEDTRANSCRIBE_TEST") == mark:
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):
            continue
    return found


@pytest.mark.ways
def test_dirichlet_mnist_runs_and_says_what_it_cost(tmp_path):
    done = simulate("dirichlet_mnist", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["epsilon"] == pytest.approx(10.0, rel=1e-6)
    assert result["holders"] == 5
    assert set(result["answered_rounds"].values()) == {3}
    assert (tmp_path / "run" / "student.safetensors").exists()


@pytest.mark.long
def test_sums_start_a_run_where_nobody_names_a_student(tmp_path):
    chosen = ("student=", "noise=secagg", "rows=0", "with-generator=false")
    done = simulate("dirichlet_mnist", tmp_path / "run", *chosen)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    # Two sums and 20 rounds of gradients.
    assert (result["start"], result["rows"]) == ("moments", 22)
    assert result["trust"].startswith("no server")
    assert 9.9 < result["epsilon"] <= 10.0
    assert result["accuracy"]["student"] > 0.85


@pytest.mark.long
def test_a_baseline_runs_as_well(tmp_path):
    chosen = ("method=fedavg", "baseline.rounds=1", "baseline.local-steps=2")
    done = simulate("dirichlet_cifar10", tmp_path / "run", *chosen)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["epsilon"] is None


@pytest.mark.long
def test_a_mistake_is_one_line_and_its_exit_code(tmp_path):
    done = simulate("dirichlet_mnist", tmp_path / "run", "force=false", "shards=1")
    assert done.returncode == 5, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_run_outlives_a_holder_whose_process_dies_in_a_round(tmp_path):
    """Flower keeps a dead worker in its pool and goes on giving it messages, so that other holders
    may be missed as well, and on a busy machine a quorum with them: the run is resumed then. What
    must hold is that it ends and that nobody spends twice."""
    out = tmp_path / "run"
    done = simulate(DYING, out, "timeout=60.0", workers=4)
    if done.returncode == QuorumError.exit_code:
        done = simulate(DYING, out, "timeout=60.0", workers=4, resume=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    private = tmp_path / "run" / "private"
    assert result["rows"] == 60
    assert result["epsilon"] == pytest.approx(10.0, rel=1e-6)
    assert result["left"] == {}
    assert sum(result["answered_rounds"].values()) >= 3 * 3, "a quorum of five in three rounds"
    assert len((private / "calls-of-holder-3").read_text()) >= 2
    for path in private.glob("holders/*/ledger.sqlite"):
        with Ledger.open_read_only(path) as ledger:
            assert ledger.rows(result["run"]) <= 60
            assert ledger.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT).epsilon <= 10.0 + 1e-6


@pytest.mark.long
def test_a_masked_run_outlives_a_holder_killed_in_every_round(tmp_path):
    """Ten workers, so that those which Flower goes on using after their death are not all there
    are; whoever was given to one is asked again. On a busy machine Flower may still give two
    holders of one round to dead workers: the run stops then, and goes on where it was, at most
    once per death, as its new workers are all alive."""
    out = tmp_path / "run"
    asked = ("noise=secagg", "timeout=120.0", "retries=8")
    done = simulate(DYING, out, *asked, workers=10)
    for _ in range(3):
        if done.returncode == QuorumError.exit_code:
            done = simulate(DYING, out, *asked, workers=10, resume=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    died = {path.name for path in (out / "private").glob("died-in-*")}
    assert died == {"died-in-mask", "died-in-open_round", "died-in-sign"}
    assert result["rows"] == 60
    assert result["stopped"] is None
    assert result["trust"].startswith("no server")
    assert 9.9 < result["epsilon"] <= 10.0
    assert sum(result["answered_rounds"].values()) >= 3 * 4
    for path in out.glob("private/holders/*/ledger.sqlite"):
        with Ledger.open_read_only(path) as ledger:
            assert ledger.rows(result["run"]) <= 60
            assert ledger.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT).epsilon <= 10.0
