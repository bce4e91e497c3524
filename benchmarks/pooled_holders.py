"""A diffusion model of one holder with all records, or samples of several holders' models pooled.

    python benchmarks/pooled_holders.py                       # the packaged digits, 1 and 3
    python benchmarks/pooled_holders.py --data mnist --data-root DIR --holders 1 5
    python benchmarks/pooled_holders.py --method dp-sad --seed 0 1 2

No record is with two holders, so every row has one sound ε. Each run is `fedtranscribe simulate`
with a trainer at every holder; what counts is what a small CNN that learned from 3,000 samples
knows of real test images. Resumable: interrupted runs continue, and finished lines are kept in
`results/pooled_holders.jsonl`. The table goes to `results/pooled_holders.md`.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kept_lines import add_line, read_lines

RESULTS = Path(__file__).parent / "results"
LINES = RESULTS / "pooled_holders.jsonl"
APPS = {"dp-promise": "dp_promise_mnist", "dp-sad": "dp_sad_mnist"}
DATA = ("digits", "mnist", "fashion-mnist")
# A quarter of the default: there are as many networks as holders.
PRETRAIN_EPOCHS = 2


def main() -> None:
    options = _options()
    for seed, method, holders in itertools.product(options.seed, options.method, options.holders):
        key = {"data": options.data, "method": method, "holders": holders, "seed": seed}
        key["epsilon"] = options.epsilon
        if any(key.items() <= line.items() for line in read_lines(LINES)):
            continue
        line = key | _measure(key, options)
        add_line(LINES, line)
    (RESULTS / "pooled_holders.md").write_text(_table(read_lines(LINES)), encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="digits", choices=DATA)
    parser.add_argument("--data-root", type=Path, help="where MNIST and Fashion-MNIST are")
    parser.add_argument("--method", nargs="*", default=list(APPS), choices=list(APPS))
    parser.add_argument("--holders", type=int, nargs="*", default=[1, 3])
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--seed", type=int, nargs="*", default=[0])
    parser.add_argument("--work", type=Path, default=Path("runs/pooled-holders"))
    options = parser.parse_args()
    if options.data != "digits" and options.data_root is None:
        parser.error(f"--data {options.data} needs --data-root")
    return options


def _measure(key: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    name = "-".join(str(key[part]) for part in ("data", "method", "holders", "epsilon", "seed"))
    folder, began = options.work / name, time.time()
    continued = (folder / "config.toml").exists()
    root = [] if options.data_root is None else [f"data-root={options.data_root}"]
    settings = [f"data={key['data']}", f"epsilon={key['epsilon']}", f"seed={key['seed']}", *root]
    settings.append(f"training.pretrain-epochs={PRETRAIN_EPOCHS}")
    program = Path(sys.executable).with_name("fedtranscribe")
    command = [str(program), "simulate", APPS[key["method"]], "trainer=all", *settings]
    command += ["--holders", str(key["holders"]), "--out", str(folder), *["--resume"] * continued]
    subprocess.run(command, check=True)
    result = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return {
        "downstream": result["accuracy"]["downstream"],
        "sound": result["epsilon"],
        # Of a run that was interrupted nobody knows how long it took.
        "minutes": None if continued else round((time.time() - began) / 60, 1),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def _table(lines: list[dict[str, Any]]) -> str:
    rows = [
        "# Diffusion models of several holders, pooled",
        "",
        "By `benchmarks/pooled_holders.py`. The records are split over the holders (Dirichlet "
        "0.5 by label), and each trains a network of its own at the ε named (record, zero-out, "
        "δ = 1e-5), which is that of the whole. Where a network has a private start, it passes "
        f"over the start's samples {PRETRAIN_EPOCHS} times (the default is 8). Accuracy in per "
        "cent on all real test images of a small CNN that learned from 3,000 pooled samples: mean "
        "over runs (lowest – highest). One holder has all records. Minutes are of two cores that "
        "other work shared.",
        "",
        "| data | method | ε, sound | holders | CNN | minutes | runs |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    kinds = dict.fromkeys((x["data"], x["method"], x["epsilon"], x["holders"]) for x in lines)
    for data, method, epsilon, holders in sorted(kinds):
        key = {"data": data, "method": method, "epsilon": epsilon, "holders": holders}
        found = [line for line in lines if key.items() <= line.items()]
        scores = [100 * line["downstream"] for line in found]
        shown = f"{statistics.mean(scores):.1f}"
        if len(scores) > 1:
            shown += f" ({min(scores):.1f} – {max(scores):.1f})"
        known = [line["minutes"] for line in found if line["minutes"] is not None]
        minutes = f"{statistics.median(known):.0f}" if known else "–"
        rows.append(
            f"| {data} | {method} | {found[0]['sound']:.3g} | {holders} | {shown} | {minutes} "
            f"| {len(found)} |"
        )
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
