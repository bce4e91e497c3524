"""The constants of moments, compared on training records that are set aside.

    python benchmarks/constants.py --data-root DIR          # MNIST and Fashion-MNIST, half an hour

Of 60,000 training records the last 10,000 are set aside; test images play no part. Each line
changes one constant and leaves the others as they are; every run draws its noise anew. Resumable:
finished lines in `results/constants.jsonl` are kept. The table goes to `results/constants.md`.
"""

import argparse
import shutil
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from kept_lines import add_line, read_lines

from fedtranscribe.config import FederationSettings
from fedtranscribe.data import ImageSet, load
from fedtranscribe.questions.moments import Moments
from fedtranscribe.results.run_directory import RunDirectory
from fedtranscribe.runs.federate import federate
from fedtranscribe.runs.learning import HeldOut
from fedtranscribe.runs.simulation import open_holder
from fedtranscribe.runs.transports import InProcess

RESULTS = Path(__file__).parent / "results"
LINES = RESULTS / "constants.jsonl"
DATA = ("mnist", "fashion-mnist")
EPSILONS = (10.0, 1.0)
KEPT = 50_000
_MOMENTS, _PLANNING = "fedtranscribe.methods.moments", "fedtranscribe.rounds.sums_planning"
# Where each constant is, its value, and what was tried beside it.
CONSTANTS: dict[str, tuple[str, float, tuple[float, ...]]] = {
    "public floor": (f"{_MOMENTS}._PUBLIC_FLOOR", 0.1, (0.03, 0.3)),
    "private floor": (f"{_MOMENTS}._PRIVATE_FLOOR", 0.3, (0.1, 1.0)),
    "ridge": (f"{_MOMENTS}._RIDGE", 1.5, (0.5, 5.0)),
    "first share": (f"{_PLANNING}._FIRST_SHARE", 0.3, (0.15, 0.5)),
}
CASES = [("as shipped", 0.0), *((n, v) for n, (_, _, tried) in CONSTANTS.items() for v in tried)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--data", nargs="*", default=list(DATA), choices=DATA)
    parser.add_argument("--seed", type=int, nargs="*", default=[0])
    parser.add_argument("--work", type=Path, default=Path("runs/constants"))
    options = parser.parse_args()
    for data in options.data:
        train = load(data, options.data_root).train
        records = train.subset(range(KEPT))
        aside = train.subset(range(KEPT, len(train)))
        home = options.work / data
        # Features are computed once; lines differ in what is made of them.
        moments = Moments(records, torch.device("cpu"), home)
        for seed in options.seed:
            for epsilon in EPSILONS:
                for name, value in CASES:
                    key = {"data": data, "epsilon": epsilon, "constant": name, "value": value}
                    key["seed"] = seed
                    if any(key.items() <= line.items() for line in read_lines(LINES)):
                        continue
                    with _changed(name, value):
                        line = key | _measure(key, records, aside, moments, home)
                    add_line(LINES, line)
    (RESULTS / "constants.md").write_text(_table(read_lines(LINES)), encoding="utf-8")


@contextmanager
def _changed(name: str, value: float) -> Iterator[None]:
    if name not in CONSTANTS:
        yield
        return
    with patch(CONSTANTS[name][0], value):
        yield


def _measure(
    key: dict[str, Any], records: ImageSet, aside: ImageSet, moments: Moments, home: Path
) -> dict[str, Any]:
    settings = FederationSettings(
        data=key["data"],
        holders=1,
        noise="local",
        epsilon=key["epsilon"],
        seed=key["seed"],
        start="moments",
        student="scatter",
        teachers_share=0.0,
        descent_rounds=0,
        with_generator=False,
        device="cpu",
    )
    for old in home.glob("ledger.sqlite*"):
        old.unlink()
    run = home / "run"
    shutil.rmtree(run, ignore_errors=True)
    result = federate(
        settings,
        InProcess([open_holder(settings, records, 0, home, moments=moments)]),
        RunDirectory.create(run, settings),
        expected=1,
        test=HeldOut(aside, public=True),
    ).to_json()
    return {"student": result["accuracy"]["student"], "sound": result["epsilon"]}


def _table(lines: list[dict[str, Any]]) -> str:
    columns = [(data, epsilon) for data in DATA for epsilon in EPSILONS]
    rows = [
        "# Constants of moments, on training records set aside",
        "",
        "By `benchmarks/constants.py`: accuracy of the student of two sums in per cent on 10,000 "
        "training records that no sum has seen, mean over runs (how many); the other 50,000 are "
        "the private records. In each line one constant differs from what is shipped. Test images "
        "play no part.",
        "",
        "| constant | value | " + " | ".join(f"{d}, ε = {e:g}" for d, e in columns) + " |",
        "| --- | --- | " + " | ".join("---" for _ in columns) + " |",
    ]
    for name, value in CASES:
        key = {"constant": name, "value": value}
        found = [line for line in lines if key.items() <= line.items()]
        cells = [_cell(found, data, epsilon) for data, epsilon in columns]
        shown = f"{value:g}"
        if name not in CONSTANTS:
            shown = ", ".join(f"{usual:g}" for _, usual, _ in CONSTANTS.values())
        rows.append(f"| {name} | {shown} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _cell(lines: list[dict[str, Any]], data: str, epsilon: float) -> str:
    key = {"data": data, "epsilon": epsilon}
    scores = [100 * line["student"] for line in lines if key.items() <= line.items()]
    return f"{statistics.mean(scores):.2f} ({len(scores)})" if scores else "–"


if __name__ == "__main__":
    main()
