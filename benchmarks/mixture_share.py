"""What a mixture costs the student: its accuracy by the share of the budget that it keeps.

    python benchmarks/mixture_share.py --data-root DIR --data mnist

The two questions about moments are asked of a holder of all records, through its ledger, with noise
for a share of μ²; features are computed once. Resumable: finished lines in
`results/mixture_share.jsonl` are kept. The plan's shares were chosen with these figures in sight.
"""

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from kept_lines import add_line, read_lines

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.data import ImageSet, load
from fedtranscribe.holder.answering import Holder
from fedtranscribe.methods.method import Combined
from fedtranscribe.methods.moments import MomentsMethod
from fedtranscribe.models import Classifier
from fedtranscribe.models.fixed_features import SCATTER
from fedtranscribe.models.inference import accuracy
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.calibrate import ROUNDING
from fedtranscribe.privacy.closed_forms import gaussian_mu
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import Adjacency, NoiseMode, Unit
from fedtranscribe.questions.kinds import by_kind
from fedtranscribe.questions.moments import Moments, moments_bound
from fedtranscribe.runs.student_side import build_student_side, public_images

RESULTS = Path(__file__).parent / "results"
DATA = ("digits", "mnist", "fashion-mnist", "cifar10-jpeg")
EPSILONS, SHARES, SEEDS, DELTA = (10.0, 1.0), (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.33), 3, 1e-5
# Of the moments' budget, for their first question.
FIRST = 0.3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--data", nargs="*", default=["digits"], choices=DATA)
    options = parser.parse_args()
    lines = RESULTS / "mixture_share.jsonl"
    done = read_lines(lines)
    for data in options.data:
        split = load(data, options.data_root)
        with tempfile.TemporaryDirectory() as folder:
            moments = Moments(split.train, torch.device("cpu"), Path(folder))
            for key in _keys(data):
                if any(key.items() <= line.items() for line in done):
                    continue
                student = _student(split.train, moments, key["epsilon"], key["share"])
                line = key | {"student": accuracy(student, split.test.images, split.test.labels)}
                add_line(lines, line)
    (RESULTS / "mixture_share.md").write_text(_table(read_lines(lines)))


def _keys(data: str) -> list[dict[str, Any]]:
    return [
        {"data": data, "epsilon": epsilon, "share": share, "seed": seed}
        for epsilon in EPSILONS
        for share in SHARES
        for seed in range(SEEDS)
    ]


def _student(train: ImageSet, moments: Moments, epsilon: float, share: float) -> Classifier:
    """Of two questions that cost this share of ε in μ²."""
    settings, mu = TranscribeSettings(student=SCATTER), gaussian_mu(epsilon, DELTA)
    public = public_images(settings, train.channels, train.size, None)
    shape = train.classes, train.channels, train.size
    side = build_student_side(settings, *shape, public, torch.device("cpu"), pretrain=False)
    method = MomentsMethod(
        side.student, side.generator, settings=settings.dpsd, rng=side.rng, run="run"
    )
    budget = Budget(epsilon * 1.001, DELTA, Unit.RECORD, Adjacency.ZERO_OUT)
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.open(Path(folder) / "ledger.sqlite", train.data_id, budget) as ledger,
    ):
        holder = Holder(by_kind([moments]), ledger, "run", positional_ids=train.positional)
        for part in (FIRST, 1 - FIRST):
            query = method.ask()
            bound = moments_bound(query.entries, query.classes or None)
            moves = bound.moves[Unit.RECORD][Adjacency.ZERO_OUT]
            std = moves * (1 + ROUNDING) / (mu * math.sqrt(part * share))
            answer = holder.answer(query, NoisePlan(NoiseMode.LOCAL, std, 1))
            method.learn(query, Combined(query.id, answer.values, std))
    return method.student


def _table(lines: list[dict[str, Any]]) -> str:
    rows = [
        "# What a mixture costs the student",
        "",
        "By `benchmarks/mixture_share.py`: accuracy of the student on all real test images in per "
        "cent, mean over runs, by the share of μ² that its own two questions get; the rest "
        "would buy a mixture. One holder, sound ε (record, zero-out), δ = 1e-5.",
        "",
        "| data | ε | " + " | ".join(f"{share:g}" for share in SHARES) + " | runs |",
        "| --- | --- |" + " --- |" * (len(SHARES) + 1),
    ]
    for data in DATA:
        for epsilon in EPSILONS:
            found = [x for x in lines if (x["data"], x["epsilon"]) == (data, epsilon)]
            by_share = [[100 * x["student"] for x in found if x["share"] == s] for s in SHARES]
            if found:
                cells = (f"{sum(s) / len(s):.2f}" if s else "–" for s in by_share)
                runs = max(len(scores) for scores in by_share)
                rows.append(f"| {data} | {epsilon:g} | {' | '.join(cells)} | {runs} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
