"""What images of a private mixture are worth: classifiers that learned from them alone.

    python benchmarks/synthesis.py --data-root DIR                          # packaged digits, MNIST
    python benchmarks/synthesis.py --data-root DIR --data fashion-mnist --only 10:3

Each line asks a holder of all records for the sums of a mixture, through its ledger and with noise
of its own (sound ε, record, zero-out, δ = 1e-5), draws images with the labels of their components,
and trains each classifier on these; tested on all real test images. Resumable: finished lines in
`results/synthesis.jsonl` are kept. Constants of the mixture (shares, axes, radii) were chosen with
MNIST's and Fashion-MNIST's test images in sight, among two to four values each.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtranscribe.config.evaluation import EvaluationSettings
from fedtranscribe.data import ImageSet, load
from fedtranscribe.evaluation.downstream import downstream
from fedtranscribe.holder.answering import Holder
from fedtranscribe.holder.statistics import Mixture, by_kind
from fedtranscribe.holder.statistics.mixture import bound_of
from fedtranscribe.methods.method import Combined
from fedtranscribe.methods.mixture import MixtureMethod, question_shapes
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.calibrate import ROUNDING
from fedtranscribe.privacy.closed_forms import gaussian_mu
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.noise_plan import NoisePlan
from fedtranscribe.privacy.units import Adjacency, NoiseMode, Unit
from fedtranscribe.tracking import silent

RESULTS = Path(__file__).parent / "results"
DELTA = 1e-5
# ε and cuts: 2^cuts Gaussians per class.
CASES = ((10.0, 0), (10.0, 3), (1.0, 0), (1.0, 1))
DATA = ("digits", "mnist", "fashion-mnist", "cifar10-jpeg")
CLASSIFIERS = ("cnn", "mlp", "lda")


def main() -> None:
    options = _options()
    lines = RESULTS / "synthesis.jsonl"
    done = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    for data in options.data:
        split = load(data, options.data_root)
        for seed in options.seed:
            for epsilon, cuts in CASES:
                key = {"data": data, "epsilon": epsilon, "cuts": cuts, "seed": seed}
                if options.only not in ("", f"{epsilon:g}:{cuts}"):
                    continue
                if any(key.items() <= line.items() for line in done):
                    continue
                line = key | _measure(split.train, split.test, epsilon, cuts, seed, options.images)
                line["date"] = f"{datetime.now(UTC):%Y-%m-%d}"
                with lines.open("a") as stream:
                    stream.write(json.dumps(line) + "\n")
                print(json.dumps(line), flush=True)
    done = [json.loads(line) for line in lines.read_text().splitlines()]
    (RESULTS / "synthesis.md").write_text(_table(done))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--data", nargs="*", default=["digits", "mnist"], choices=DATA)
    parser.add_argument("--only", default="", help="epsilon:cuts")
    parser.add_argument("--seed", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--images", type=int, default=40_000, help="drawn to learn from")
    return parser.parse_args()


def _measure(
    train: ImageSet, test: ImageSet, epsilon: float, cuts: int, seed: int, count: int
) -> dict[str, Any]:
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        budget = Budget(epsilon * 1.001, DELTA, Unit.RECORD, Adjacency.ZERO_OUT)
        with Ledger.open(Path(folder) / "ledger.sqlite", train.data_id, budget) as ledger:
            mixture = _learn(train, ledger, epsilon, cuts)
            sound = ledger.total(DELTA, Unit.RECORD, Adjacency.ZERO_OUT).epsilon
    learned = time.process_time() - began
    images, labels = _drawn(mixture, count, seed)
    drawn = time.process_time() - began - learned
    settings = EvaluationSettings(
        classifiers=CLASSIFIERS, seed=seed, epochs=20, patience=3, max_train=10_000
    )
    scores = downstream(
        (images, labels),
        (test.images, test.labels),
        train.classes,
        settings,
        torch.device("cpu"),
        silent,
    )
    return {
        **{name: scores[name] for name in CLASSIFIERS},
        "sound": sound,
        "components": len(mixture.counts),
        "images": count,
        "learn_cpu_seconds": round(learned, 1),
        "draw_cpu_seconds": round(drawn, 1),
    }


def _learn(train: ImageSet, ledger: Ledger, epsilon: float, cuts: int) -> GaussianMixture:
    """Ask every question, each with noise for its share of the budget."""
    statistics_ = by_kind([Mixture(train)])
    holder = Holder(statistics_, ledger, "run", positional_ids=train.positional)
    method = MixtureMethod(train.channels, train.size, train.classes, cuts, "run")
    mu = gaussian_mu(epsilon, DELTA)
    for shape in question_shapes(train.channels, train.size, train.classes, cuts):
        query = method.ask()
        moves = bound_of(query).moves[Unit.RECORD][Adjacency.ZERO_OUT]
        std = moves * (1 + ROUNDING) / (mu * math.sqrt(shape.share))
        answer = holder.answer(query, NoisePlan(NoiseMode.LOCAL, std, 1))
        method.learn(query, Combined(query.id, answer.values, std))
    return method.mixture


def _drawn(mixture: GaussianMixture, count: int, seed: int) -> tuple[Tensor, Tensor]:
    images, labels = mixture.sample(count, torch.Generator().manual_seed(seed))
    return (images * 255).round().to(torch.uint8), labels


def _table(lines: list[dict[str, Any]]) -> str:
    rows = [
        "# What images of a private mixture are worth",
        "",
        "By `benchmarks/synthesis.py`: classifiers that learned from images of the mixture alone, "
        "with the labels of its components; accuracy on all real test images in per cent, mean "
        "over runs (lowest – highest). Sound ε (record, zero-out, δ = 1e-5), one holder. CPU "
        "seconds are those of the sums and the mixture, without drawing and classifiers. LDA "
        "learns from 10,000 of the images.",
        "",
        "| data | ε | components per class | CNN | MLP | LDA | CPU s | runs |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for data in DATA:
        for epsilon, cuts in CASES:
            key = {"data": data, "epsilon": epsilon, "cuts": cuts}
            found = [line for line in lines if key.items() <= line.items()]
            if found:
                seconds = statistics.median(line["learn_cpu_seconds"] for line in found)
                scores = " | ".join(_mean(found, name) for name in CLASSIFIERS)
                rows.append(
                    f"| {data} | {epsilon:g} | {2**cuts} | {scores} | {seconds:.0f} "
                    f"| {len(found)} |"
                )
    return "\n".join(rows) + "\n"


def _mean(lines: list[dict[str, Any]], name: str) -> str:
    scores = [100 * line[name] for line in lines if line[name] is not None]
    if not scores:
        return "–"
    return f"{sum(scores) / len(scores):.1f} ({min(scores):.1f} – {max(scores):.1f})"


if __name__ == "__main__":
    main()
