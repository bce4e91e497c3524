"""Two digits side by side: ten classes, of which an image has one or two.

Each line is one `transcribe` from sums over all records (sound ε, record, zero-out, δ = 1e-5, a
ledger of its own), tested on pairs of MNIST's test images. No image is part of two pairs.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import (
    Benchmark,
    Case,
    Line,
    Options,
    grid,
    page,
    per_cent,
    select,
    spread,
    values,
)
from fedtranscribe.config import TranscribeSettings, build
from fedtranscribe.data import ImageSet, load
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe

RECORDS, TESTED = 4_000, 2_000
EPSILONS = (10.0, 3.0, 1.0)
CASES = [
    {"epsilon": epsilon, "records": RECORDS, "seed": seed}
    for seed in range(3)
    for epsilon in EPSILONS
]


def side_by_side(part: ImageSet, pairs: int) -> tuple[Tensor, Tensor]:
    """Images uint8 [n, 56, 56], black above and below two digits, and labels [n, 10] of 0 and 1."""
    images = torch.zeros(pairs, 56, 56, dtype=torch.uint8)
    labels = torch.zeros(pairs, part.classes, dtype=torch.int64)
    for place in (0, 1):
        rows = slice(place, 2 * pairs, 2)
        images[:, 14:42, 28 * place : 28 * (place + 1)] = part.images[rows, 0]
        labels.scatter_(1, part.labels[rows, None], 1)
    return images, labels


def measure(case: Case, options: Options) -> Line:
    """A run."""
    digits = load("digits" if options.quick else "mnist", options.data_root)
    records, tested = (100, 100) if options.quick else (case["records"], TESTED)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images, labels = side_by_side(digits.train, records)
        others, answers = side_by_side(digits.test, tested)
        np.savez(
            folder / "pairs.npz",
            images=images.numpy(),
            labels=labels.numpy(),
            ids=np.arange(records),
            test_images=others.numpy(),
            test_labels=answers.numpy(),
            classes=10,
        )
        chosen = {
            "data": str(folder / "pairs.npz"),
            "task": "multilabel",
            "epsilon": case["epsilon"],
            "seed": case["seed"],
            "with_generator": False,
        }
        prepared = prepare(build(TranscribeSettings, chosen))
        scored = transcribe(prepared, folder / "run", force=True)
    assert scored.findings is not None
    return {
        "student": scored.accuracy["student"],
        "majority": scored.findings.majority,
        "auc": scored.findings.mean_auc,
        "worst_auc": min(value for value in scored.findings.auc if value is not None),
        "sound": scored.result.guarantee.epsilon,
    }


def table(lines: list[Line]) -> str:
    """By ε."""
    return page(
        "# Several labels per image",
        "By `benchmarks/several_labels.py`: two digits of MNIST side by side, 56 pixels, "
        f"{RECORDS:,} pairs to learn from and {TESTED:,} to be tested on; ten classes, of which an "
        "image has one or two. Area under the ROC curve, mean over classes and of the worst one; "
        "share of all decisions (image by image, class by class) that are right, in per cent, "
        "beside naming always what most images are. Mean over runs (lowest – highest).",
        grid(
            ("ε", "mean AUC", "worst AUC", "decisions right", "majority", "runs"),
            (
                (
                    f"{epsilon:g}",
                    *(spread(values(found, name, 100)) for name in ("auc", "worst_auc")),
                    *(per_cent(found, name) for name in ("student", "majority")),
                    len(found),
                )
                for epsilon in EPSILONS
                if (found := select(lines, {"epsilon": epsilon}))
            ),
        ),
    )


BENCHMARK = Benchmark(
    table, CASES, measure, quick=({"epsilon": 10.0, "records": RECORDS, "seed": 0},)
)
