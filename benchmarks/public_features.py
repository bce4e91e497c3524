"""What features of a public network are worth beside our own, at a sound ε.

    python benchmarks/public_features.py --data-root DIR --fashion-root DIR

A resnet18 learns from Fashion-MNIST, another one from the first 40,000 training images of CIFAR-10
(JPEG copy), both at 32 pixels; a third keeps its random weights. Students are linear in their
features, or in our own. Pictures of 224 pixels are of CIFAR-10's last 10,000 training
images, enlarged: a network that learned from CIFAR-10 knows pictures of that kind, and none of
these records.

Resumable: weights and pictures stay in `--work`, finished lines in `results/public_features.jsonl`;
the table goes to `results/public_features.md`.
"""

import argparse
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kept_lines import add_line, read_lines
from torch.nn import functional

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.data import load
from fedtranscribe.methods.pretraining import train_classifier
from fedtranscribe.models import build, save_network
from fedtranscribe.models.inference import accuracy, confusion_of
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe

RESULTS = Path(__file__).parent / "results"
NETWORK, SIDE = "resnet18", 32
STEPS = {"fashion-mnist": 800, "cifar10-jpeg": 1_600, "random": 0}
EPSILONS = (1.0, 10.0)
OWN = "our own"
PICTURES = {"pictures-240": (2, 240), "pictures-5000": (10, 5_000)}
"""Classes and pictures of 224 pixels, a part of them held out; of two classes, `TWO`."""
TWO = (0, 6)
"""Aeroplanes and frogs."""
TASKS = ("medmnist:pneumoniamnist", *PICTURES, "digits", "mnist")
LIMIT = 100.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--fashion-root", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/public-features"))
    parser.add_argument("--only", choices=TASKS, nargs="*", default=TASKS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    lines = RESULTS / "public_features.jsonl"
    for task in options.only:
        for features in (OWN, *STEPS):
            for epsilon in EPSILONS:
                key = {"data": task, "features": features, "epsilon": epsilon, "seed": options.seed}
                if any(key.items() <= line.items() for line in read_lines(lines)):
                    continue
                line = key | _measure(task, features, epsilon, options)
                add_line(lines, line)
    (RESULTS / "public_features.md").write_text(_table(read_lines(lines)))


def _weights(source: str, options: argparse.Namespace) -> Path:
    """A network that has learned from a public set; trained once."""
    path = options.work / f"{NETWORK}-{source}.safetensors"
    if path.exists():
        return path
    root = options.fashion_root if source == "fashion-mnist" else options.data_root
    network = build(NETWORK, 10, 1 if source == "fashion-mnist" else 3, SIDE, seed=options.seed)
    if STEPS[source]:
        split = load(source, root)
        train, rng = split.train.subset(range(40_000)), torch.Generator().manual_seed(options.seed)
        train_classifier(network, train.images, train.labels, STEPS[source], rng)
        right = accuracy(network.eval(), split.test.images, split.test.labels)
        print(f"{NETWORK} from {source}: {right:.1%} of its own test images", flush=True)
    save_network(network, path)
    return path


def _pictures(task: str, options: argparse.Namespace) -> Path:
    """Records and held-out pictures of 224 pixels as `.npz`."""
    path = options.work / f"{task}.npz"
    if path.exists():
        return path
    classes, count = PICTURES[task]
    last = load("cifar10-jpeg", options.data_root).train.subset(range(40_000, 50_000))
    if classes == 2:
        last = last.subset([i for i, label in enumerate(last.labels.tolist()) if label in TWO])
    chosen = last.subset(range(count))
    grown = functional.interpolate(chosen.images.float(), size=224, mode="bicubic")
    images = grown.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()
    labels = chosen.labels.numpy()
    known = (labels == TWO[1]).astype(np.int64) if classes == 2 else labels
    np.savez(path, images=images, labels=known, classes=np.array(classes))
    return path


def _measure(
    task: str, features: str, epsilon: float, options: argparse.Namespace
) -> dict[str, Any]:
    out = options.work / f"{task.replace(':', '-')}-{features}-{epsilon:g}-{time.time_ns()}"
    chosen: dict[str, Any] = {}
    if features != OWN:
        chosen = {"features": NETWORK, "features_side": SIDE}
        chosen |= {"features_weights": str(_weights(features, options))}
        chosen |= {"features_declared_by": "benchmarks/public_features.py"}
    given = str(_pictures(task, options)) if task in PICTURES else task
    settings = TranscribeSettings(
        data=given,
        data_root=options.data_root,
        epsilon=epsilon,
        with_generator=False,
        budget=LIMIT,
        seed=options.seed,
        # The ledger of own pictures lies beside them, and counts all runs.
        ledger=None if task in PICTURES else out.with_suffix(".sqlite"),
        device="cpu",
        **chosen,
    )
    began = time.process_time()
    transcribe(prepare(settings), out)
    seconds = time.process_time() - began
    run = FinishedRun.open(out)
    assert run.student is not None
    test = run.data(options.data_root).test
    found = confusion_of(run.student, test.images, test.labels)
    stated = run.result.guarantee
    return {
        "student": accuracy(run.student, test.images, test.labels),
        "auc": found.auc,
        "sound": stated.epsilon,
        "replace": stated.sound["replace"],  # pyright: ignore[reportArgumentType]
        "cpu_seconds": round(seconds, 1),
        "most_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def _table(lines: list[dict[str, Any]]) -> str:
    rows = [
        "# Features of public networks",
        "",
        "By `benchmarks/public_features.py`: students from sums over records (moments and, but for "
        "teachers, gradients), at a sound ε (record, zero-out); accuracy on held-out images in per "
        "cent, of two classes the area under the ROC curve. resnet18 at 32 pixels, trained on "
        "public images for a few minutes, or not at all. CPU seconds of the whole run, features "
        "included.",
        "",
        "| data | features | ε = 1 | ε = 10 | CPU seconds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for task in TASKS:
        for features in (OWN, *STEPS):
            found = [
                line for line in lines if line["data"] == task and line["features"] == features
            ]
            if found:
                cells = [_cell([x for x in found if x["epsilon"] == e]) for e in EPSILONS]
                seconds = max(line["cpu_seconds"] for line in found)
                rows.append(f"| {task} | {features} | {' | '.join(cells)} | {seconds:.0f} |")
    return "\n".join(rows) + "\n"


def _cell(lines: list[dict[str, Any]]) -> str:
    if not lines:
        return "–"
    shown = " ".join(f"{100 * line['student']:.1f}" for line in lines)
    auc = lines[0]["auc"]
    return shown if auc is None else f"{shown} (AUC {auc:.3f})"


if __name__ == "__main__":
    main()
