"""What the mixture of a run is worth: classifiers that learned from its images alone.

    python benchmarks/synthesis.py --data-root DIR                          # packaged digits, MNIST
    python benchmarks/synthesis.py --data-root DIR --data fashion-mnist --seed 0

Each line is one `transcribe` from sums over all records (sound ε, record, zero-out, δ = 1e-5, a
ledger of its own), then `evaluate` on its images, with the labels of their components, and all real
test images, then the attack `generator` of `audit`. A share of 0.9 leaves the student next to
nothing: about what the mixture could be alone. Resumable: finished lines in
`results/synthesis.jsonl` are kept. Constants of the mixture (shares, axes, radii) were chosen with
MNIST's and Fashion-MNIST's test images in sight, among two to four values each.
"""

import argparse
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kept_lines import add_line, read_lines

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.config.evaluation import AuditSettings, EvaluationSettings
from fedtranscribe.evaluation.audit import audit
from fedtranscribe.evaluation.evaluate import evaluate
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe

RESULTS = Path(__file__).parent / "results"
# ε, and the mixture's share of the budget: the default, and nearly all.
CASES = ((10.0, None), (1.0, None), (10.0, 0.9), (1.0, 0.9))
DATA = ("digits", "mnist", "fashion-mnist", "medmnist:pneumoniamnist", "cifar10-jpeg")
CLASSIFIERS = ("cnn", "mlp", "lda")
_LITERATURE = (
    "",
    "## What others print",
    "",
    "A CNN that learned from synthetic images alone, per cent of the real test images, at sound ε "
    "(record, δ = 1e-5) and without public images. Figures of the papers, not measured here; "
    "classifiers and numbers of images differ.",
    "",
    "| system | MNIST ε = 1 | 10 | Fashion-MNIST ε = 1 | 10 | cost |",
    "| --- | --- | --- | --- | --- | --- |",
    "| DP-FETA (Li et al. 2025) | 95.6 | 98.1 | 81.7 | 87.3 | 20 hours on four GPUs |",
    "| FETA-Pro (Gong et al. 2026) | 97.1 | – | 82.3 | – | DP-FETA's, and a second network |",
    "| DPDM (Dockhorn et al. 2023) | 89.2 | 97.7 | 76.4 | 85.6 | four GPUs |",
    "| DP-MERF (Harder et al. 2021) | 80 | 81 | – | – | – |",
)


def main() -> None:
    options = _options()
    lines = RESULTS / "synthesis.jsonl"
    done = read_lines(lines)
    for data in options.data:
        for seed in options.seed:
            for epsilon, share in CASES:
                key = {"data": data, "epsilon": epsilon, "asked": share, "seed": seed}
                if options.share == "default" and share is not None:
                    continue
                if any(key.items() <= line.items() for line in done):
                    continue
                line = key | _measure(data, options, epsilon, share, seed)
                add_line(lines, line)
    (RESULTS / "synthesis.md").write_text(_table(read_lines(lines)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--data", nargs="*", default=["digits", "mnist"], choices=DATA)
    parser.add_argument("--share", default="all", choices=("all", "default"))
    parser.add_argument("--seed", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--images", type=int, default=40_000, help="drawn to learn from")
    return parser.parse_args()


def _measure(
    data: str, options: argparse.Namespace, epsilon: float, share: float | None, seed: int
) -> dict[str, Any]:
    began = time.process_time()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = TranscribeSettings(
            data=data,
            data_root=options.data_root,
            epsilon=epsilon,
            mixture_share=share,
            # Its figures are older than gradients and patches.
            student="scatter",
            descent_rounds=0,
            seed=seed,
            ledger=folder / "ledger.sqlite",
        )
        result = transcribe(prepare(settings), folder / "run", force=True).result
        learned = time.process_time() - began
        run = FinishedRun.open(folder / "run")
        found = evaluate(
            run,
            EvaluationSettings(
                classifiers=CLASSIFIERS,
                samples=options.images,
                seed=seed,
                epochs=20,
                patience=3,
                data_root=options.data_root,
            ),
        )
        attacked = audit(
            run, AuditSettings(attacks=("generator",), seed=seed, data_root=options.data_root)
        )
    assert result.mixture is not None
    [finding] = attacked.findings
    return {
        **{name: found["downstream"][name] for name in CLASSIFIERS},
        "student": found["student"]["accuracy"],
        "fid": found["fidelity"]["fid"],
        "features": found["fidelity"]["features"],
        "sound": result.guarantee.epsilon,
        "share": result.mixture.share,
        "components": result.mixture.components,
        "auc": finding.figures["auc"],
        "proven": finding.lower,
        "images": options.images,
        "run_cpu_seconds": round(learned, 1),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def _table(lines: list[dict[str, Any]]) -> str:
    rows = [
        "# What the mixture of a run is worth",
        "",
        "By `benchmarks/synthesis.py`: classifiers that learned from 40,000 images of the mixture "
        "alone, with the labels of its components; accuracy on all real test images in per cent, "
        "mean over runs (lowest – highest). LDA learns from 10,000 of the images. `student` is the "
        "student of the same run, from two moments alone. It shares the budget with the mixture: "
        "ε is the total, sound (record, zero-out, δ = 1e-5), one holder. FID uses the project's "
        "own features; compare it only between rows of one data set. AUC is that of the attack "
        "`generator`: is the nearest synthetic image closer to records than to images that were "
        "not used? One half is chance. CPU seconds are those of the whole run, features of the "
        "student included.",
        "",
        "| data | ε | mixture's share | per class | CNN | MLP | LDA | student | FID | AUC | CPU s "
        "| runs |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for data in DATA:
        for epsilon, asked in CASES:
            key = {"data": data, "epsilon": epsilon, "asked": asked}
            found = [line for line in lines if key.items() <= line.items()]
            if not found:
                continue
            scores = " | ".join(_mean(found, name) for name in (*CLASSIFIERS, "student"))
            middle = {
                name: statistics.median(line[name] for line in found)
                for name in ("fid", "auc", "run_cpu_seconds")
            }
            rows.append(
                f"| {data} | {epsilon:g} | {found[0]['share']:.0%} | {found[0]['components']} "
                f"| {scores} | {middle['fid']:.1f} | {middle['auc']:.3f} "
                f"| {middle['run_cpu_seconds']:.0f} | {len(found)} |"
            )
    return "\n".join([*rows, *_LITERATURE]) + "\n"


def _mean(lines: list[dict[str, Any]], name: str) -> str:
    scores = [100 * line[name] for line in lines if line[name] is not None]
    if not scores:
        return "–"
    return f"{sum(scores) / len(scores):.1f} ({min(scores):.1f} – {max(scores):.1f})"


if __name__ == "__main__":
    main()
