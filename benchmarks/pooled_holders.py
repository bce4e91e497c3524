"""A diffusion model of one holder with all records, or samples of several holders' models pooled.

No record is with two holders, so every row has one sound ε. Each run is `fedtranscribe simulate`
with a trainer at every holder; what counts is what a small CNN that learned from 3,000 samples
knows of real test images. Run folders stay in `--work`, and interrupted runs continue.
"""

import itertools
import json
import subprocess
import time

from benchmarks.harness import (
    PACKAGED,
    PROGRAM,
    Benchmark,
    Case,
    Line,
    Options,
    grid,
    median,
    page,
    per_cent,
    select,
)

APPS = {"dp-promise": "dp_promise_mnist", "dp-sad": "dp_sad_mnist"}
DATA = ("digits", "mnist", "fashion-mnist")
HOLDERS, EPSILON = (1, 3, 5), 10.0
# Instead of minutes of training, a few steps.
_QUICK = {"training.pretrain-epochs": 0.01, "training.dp-promise.phase2-epochs": 0.1}
_QUICK |= {"training.sampling-steps": 2}
# A quarter of the default: there are as many networks as holders.
PRETRAIN_EPOCHS = 2
CASES = [
    {"data": data, "method": method, "holders": holders, "seed": 0, "epsilon": EPSILON}
    for data, method, holders in itertools.product(DATA, APPS, HOLDERS)
]


def measure(case: Case, options: Options) -> Line:
    """One simulation."""
    name = "-".join(str(case[part]) for part in ("data", "method", "holders", "epsilon", "seed"))
    folder, began = options.work / name, time.time()
    continued = (folder / "config.toml").exists()
    settings = {name: case[name] for name in ("data", "epsilon", "seed")}
    settings |= {"trainer": "all", "training.pretrain-epochs": PRETRAIN_EPOCHS}
    if case["data"] not in PACKAGED:
        settings["data-root"] = options.data_root
    if options.quick:
        settings |= _QUICK
    command = [str(PROGRAM), "simulate", APPS[case["method"]]]
    command += [f"{name}={value}" for name, value in settings.items()]
    command += ["--holders", str(case["holders"]), "--out", str(folder), *["--resume"] * continued]
    subprocess.run(command, check=True)
    result = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return {
        "downstream": result["accuracy"]["downstream"],
        "sound": result["epsilon"],
        # Of a run that was interrupted nobody knows how long it took.
        "minutes": None if continued else round((time.time() - began) / 60, 1),
    }


def table(lines: list[Line]) -> str:
    """One holder beside several."""
    return page(
        "# Diffusion models of several holders, pooled",
        "By `benchmarks/pooled_holders.py`. The records are split over the holders (Dirichlet "
        "0.5 by label), and each trains a network of its own at the ε named (record, zero-out, "
        "δ = 1e-5), which is that of the whole. Where a network has a private start, it passes "
        f"over the start's samples {PRETRAIN_EPOCHS} times (the default is 8). Accuracy in per "
        "cent on all real test images of a small CNN that learned from 3,000 pooled samples: mean "
        "over runs (lowest – highest). One holder has all records. Minutes are of two cores that "
        "other work shared.",
        grid(
            ("data", "method", "ε, sound", "holders", "CNN", "minutes", "runs"),
            (
                (
                    *(case["data"], case["method"], f"{found[0]['sound']:.3g}", case["holders"]),
                    *(per_cent(found, "downstream"), median(found, "minutes", digits=0)),
                    len(found),
                )
                for case in CASES
                if (found := select(lines, {k: v for k, v in case.items() if k != "seed"}))
            ),
        ),
    )


BENCHMARK = Benchmark(
    table,
    CASES,
    measure,
    quick=({"data": "digits", "method": "dp-promise", "holders": 1, "seed": 0, "epsilon": 10.0},),
)
