"""The default student at ε = 1, 3 and 10: one holder with all records, and five under masks.

Every line is a federation in this process (`tests/federation` shows that Flower carries the same
values), with all of the budget for the student. Features of a partition are computed once and
shared by its lines: CPU seconds count them for every line. Accuracy is on all test images.
"""

import shutil
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Benchmark, Case, Line, Options, grid, median, page, per_cent, select
from benchmarks.table5 import federated
from fedtranscribe.config import FederationSettings
from fedtranscribe.data import load
from fedtranscribe.data.partitions import holder_name
from fedtranscribe.models import Classifier, load_network
from fedtranscribe.models.inference import accuracy
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.questions.moments import Moments
from fedtranscribe.results.run_directory import STUDENT
from fedtranscribe.runs.simulation import open_holder, partitions

DATA = ("digits", "mnist", "fashion-mnist", "cifar10-jpeg", "medmnist:pneumoniamnist")
EPSILONS = (1.0, 3.0, 10.0)
HOLDERS = {1: NoiseMode.LOCAL, 5: NoiseMode.SECAGG}
"""Where the noise is added, by the number of holders."""
SEEDS = range(3)
CASES = [
    {"data": data, "holders": holders, "seed": seed, "epsilon": epsilon}
    for data in DATA
    for holders in HOLDERS
    for seed in SEEDS
    for epsilon in EPSILONS
]

_load = lru_cache(maxsize=1)(load)
_moments: dict[Path, Moments] = {}
"""Features of the records, by the holder's folder."""


def measure(case: Case, options: Options) -> Line:
    """One student of all holders."""
    split = _load(case["data"], options.data_root)
    settings = FederationSettings(
        data=case["data"],
        data_root=options.data_root,
        epsilon=case["epsilon"],
        holders=case["holders"],
        noise=HOLDERS[case["holders"]].value,
        alpha=0.5,
        seed=case["seed"],
        start="moments",
        with_generator=False,
        device=options.device,
    )
    # One holder has all records, whatever the seed.
    partition = case["seed"] if case["holders"] > 1 else "all"
    name = f"{case['data'].replace(':', '-')}-{case['holders']}-{partition}"
    home = options.work / name
    known = any(path.parent == home for path in _moments)
    if not known:
        _moments.clear()  # they take gigabytes of disk
        shutil.rmtree(home, ignore_errors=True)
    nodes = []
    for number, part in enumerate(partitions(settings, split.train)):
        folder = home / holder_name(number)
        for old in folder.glob("ledger.sqlite*"):
            old.unlink()
        if folder not in _moments:
            _moments[folder] = Moments(part, torch.device(options.device), folder)
        nodes.append(open_holder(settings, part, number, folder, moments=_moments[folder]))
    run = options.work / f"run-{name}"
    shutil.rmtree(run, ignore_errors=True)
    began = time.process_time()
    found = federated(settings, nodes, run, split.test)
    student = load_network(run / STUDENT)
    assert isinstance(student, Classifier)
    return {
        "student": accuracy(student, split.test.images, split.test.labels),
        "sound": found["epsilon"],
        "features": "shared" if known else "computed",
        "run_cpu_seconds": round(time.process_time() - began, 1),
    }


def table(lines: list[Line]) -> str:
    """A row per data set and number of holders."""

    def row(data: str, holders: int) -> tuple[Any, ...]:
        lead = select(lines, {"data": data, "holders": holders})
        scores = (per_cent(select(lead, {"epsilon": epsilon}), "student") for epsilon in EPSILONS)
        times = select(lead, {"features": "computed"})
        runs = max(len(select(lead, {"epsilon": epsilon})) for epsilon in EPSILONS)
        return data, holders, *scores, median(times, "run_cpu_seconds", 1 / 60), runs

    return page(
        "# The default student",
        "By `benchmarks/students.py`. Unit record, zero-out, δ = 1e-5, no public images; all of "
        "the budget goes to the student (`--no-generator`). Under replace the same runs have "
        "ε = 1.98, 6.14 and 22.1. Accuracy in per cent on all test "
        "images: mean over runs (lowest – highest); every run draws its noise anew. Five holders "
        "have Dirichlet shares of 0.5 by label, and masks; their noise is larger than that of one "
        "holder, for it has to suffice without one that drops out and one that colludes. CPU "
        "minutes are those of a whole run on one thread, of all holders together.",
        grid(
            ("data", "holders", *(f"ε = {e:g}" for e in EPSILONS), "CPU minutes", "runs"),
            (
                row(data, holders)
                for data in DATA
                for holders in HOLDERS
                if select(lines, {"data": data, "holders": holders})
            ),
        ),
    )


BENCHMARK = Benchmark(
    table,
    CASES,
    measure,
    quick=({"data": "digits", "holders": 5, "seed": 0, "epsilon": 10.0},),
)
