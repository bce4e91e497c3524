"""Generators beside ours: DP-MERF, and a diffusion model by DP-SGD in the same CPU minutes.

What counts is what a small CNN that learned from synthetic images alone knows of all real test
images. Our own lines are those of `synthesis`, sharpened; there, too, the CNN learns from 40,000
images.
"""

import time

import torch

from benchmarks.harness import (
    Benchmark,
    Case,
    Line,
    Options,
    grid,
    median,
    page,
    per_cent,
    read_lines,
    select,
)
from benchmarks.peer_systems.diffusion import private_diffusion
from benchmarks.peer_systems.dp_merf import dp_merf
from benchmarks.peer_systems.task import DELTA, Task
from fedtranscribe.config.evaluation import EvaluationSettings
from fedtranscribe.data import load
from fedtranscribe.evaluation.downstream import downstream
from fedtranscribe.evaluation.fidelity import FeatureSource, registered
from fedtranscribe.evaluation.fidelity import measure as fidelity
from fedtranscribe.privacy.accountant import epsilon as epsilon_of
from fedtranscribe.results.progress import silent

DATA = ("digits", "mnist")
EPSILONS = (1.0, 3.0, 10.0)
# How many images each draws: a diffusion model takes a minute for 1,000.
SYSTEMS = {"DP-MERF": (dp_merf, 40_000), "Opacus, diffusion": (private_diffusion, 1_000)}
OURS = "**fedtranscribe**"
CASES = [
    {"data": data, "system": system, "epsilon": epsilon, "seed": 0}
    for data in DATA
    for system in SYSTEMS
    for epsilon in EPSILONS
]


def measure(case: Case, options: Options) -> Line:
    """One generator: images, and what a CNN learns from them."""
    split = load(case["data"], options.data_root)
    options.work.mkdir(parents=True, exist_ok=True)
    task = Task(
        *(case["data"], split.train, split.test, split.test),
        *(case["epsilon"], case["seed"], options.work),
    )
    system, count = SYSTEMS[case["system"]]
    began = time.process_time()
    images, labels, events, words = system(task, 300 if options.quick else count)
    seconds = time.process_time() - began
    settings = EvaluationSettings(
        classifiers=("cnn",), samples=len(images), seed=case["seed"], epochs=20, patience=3
    )
    held, device = (split.test.images, split.test.labels), torch.device("cpu")
    learned = downstream((images, labels), held, task.classes, settings, device, silent)
    extractor, features = registered("uci-digits", None)
    source = FeatureSource(extractor, None, False, features)
    return {
        "cnn": learned["cnn"],
        "fid": fidelity(images, split.test.images, source, device)["fid"],
        "images": len(images),
        "sound": epsilon_of(events, DELTA),
        "settings": words,
        "run_cpu_seconds": round(seconds, 1),
    }


def table(lines: list[Line]) -> str:
    """Ours first."""
    ours = [
        {**line, "system": OURS, "settings": "the default"}
        for line in select(read_lines("synthesis"), {"sharpen": True})
    ]
    systems = OURS, *SYSTEMS
    return page(
        "# Generators beside ours",
        "By `benchmarks/peer_generators.py` and `benchmarks/synthesis.py`: a CNN that learned from "
        "synthetic images alone, per cent of all real test images; mean over runs (lowest – "
        "highest). ε is sound (record, add-remove and zero-out, δ = 1e-5), without public images. "
        "FID uses the project's own features; compare it within one data set. Our budget pays for "
        "a student as well. CPU seconds are of one thread; those of the diffusion model count "
        "10 minutes of training, and drawing its images. DP-MERF is our implementation of the "
        "published algorithm, with the settings of its code. The diffusion model follows DPDM at "
        "a size that a CPU trains in that time, which is too short: it has learned nothing yet at "
        "any ε. With one pair of time and noise for a record instead of four, in 173 steps, it "
        "draws no better digits at ε = 10 (9.0 %). Its own authors train for hours on GPUs, and "
        "[reach far more](synthesis.md).",
        grid(
            ("data", "ε", "system", "CNN", "FID", "images", "CPU s", "settings", "runs"),
            (
                (
                    *(data, f"{epsilon:g}", system, per_cent(found, "cnn"), median(found, "fid")),
                    *(f"{found[0]['images']:,}", median(found, "run_cpu_seconds", digits=0)),
                    *(found[0]["settings"], len(found)),
                )
                for data in DATA
                for epsilon in EPSILONS
                for system in systems
                if (
                    found := select(
                        [*ours, *lines], {"data": data, "epsilon": epsilon, "system": system}
                    )
                )
            ),
        ),
    )


BENCHMARK = Benchmark(
    table,
    CASES,
    measure,
    quick=({"data": "digits", "system": "DP-MERF", "epsilon": 10.0, "seed": 0},),
)
