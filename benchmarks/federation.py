"""What Flower costs: time over the same work in process, bytes per row, and many holders.

    python benchmarks/federation.py            # about ten minutes on two cores

Everything is measured in one run on the packaged digits and told as ratios, because machines are
shared and noisy. Ray's start and the training of teachers are left out: the clock runs from the
first answered round to the last.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fedtranscribe.data import load
from fedtranscribe.data.partitions import holder_name
from fedtranscribe.flower.apps import settings_from
from fedtranscribe.results.progress import PROGRESS
from fedtranscribe.results.run_directory import RunDirectory
from fedtranscribe.runs.federate import federate
from fedtranscribe.runs.learning import HeldOut
from fedtranscribe.runs.simulation import open_holder, partitions
from fedtranscribe.runs.transports import InProcess

RESULTS = Path(__file__).parent / "results"
HOLDERS = (1, 2, 5, 10)
SETTINGS: dict[str, Any] = {
    "data": "digits",
    "shards": 20,
    "rows": 3_000,
    "noise": "central",
    "force": True,
    "device": "cpu",
    "teachers.steps": 20,
    "dpsd.round-rows": 500,
    "dpsd.student-steps": 20,
    "dpsd.finish-steps": 20,
}
# float32 image, student's logits and answer of one row.
DENSE = 4 * (28 * 28 + 10 + 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--holders", type=int, nargs="*", default=list(HOLDERS))
    options = parser.parse_args()
    lines = []
    for privacy, holders in [("vote", m) for m in options.holders] + [("data", 5)]:
        chosen = SETTINGS | {"privacy": privacy, "holders": holders}
        with tempfile.TemporaryDirectory() as folder:
            here = in_process(chosen, Path(folder) / "here")
            flower = over_flower(chosen, Path(folder) / "flower")
        line = {
            "privacy": privacy,
            "holders": holders,
            "federated over in-process time": round(flower["seconds"] / here["seconds"], 2),
            "bytes per row over dense float32": round(flower["bytes"] / DENSE, 3),
            "rows per second": round(flower["rows"] / flower["seconds"]),
            "rows per second in process": round(here["rows"] / here["seconds"]),
        }
        print(json.dumps(line), flush=True)
        lines.append(line)
    (RESULTS / "federation.md").write_text(_table(lines))


def in_process(chosen: dict[str, Any], folder: Path) -> dict[str, float]:
    """The same holders, one after the other, in this process and on one thread as Ray's workers."""
    torch.set_num_threads(1)
    settings = settings_from({**chosen, "out": str(folder)})
    split = load(settings.data)
    stamps: list[tuple[int, float]] = []

    def report(entry: Mapping[str, Any]) -> None:
        if entry["stage"] == "rows answered":
            stamps.append((entry["done"], time.time()))

    run = RunDirectory.create(folder / "run", settings)
    nodes = [
        open_holder(settings, part, number, folder / holder_name(number))
        for number, part in enumerate(partitions(settings, split.train))
    ]
    federate(
        settings,
        InProcess(nodes),
        run,
        expected=settings.holders,
        test=HeldOut(split.test, public=True),
        report=report,
    )
    return _between(stamps)


def over_flower(chosen: dict[str, Any], folder: Path) -> dict[str, float]:
    """A simulation with Ray workers, one core each."""
    program = Path(sys.executable).with_name("fedtranscribe")
    pairs = [f"{key}={_word(value)}" for key, value in chosen.items()]
    subprocess.run(
        [str(program), "simulate", "dirichlet_mnist", *pairs, "--out", str(folder), "--json"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    lines = [json.loads(line) for line in (folder / PROGRESS).read_text().splitlines()]
    answered = [line for line in lines if line["stage"] == "rows answered"]
    result = json.loads((folder / "metrics.json").read_text())
    stamps = [(line["done"], line["time"]) for line in answered]
    return _between(stamps) | {"bytes": result["bytes"] / (result["rows"] * result["holders"])}


def _between(stamps: list[tuple[int, float]]) -> dict[str, float]:
    (first_rows, first), (last_rows, last) = stamps[0], stamps[-1]
    return {"rows": last_rows - first_rows, "seconds": last - first}


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _table(lines: list[dict[str, Any]]) -> str:
    names = list(lines[0])
    rows = [
        "# What Flower costs",
        "",
        f"Packaged digits, {SETTINGS['shards']} teachers per holder, {SETTINGS['rows']:,} rows in "
        f"messages of {SETTINGS['dpsd.round-rows']}, 2 CPU cores, measured in one run on "
        f"{datetime.now(UTC):%Y-%m-%d}. In process holders answer one after the other on one "
        "thread; Ray runs two workers, so a ratio below 1 comes from their parallel work. A "
        "dense row is a float32 image, ten logits and ten answers.",
        "",
        f"| {' | '.join(names)} |",
        f"| {' | '.join('---' for _ in names)} |",
    ]
    rows += [f"| {' | '.join(str(line[name]) for name in names)} |" for line in lines]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
