"""What a user would take otherwise: Opacus, diffprivlib, PATE and Flower on the same records.

Each system in the best small setting that its authors name (see `peer_systems`), on one thread,
cut at 30 CPU minutes. Our own lines are those of `students`. Also draws `docs/images/peers.png`.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

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
    values,
)
from benchmarks.peer_systems.diffprivlib_models import diffprivlib_bayes, diffprivlib_logistic
from benchmarks.peer_systems.flower_averaging import flower_fedavg
from benchmarks.peer_systems.opacus_sgd import opacus_cnn, opacus_scattering
from benchmarks.peer_systems.pate import pate
from benchmarks.peer_systems.task import DELTA, Task
from benchmarks.students import HOLDERS
from fedtranscribe.data import load
from fedtranscribe.privacy.accountant import epsilon as epsilon_of

DATA = ("digits", "mnist", "fashion-mnist", "cifar10-jpeg")
EPSILONS = (1.0, 3.0, 10.0)
RECORD, HOLDER, ROW = "a record", "a whole holder", "a row (replace, pure ε)"
SYSTEMS = {
    "opacus, scattering": (opacus_scattering, RECORD),
    "opacus, CNN": (opacus_cnn, RECORD),
    "PATE": (pate, RECORD),
    "diffprivlib, logistic": (diffprivlib_logistic, ROW),
    "diffprivlib, naive Bayes": (diffprivlib_bayes, ROW),
    "Flower, FedAvg of 5": (flower_fedavg, HOLDER),
}
OURS = {1: "fedtranscribe", 5: "fedtranscribe, 5 under masks"}
CASES = [
    {"data": data, "system": system, "epsilon": epsilon, "seed": 0}
    for data in DATA
    for system in SYSTEMS
    for epsilon in EPSILONS
]
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "peers.png"
_load = lru_cache(maxsize=1)(load)


def measure(case: Case, options: Options) -> Line:
    """One system on one data set at one ε."""
    split = _load(case["data"], options.data_root)
    options.work.mkdir(parents=True, exist_ok=True)
    order = torch.randperm(len(split.test), generator=torch.Generator().manual_seed(0))
    half = len(order) // 2
    system, _ = SYSTEMS[case["system"]]
    task = Task(
        case["data"],
        split.train,
        split.test.subset(order[:half]),
        split.test.subset(order[half:]),
        case["epsilon"],
        case["seed"],
        options.work,
    )
    found = system(task)
    return {
        "accuracy": found.curve[-1][1],
        "curve": [[round(seconds / 60, 3), right] for seconds, right in found.curve],
        "epsilons": {
            adjacency.value: epsilon_of(events, DELTA) for adjacency, events in found.events.items()
        },
        "settings": found.words,
        "cut": found.cut,
    }


# ---------------------------------------------------------------- table and picture


def table(lines: list[Line]) -> str:
    """Accuracy by system, then settings."""
    ours = read_lines("students")
    return page(
        "# Beside what a user would take otherwise",
        "By `benchmarks/peers.py` and `benchmarks/students.py`: the same records, δ = 1e-5, the "
        "same accountant, no public images but where PATE needs them. Accuracy in per cent; CPU "
        "minutes are those of the longest of the three runs, on one thread, features included. "
        "Runs that would take more than 30 CPU minutes get as many steps as a trial says will "
        "fit, and the noise for these (*cut*). Peers are one run each, tested on one half of the "
        "test images, chosen at random: the other half is PATE's public pool, which no other "
        "system has. Our lines, on all test images, are means over runs ([the table]"
        "(students.md)). Where a setting was chosen by test images, that is said below, and helps "
        "the peer.",
        grid(
            ("data", "system", "hides", *(f"ε = {e:g}" for e in EPSILONS), "CPU minutes"),
            (row for data in DATA for row in _rows(data, lines, ours)),
        ),
        "ε is add-remove and zero-out alike for Opacus, for Flower and for us; for PATE it is the "
        "same under replace, too; under replace ours are 1.98, 6.14 and 22.1.",
        "## Settings",
        "- **Opacus, scattering**: a linear layer on wavelet features with the normalisation, "
        "batch, rate and epochs of Tramèr and Boneh (2021) for ε = 3, the only one they have. "
        "**Opacus, CNN**: the networks of tanh of Papernot et al. (2020), with theirs. On the "
        "digits, which they lack, the best of a few such settings by test images.\n"
        "- **diffprivlib** 0.6.6: logistic regression and Gaussian naive Bayes on leading axes of "
        "the same features; number of axes and penalty chosen by test images.\n"
        "- **PATE**: 250 teachers (50 on the digits) and a student, logistic regressions on 200 of "
        "the axes; number of votes chosen by test images. Its ε does not depend on the votes, as "
        "ours does not.\n"
        "- **Flower**: FedAvg of five holders (Dirichlet 0.5) under "
        "`DifferentialPrivacyServerSideFixedClipping`, a linear layer on 200 axes; rounds and clip "
        "chosen by test images. It hides a whole holder, which is much more to ask.",
        grid(
            ("data", "system", "ε", "settings", "accuracy"),
            (
                (
                    *(line["data"], line["system"], f"{line['epsilon']:g}"),
                    line["settings"] + (", cut" if line["cut"] else ""),
                    f"{100 * line['accuracy']:.1f}",
                )
                for data in DATA
                for system in SYSTEMS
                for epsilon in EPSILONS
                for line in select(lines, {"data": data, "system": system, "epsilon": epsilon})
            ),
        ),
    )


def _rows(data: str, lines: list[Line], ours: list[Line]) -> Iterator[tuple[object, ...]]:
    for holders in HOLDERS:
        if found := select(ours, {"data": data, "holders": holders}):
            scores = (per_cent(select(found, {"epsilon": e}), "student") for e in EPSILONS)
            timed = select(found, {"features": "computed"})
            minutes = median(timed, "run_cpu_seconds", 1 / 60)
            yield data, f"**{OURS[holders]}**", RECORD, *scores, minutes
    for system, (_, hides) in SYSTEMS.items():
        if found := select(lines, {"data": data, "system": system}):
            cells = []
            for epsilon in EPSILONS:
                at = select(found, {"epsilon": epsilon})
                cut = " (cut)" if any(line["cut"] for line in at) else ""
                cells.append(per_cent(at, "accuracy") + cut)
            yield data, system, hides, *cells, f"{max(x['curve'][-1][0] for x in found):.1f}"


def draw() -> None:
    """Accuracy over CPU minutes, a line per system."""
    from matplotlib.figure import Figure

    lines, ours = read_lines("peers"), read_lines("students")
    measured = [data for data in DATA if select(lines, {"data": data})]
    figure = Figure(figsize=(1 + 2.5 * len(measured), 7.5), layout="constrained")
    axes = figure.subplots(len(EPSILONS), len(measured), sharex=True, sharey="col", squeeze=False)
    for row, epsilon in enumerate(EPSILONS):
        for column, data in enumerate(measured):
            axis = axes[row][column]
            for number, holders in enumerate(HOLDERS):
                at = {"data": data, "holders": holders}
                minutes = values(select(ours, {**at, "features": "computed"}), "run_cpu_seconds")
                right = values(select(ours, {**at, "epsilon": epsilon}), "student", 100)
                if minutes and right:
                    axis.plot(
                        sorted(minutes)[len(minutes) // 2] / 60,
                        sum(right) / len(right),
                        "*" if holders == 1 else "P",
                        color="black",
                        markersize=13 - 4 * number,
                        label=OURS[holders],
                        zorder=3,
                    )
            for number, system in enumerate(SYSTEMS):
                found = select(lines, {"data": data, "system": system, "epsilon": epsilon})
                for line in found[:1]:
                    x, y = zip(*line["curve"], strict=True)
                    y = [100 * each for each in y]
                    axis.plot(x, y, "o-", color=f"C{number}", markersize=3.5, label=system)
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter("{x:g}")
            axis.grid(alpha=0.3)
            if row == 0:
                axis.set_title(data)
            if column == 0:
                axis.set_ylabel(f"ε = {epsilon:g}\naccuracy, %")
            if row == len(EPSILONS) - 1:
                axis.set_xlabel("CPU minutes")
    found = [axis.get_legend_handles_labels() for row in axes for axis in row]
    by_label = {
        label: handle
        for handles, labels in found
        for handle, label in zip(handles, labels, strict=True)
    }
    figure.legend(by_label.values(), by_label.keys(), loc="outside lower center", ncols=4)
    figure.savefig(PICTURE, dpi=110)


BENCHMARK = Benchmark(
    table,
    CASES,
    measure,
    quick=({"data": "digits", "system": "PATE", "epsilon": 10.0, "seed": 0},),
    also=draw,
)
