"""DPSD, dp-promise and DP-SAD at one sound ε, on the same records, by the same evaluation.

    python benchmarks/methods.py --work runs/methods

Data: the packaged digits, 4,000 records. Every run, and the evaluation of each, is a command of
the package; finished ones in `--work` are kept, interrupted ones go on. Writes
`results/methods.md`: what classifiers know of real held-out digits that learned from 3,000
synthetic images alone.

The public set `uci-digits` has 8x8 pixels, other writers and other pens: DPSD may ask for labels of
it where the diffusion trainers start from it. Without `--only` every method runs twice.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
EPSILON = 10
SAMPLES = 3_000
CLASSIFIERS = ("cnn", "mlp", "lda")

_DPSD = ("transcribe", "--data", "digits", "--teacher", "cnn")
_DIFFUSION = ("synthesize", "--data", "digits", "--no-evaluate", "--method")
_FROM_PUBLIC = ("--pretrain-data", "uci-digits", "--pretrain-epochs", "10")
RUNS = {
    "dpsd": _DPSD,
    "dpsd-public": (*_DPSD, "--public-data", "uci-digits"),
    "dp-promise": (*_DIFFUSION, "dp-promise"),
    "dp-promise-public": (*_DIFFUSION, "dp-promise", *_FROM_PUBLIC),
    "dp-sad": (*_DIFFUSION, "dp-sad"),
    "dp-sad-public": (*_DIFFUSION, "dp-sad", *_FROM_PUBLIC),
}


def main() -> None:
    options = _options()
    for name in options.only.split(",") if options.only else RUNS:
        folder = options.work / name
        if not (folder / "metrics.json").exists():
            begun = ("--resume",) if (folder / "config.toml").exists() else ()
            ledger = ("--ledger", f"{folder}.sqlite")
            epsilon = ("--epsilon", str(EPSILON))
            _run(*RUNS[name], *epsilon, "--out", str(folder), *ledger, *begun)
        if not (folder / "evaluation.json").exists():
            _run(
                *("evaluate", str(folder), "--samples", str(SAMPLES)),
                *("--classifiers", ",".join(CLASSIFIERS)),
            )
    done = {name: options.work / name for name in RUNS if _evaluated(options.work / name)}
    table = _table(done)
    (RESULTS / "methods.md").write_text(table, encoding="utf-8")
    print(table)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("runs/methods"), help="run folders")
    parser.add_argument("--only", default="", help="names of runs, by commas")
    return parser.parse_args()


def _run(*arguments: str) -> None:
    program = Path(sys.executable).with_name("fedtranscribe")
    subprocess.run([str(program), *arguments], check=True)


def _evaluated(folder: Path) -> bool:
    return (folder / "evaluation.json").exists()


def _table(done: dict[str, Path]) -> str:
    head = [
        "# DPSD, dp-promise and DP-SAD at one sound ε",
        "",
        f"The packaged digits: 4,000 records, 1,000 held out. Sound ε, unit record, zero-out, "
        f"δ = 1e-5. Accuracy in per cent on the held-out digits of classifiers that learned from "
        f"{SAMPLES:,} synthetic images alone, and of the student where there is one. FID under "
        "features of a network for `uci-digits`, to be compared within this table only. One run "
        "each; small networks, two CPU cores.",
        "",
        "| method | public images | ε, sound | ε that the paper prints | student | "
        f"{' | '.join(f'{name} on synthetic' for name in CLASSIFIERS)} | FID |",
        "| --- | --- | --- | --- | --- | " + "--- | " * len(CLASSIFIERS) + "--- |",
    ]
    return "\n".join([*head, *(_row(folder) for folder in done.values())]) + "\n"


def _row(folder: Path) -> str:
    result = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    found = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    student = f"{100 * found['student']['accuracy']:.1f}" if "student" in found else "–"
    learned = " | ".join(f"{100 * found['downstream'][name]:.1f}" for name in CLASSIFIERS)
    return (
        f"| {result.get('method', 'dpsd')} | {result['public_data'] or 'none'} "
        f"| {result['epsilon']:.3g} | {result['published']['epsilon']:.4g} "
        f"| {student} | {learned} "
        f"| {found['fidelity']['fid']:.1f} |"
    )


if __name__ == "__main__":
    main()
