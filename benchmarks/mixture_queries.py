"""Teachers asked about drawn shapes and a network's images, or about images of a mixture.

    python benchmarks/mixture_queries.py --work runs/queries

Packaged digits, one set of 250 teachers for all lines, votes on 4,000 rows, sound ε = 10 in all,
three runs each. Where sums start a run, teachers get half of the budget, so that what they add can
be seen; left to itself, the plan would give them nothing here. Resumable: finished lines in
`results/mixture_queries.jsonl` are kept.
"""

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kept_lines import add_line, read_lines

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.data import load
from fedtranscribe.models import pick_device
from fedtranscribe.models.inference import accuracy
from fedtranscribe.models.teacher_training import train_teachers
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.runs.preparation import make_manifest, prepare
from fedtranscribe.runs.transcription import transcribe

RESULTS = Path(__file__).parent / "results"
DATA, SHARDS, ROWS, EPSILON = "digits", 250, 4_000, 10.0
START: dict[str, Any] = {"start": "moments", "teachers_share": 0.5}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "votes": ("votes alone: shapes and a network's images", {}),
    "sums": ("sums alone, no mixture", {"source": "moments", "mixture_share": 0.0}),
    "network": ("sums, then votes: shapes and a network's images", {**START, "mixture_share": 0.0}),
    "mixture": ("sums, then votes: a mixture's images", {**START, "mixture_share": 0.3}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("runs/queries"))
    parser.add_argument("--seed", type=int, nargs="*", default=[0, 1, 2])
    options = parser.parse_args()
    lines = RESULTS / "mixture_queries.jsonl"
    done = read_lines(lines)
    teachers = _teachers(options.work)
    for seed in options.seed:
        for case, (_, changes) in CASES.items():
            key = {"case": case, "seed": seed}
            if any(key.items() <= line.items() for line in done):
                continue
            line = key | _measure(case, changes, seed, teachers, options.work)
            add_line(lines, line)
    (RESULTS / "mixture_queries.md").write_text(_table(read_lines(lines)))


def _teachers(work: Path) -> Path:
    """Trained once; those that lie there are not trained again."""
    train = load(DATA).train
    settings = TranscribeSettings(data=DATA, teacher="cnn")
    manifest = make_manifest(settings, train, SHARDS, "full")
    folder, device = work / "teachers", pick_device("cpu")
    train_teachers(train, manifest, folder, device=device, progress=lambda *_: None, workers=2)
    return folder


def _measure(
    case: str, changes: dict[str, Any], seed: int, teachers: Path, work: Path
) -> dict[str, Any]:
    out = work / f"{case}-{seed}-{time.time_ns()}"
    asked = {} if changes.get("source") == "moments" else {"teacher": str(teachers), "rows": ROWS}
    settings = TranscribeSettings(
        **asked, **changes, data=DATA, epsilon=EPSILON, seed=seed, ledger=out.with_suffix(".sqlite")
    )
    prepared = prepare(settings)
    result = transcribe(prepared, out).result
    student, test = FinishedRun.open(out).student, prepared.split.test
    assert student is not None
    return {
        "student": accuracy(student, test.images, test.labels),
        "sound": result.guarantee.epsilon,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def _table(lines: list[dict[str, Any]]) -> str:
    rows = [
        "# What teachers are asked about",
        "",
        "By `benchmarks/mixture_queries.py`: packaged digits (4,000 records), 250 teachers, votes "
        "on 4,000 rows, sound ε = 10 (record, zero-out) for the whole run; after sums, the votes "
        "get half of it. Accuracy of the student on all 1,000 test images in per cent.",
        "",
        "| asked | student | lowest – highest | runs |",
        "| --- | --- | --- | --- |",
    ]
    for case, (words, _) in CASES.items():
        scores = [100 * line["student"] for line in lines if line["case"] == case]
        if scores:
            mean = sum(scores) / len(scores)
            low, high = min(scores), max(scores)
            rows.append(f"| {words} | {mean:.1f} | {low:.1f} – {high:.1f} | {len(scores)} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
