"""Three kinds of readers get from a page to their goal: its commands run as they are printed."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import doc_pages as pages
import numpy as np
import psutil
import pytest

from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.releases import verify

HOSPITAL, RESEARCHER, OPERATOR = pages.FOLLOWED
MARK = "FEDTRANSCRIBE_TEST"

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder; whatever was started there ends with the test."""
    yield tmp_path
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == str(tmp_path):
                process.kill()


def follow(page: Path, folder: Path) -> str:
    """Do all that a page says, in a folder; gives what was printed."""
    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        MARK: str(folder),
        "HOME": str(folder),
        "FEDTRANSCRIBE_HOME": str(folder / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "COLUMNS": "120",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment.pop("FLWR_HOME", None)
    done = subprocess.run(
        ["bash", "-x", "-c", pages.script(page)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_hospital_with_dicom_files_and_a_rare_class(folder: Path):
    printed = follow(HOSPITAL, folder)
    run = folder / "runs" / "xrays"
    result = read(run / "metrics.json")
    assert result["epsilon"] == pytest.approx(10, rel=1e-6)
    assert result["ledger"]["limit"]["epsilon"] == 15
    assert result["class_names"] == ["normal", "suspicious"]
    assert result["accuracy"] is None, "it was measured on the hospital's own patients"
    # Of about 850 images nine in ten are normal.
    assert read(run / "private" / "confusion.json")["balanced"] > 0.8
    measured = read(run / "private" / "evaluation.json")
    assert measured["student"]["operating_point"]["specificity"] > 0.8
    assert measured["downstream"]["logistic-regression"] > 0.8
    assert read(run / "audit.json")["sound"]
    assert "suspicious" in (run / "report.html").read_text(encoding="utf-8")
    release = run / "release"
    assert verify(release).ok
    for file in (f for f in (*run.rglob("*"), *release.rglob("*")) if f.is_file()):
        for secret in (b"Doe^", b"p0001"):
            assert secret not in file.read_bytes(), "a patient's name or number"
    assert b"xrays" not in (release / "privacy.json").read_bytes()
    with np.load(folder / "synthetic.npz") as synthetic:
        assert synthetic["images"].shape == (200, 1, 28, 28)
    assert "('normal', 'suspicious')" in printed


def test_a_researcher_with_an_ablation(folder: Path):
    printed = follow(RESEARCHER, folder)
    for page_says in pages.blocks(RESEARCHER, "python"):
        for line in pages.expected_output(page_says.text):
            assert line in printed
    runs, chance = folder / "runs", 0.1
    assert read(runs / "saved" / "metrics.json")["accuracy"] is None
    assert read(runs / "saved" / "private" / "accuracy.json")["student"] > 5 * chance
    for name in ("eps-1-0", "eps-1-1", "eps-10-0", "eps-10-1"):
        result = read(runs / name / "metrics.json")
        assert result["epsilon"] == pytest.approx(float(name.split("-")[1]), rel=1e-6)
        assert result["accuracy"]["student"] > 7 * chance
    compared = read(folder / "curves" / "compare.json")
    assert [group["accuracy"]["runs"] for group in compared["groups"]] == [2, 2]
    federated = read(runs / "federated" / "metrics.json")
    assert federated["holders"] == 3
    assert federated["epsilon"] <= 10
    assert federated["accuracy"]["student"] > 7 * chance


def test_an_operator_of_three_nodes(folder: Path):
    printed = follow(OPERATOR, folder)
    result = read(folder / "server" / "runs" / "first" / "metrics.json")
    assert result["epsilon"] == pytest.approx(5, rel=1e-6)
    assert sorted(result["answered_rounds"]) == ["north", "south", "west"]
    assert result["accuracy"]["student"] > 0.5  # chance is 0.1
    assert verify(folder / "server" / "runs" / "first" / "release").ok
    booked = re.search(r'fedtranscribe_holder_epsilon_booked\{unit="record"\} (.*)', printed)
    assert booked is not None
    assert float(booked[1]) == pytest.approx(5, rel=0.02)
    for holder in ("north", "south", "west"):
        with Ledger.open_read_only(folder / holder / "ledger" / "ledger.sqlite") as ledger:
            ledger.verify()
            total = ledger.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
            assert total.epsilon == pytest.approx(5, rel=0.02)
