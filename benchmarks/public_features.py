"""What features of a public network are worth beside our own, at a sound ε.

A resnet18 learns from Fashion-MNIST, another one from the first 40,000 training images of CIFAR-10
(JPEG copy), both at 32 pixels; a third has random weights. Students are linear in their features,
or in our own. Pictures of 224 pixels are of CIFAR-10's last 10,000 training images, enlarged: a
network that learned from CIFAR-10 knows pictures of that kind, and none of these records. Weights
and pictures stay in `--work`.
"""

import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.harness import Benchmark, Case, Line, Options, grid, page, select
from fedtranscribe.config import TranscribeSettings
from fedtranscribe.data import load
from fedtranscribe.methods.pretraining import train_classifier
from fedtranscribe.models import build, save_network
from fedtranscribe.models.inference import accuracy, confusion_of, logits_of
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe

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
CASES = [
    {"data": task, "features": features, "epsilon": epsilon, "seed": 0}
    for task in TASKS
    for features in (OWN, *STEPS)
    for epsilon in EPSILONS
]


def measure(case: Case, options: Options) -> Line:
    """One run, and the most memory of this process so far."""
    task, features, epsilon = case["data"], case["features"], case["epsilon"]
    out = options.work / f"{task.replace(':', '-')}-{features}-{epsilon:g}-{time.time_ns()}"
    public: dict[str, Any] = {}
    if features != OWN:
        public = {"features": NETWORK, "features_side": SIDE}
        public |= {"features_weights": str(_weights(features, case["seed"], options))}
        public |= {"features_declared_by": "benchmarks/public_features.py"}
    settings = TranscribeSettings(
        data=str(_pictures(task, options)) if task in PICTURES else task,
        data_root=options.data_root,
        epsilon=epsilon,
        with_generator=False,
        budget=LIMIT,
        seed=case["seed"],
        # The ledger of own pictures lies beside them, and counts all runs.
        ledger=None if task in PICTURES else out.with_suffix(".sqlite"),
        device=options.device,
        **public,
    )
    began = time.process_time()
    transcribe(prepare(settings), out)
    seconds = time.process_time() - began
    run = FinishedRun.open(out)
    assert run.student is not None
    test = run.data(options.data_root).test
    stated = run.result.guarantee
    return {
        "student": accuracy(run.student, test.images, test.labels),
        "auc": confusion_of(logits_of(run.student, test.images), test.labels).auc,
        "sound": stated.epsilon,
        "replace": stated.sound["replace"],  # pyright: ignore[reportArgumentType]
        "cpu_seconds": round(seconds, 1),
        "most_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def _weights(source: str, seed: int, options: Options) -> Path:
    """A network that has learned from a public set; trained once."""
    path = options.work / f"{NETWORK}-{source}.safetensors"
    if path.exists():
        return path
    network = build(NETWORK, 10, 1 if source == "fashion-mnist" else 3, SIDE, seed=seed)
    if STEPS[source]:
        split = load(source, options.data_root)
        train, rng = split.train.subset(range(40_000)), torch.Generator().manual_seed(seed)
        train_classifier(network, train.images, train.labels, STEPS[source], rng)
        right = accuracy(network.eval(), split.test.images, split.test.labels)
        print(f"{NETWORK} from {source}: {right:.1%} of its own test images", flush=True)
    save_network(network, path)
    return path


def _pictures(task: str, options: Options) -> Path:
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


def table(lines: list[Line]) -> str:
    """A row for each network's features."""
    return page(
        "# Features of public networks",
        "By `benchmarks/public_features.py`: students from sums over records (moments and, but for "
        "teachers, gradients), at a sound ε (record, zero-out); accuracy on held-out images in per "
        "cent, of two classes the area under the ROC curve. resnet18 at 32 pixels, trained on "
        "public images for a few minutes, or not at all. CPU seconds of the whole run, features "
        "included.",
        grid(
            ("data", "features", *(f"ε = {epsilon:g}" for epsilon in EPSILONS), "CPU seconds"),
            (
                (
                    *(task, features),
                    *(_cell(select(found, {"epsilon": epsilon})) for epsilon in EPSILONS),
                    f"{max(line['cpu_seconds'] for line in found):.0f}",
                )
                for task in TASKS
                for features in (OWN, *STEPS)
                if (found := select(lines, {"data": task, "features": features}))
            ),
        ),
    )


def _cell(lines: list[Line]) -> str:
    if not lines:
        return "–"
    scores = " ".join(f"{100 * line['student']:.1f}" for line in lines)
    auc = lines[0]["auc"]
    return scores if auc is None else f"{scores} (AUC {auc:.3f})"


BENCHMARK = Benchmark(
    table,
    CASES,
    measure,
    quick=({"data": "digits", "features": OWN, "epsilon": 10.0, "seed": 0},),
)
