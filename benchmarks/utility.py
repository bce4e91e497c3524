"""What students learn on full MNIST and Fashion-MNIST, at no noise and at a sound ε.

    python benchmarks/utility.py --data-root DIR              # everything, minutes to hours
    python benchmarks/utility.py --data-root DIR --only mnist:epsilon-10

Resumable: finished lines in `results/utility.jsonl` are kept, teachers stay in `--work`. The table
goes to `results/utility.md`.

Settings are the package's defaults and the table `CASES`, equal for all seeds. They were chosen
while looking at training images and at the FIRST 5,000 test images only; what is reported is the
accuracy on the LAST 5,000, which no choice has seen.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from fedtranscribe.config import DpsdSettings, TeacherSettings, TranscribeSettings
from fedtranscribe.data import DataSplit, load
from fedtranscribe.exchange import Answer, QueryBatch
from fedtranscribe.holder import Holder
from fedtranscribe.methods.dpsd import DPSD
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.teachers import Teachers, train_teachers
from fedtranscribe.transcribe.plan import KINDS, TaskFacts, make_plan
from fedtranscribe.transcribe.preparation import make_manifest
from fedtranscribe.transcribe.session import (
    accuracy,
    build_student_side,
    ensemble_accuracy,
    public_images,
)

RESULTS = Path(__file__).parent / "results"
DATA = {"mnist": 92.0, "fashion-mnist": 78.0}
UNSEEN = slice(5_000, None)


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    epsilon: float | None
    shards: int
    teachers: TeacherSettings
    dpsd: DpsdSettings
    seeds: int


CASES = {
    "no-noise": Case(
        None,
        1,
        TeacherSettings(steps=4_000, batch=128, augment=0.5),
        DpsdSettings(
            rows=40_000,
            round_rows=2_000,
            student_steps=200,
            finish_steps=2_000,
            # Nothing to average out: the answer is the label, and views would only blur it.
            prior_weight=0.0,
            evidence_weight=1.0,
            augment=0.0,
        ),
        3,
    ),
    "epsilon-10": Case(
        10.0,
        250,
        TeacherSettings(steps=300),
        DpsdSettings(rows=6_000, round_rows=500, student_steps=100, finish_steps=600),
        3,
    ),
    "epsilon-1": Case(
        1.0,
        1_000,
        TeacherSettings(steps=150),
        DpsdSettings(rows=4_000, round_rows=500, student_steps=100, finish_steps=600),
        1,
    ),
}


class HasLogits(Protocol):
    """One ensemble, or several as one."""

    def logits(self, images: Tensor) -> Iterator[Tensor]:
        """Blocks [1, n, classes]."""
        ...


class NoiselessHolder:
    """Answers with the log of the teachers' plain mean; only a benchmark may.

    At sharpness one and without a prior, the posterior is that mean itself.
    """

    def __init__(self, teachers: HasLogits) -> None:
        self._teachers = teachers

    def answer(self, query: QueryBatch) -> Answer:
        rows = [logits[0].softmax(-1) for logits in self._teachers.logits(query.images)]
        values = torch.stack(rows).mean(0).log().gather(1, query.index_sets)
        return Answer(query.id, values, (0, "not private"))


def main() -> None:
    options = _options()
    lines = RESULTS / "utility.jsonl"
    done = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    for data in DATA:
        for name, case in CASES.items():
            for seed in range(case.seeds):
                key = {"data": data, "case": name, "seed": seed}
                chosen = options.only in ("", f"{data}:{name}", data, name)
                if not chosen or any(key.items() <= line.items() for line in done):
                    continue
                line = {**key, **measure(data, name, case, seed, options)}
                done.append(line)
                with lines.open("a") as stream:
                    stream.write(json.dumps(line) + "\n")
                print(json.dumps(line), flush=True)
                (RESULTS / "utility.md").write_text(_table(done))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-root", type=Path, required=True, help="holds both data sets")
    parser.add_argument("--work", type=Path, default=Path("runs/utility"), help="teachers")
    parser.add_argument("--only", default="", help="data, case, or data:case")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


def measure(
    data: str, name: str, case: Case, seed: int, options: argparse.Namespace
) -> dict[str, object]:
    """One student: its accuracy, what it was taught by, what it cost.

    Args:
        data: name of the data.
        name: of the case whose teachers it learns from.
        case: settings.
        seed: public randomness of the student.
        options: data_root, work, device.
    """
    started = time.time()
    split = load(data, options.data_root)
    device = torch.device(options.device)
    settings = TranscribeSettings(
        data=data, epsilon=case.epsilon or 10.0, rows=case.dpsd.rows, seed=seed, dpsd=case.dpsd
    )
    teachers = _teachers(data, name, case, split, options)
    train = split.train
    public = public_images(settings, train.channels, train.size)
    side = build_student_side(settings, train.classes, train.channels, train.size, public, device)
    facts = TaskFacts(len(train), train.classes, train.channels, train.size)
    plan = make_plan(settings, facts, case.shards, "full")
    method = DPSD(
        side.student,
        side.generator,
        kind=KINDS[settings.privacy],
        sharpness=plan.sharpness if case.epsilon else 1.0,
        settings=case.dpsd,
        rng=side.rng,
        run=f"{data}-{name}-{seed}-{time.time_ns()}",
        public=public.images if public is not None else None,
    )
    ledger_path = options.work / f"{data}-{name}-{seed}-{time.time_ns()}.sqlite"
    unlimited = Budget(math.inf, settings.delta, Unit.RECORD, Adjacency.ZERO_OUT)
    with Ledger.open(ledger_path, train.data_id, unlimited) as ledger:
        holder = (
            Holder(teachers, plan.mechanism, ledger, method.run, positional_ids=True)
            if case.epsilon
            else NoiselessHolder(teachers)
        )
        while not method.finished:
            query = method.ask()
            method.learn(query, holder.answer(query))
        spent = (
            ledger.total(settings.delta, Unit.RECORD, Adjacency.ZERO_OUT).epsilon
            if case.epsilon
            else None
        )
    method.finish(case.dpsd.finish_steps)
    images, labels = split.test.images[UNSEEN], split.test.labels[UNSEEN]
    return {
        "student": accuracy(side.student, images, labels),
        **ensemble_accuracy([teachers], images, labels),
        "epsilon": spent,
        "rows": case.dpsd.rows,
        "shards": case.shards,
        "noise_std": plan.noise_std if case.epsilon else 0.0,
        "seconds": round(time.time() - started),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def _teachers(
    data: str, name: str, case: Case, split: DataSplit, options: argparse.Namespace
) -> Teachers:
    folder = options.work / f"{data}-{name}-teachers"
    folder.parent.mkdir(parents=True, exist_ok=True)
    settings = TranscribeSettings(data=data, teacher="cnn", teachers=case.teachers)
    device = torch.device(options.device)
    train_teachers(
        split.train,
        make_manifest(settings, split.train, case.shards, "full"),
        folder,
        device=device,
        progress=lambda done, total: None,
    )
    return Teachers(folder, device)


def _table(lines: list[dict]) -> str:
    rows = [
        "# Utility on full MNIST and Fashion-MNIST",
        "",
        "Small CNNs, noisy votes, record-level sound ε (zero-out, δ = 1e-5), 2 CPU cores. Half of "
        "the rows are synthetic, half are public images drawn by a formula (`shapes`). Accuracy "
        "on the last 5,000 test images, in per cent; mean over seeds, lowest and highest.",
        "",
        "| data | case | seeds | teachers | rows | one teacher | ensemble | student | low | high |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for data in DATA:
        for name in CASES:
            found = [x for x in lines if (x["data"], x["case"]) == (data, name)]
            if not found:
                continue
            scores = [100 * x["student"] for x in found]
            first = found[0]
            rows.append(
                f"| {data} | {name} | {len(found)} | {first['shards']} | {first['rows']:,} "
                f"| {100 * first['single_teacher']:.1f} | {100 * first['ensemble']:.1f} "
                f"| {sum(scores) / len(scores):.1f} | {min(scores):.1f} | {max(scores):.1f} |"
            )
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
