"""kill -9 in the middle of a transcription, then --resume: the ledger must not notice."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit

CONFIG = """
[dpsd]
round_rows = 5
batch = 8
student_steps = 4
finish_steps = 2
generator_steps = 2
latent_dim = 8
generator_width = 4
pretrain_steps = 2
[teachers]
steps = 2
batch = 4
"""


def command(data: Path, out: Path, ledger: Path, config: Path) -> list[str]:
    return [
        *(sys.executable, "-c", "from fedtranscribe.cli import main; main()", "transcribe"),
        *("--data", str(data), "--out", str(out), "--ledger", str(ledger)),
        *("--config", str(config), "--teacher", "cnn-small", "--student", "cnn-small"),
        *("--shards", "20", "--rows", "200", "--force", "--json"),
    ]


def booked(ledger: Path) -> tuple[float, int]:
    with Ledger.open_read_only(ledger) as book:
        book.verify()
        epsilon = book.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT).epsilon
        return epsilon, sum(release.rows for release in book.releases())


@pytest.mark.ways
def test_killed_and_resumed_costs_what_an_unbroken_run_costs(tiny_data: Path, tmp_path: Path):
    config = tmp_path / "settings.toml"
    config.write_text(CONFIG)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole, broken = tmp_path / "whole.sqlite", tmp_path / "broken.sqlite"
    # One data set has one ledger: the second run has a copy, in a folder of its own.
    copy = tmp_path / "copy" / tiny_data.name
    copy.parent.mkdir()
    copy.write_bytes(tiny_data.read_bytes())
    unbroken = command(copy, tmp_path / "whole", whole, config)
    subprocess.run(unbroken, env=environment, check=True, capture_output=True)

    arguments = command(tiny_data, tmp_path / "broken", broken, config)
    events = tmp_path / "broken" / "events.jsonl"
    child = subprocess.Popen(
        arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while child.poll() is None and time.monotonic() < deadline:
        if events.exists() and len(events.read_text().splitlines()) >= 3:
            break
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL, "the run was killed before it ended"
    _, rows = booked(broken)
    assert 0 < rows < 200

    resumed = subprocess.run(
        [*arguments, "--resume"], env=environment, check=True, capture_output=True, text=True
    )
    assert booked(broken) == pytest.approx(booked(whole), rel=1e-12)
    assert booked(broken)[1] == 200
    assert json.loads(resumed.stdout)["rows"] == 200
