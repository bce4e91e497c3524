"""A table or figure of the papers as one command.

    python benchmarks/reproduce.py                              # which there are
    python benchmarks/reproduce.py dpsd-table5 --dry-run        # what it runs, and how long
    python benchmarks/reproduce.py dpsd-table5 --data-root DIR  # runs it; again to continue

Each entry names the scripts of this folder that it runs, what they took on which machine, what the
paper prints and where our figures are. The papers' ε does not hold (docs/flaws.md), so their
figures are claims about accuracy at a privacy that nobody has.
"""

import argparse
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = "{root}"


@dataclass(frozen=True)
class Table:
    """One table or figure.

    Attributes:
        about: what it compares.
        prints: what the paper prints of its own method.
        commands: scripts of this folder with their options, in order.
        takes: how long they took, on which machine.
        result: the file that they write.
        measured: how much of it has been measured here, and what has not.
    """

    about: str
    prints: str
    commands: tuple[str, ...]
    takes: str
    result: str
    measured: str

    @property
    def needs_root(self) -> bool:
        """Whether data sets are read that no package ships."""
        return any(ROOT in command for command in self.commands)


_ABLATIONS = (
    "two hours of one core per seed: 25 minutes of pre-training, then 3 to 12 per case (K-8 and "
    "T-100 33), 1 to 11 per case of the sampler"
)
_DIFFUSION = (
    "with a start, per run: 72 minutes of one core with dp-promise (Fashion-MNIST, ε = 10), 95 "
    "with DP-SAD (MNIST, ε = 1), then 10 and 25 for 20,000 samples; without a start not timed yet"
)
TABLES = {
    "dpsd-table1": Table(
        about="DPSD Table I: students at ε = 1 and 10 on MNIST and Fashion-MNIST",
        prints="MNIST 96.03 / 97.85, Fashion-MNIST 83.97 / 90.08 at ε = 1 / 10",
        commands=(
            *(
                f"utility.py --data-root {ROOT} --only {data}:epsilon-{epsilon}"
                for data in ("mnist", "fashion-mnist")
                for epsilon in (10, 1)
            ),
            "table1.py",
        ),
        takes="5 to 8 minutes a run on two cores; the teachers' training before it was not timed",
        result="table1.md",
        measured="measured; CelebA is not",
    ),
    "dpsd-table2": Table(
        about="DPSD Table II: medical images at ε = 1 and 10",
        prints="MedMNIST 81.25 / 86.01, COVIDx 74.11 / 81.73",
        commands=tuple(
            f"utility.py --data-root {ROOT} --only medmnist:pneumoniamnist:descent-{epsilon}"
            for epsilon in (10, 1)
        ),
        takes="6 minutes on two cores",
        result="utility.md",
        measured="PneumoniaMNIST from sums over records, without teachers; COVIDx is not measured",
    ),
    "dpsd-table3": Table(
        about="DPSD Table III: MNIST at ε = 1, CIFAR-10 at ε = 2",
        prints="MNIST 96.03, CIFAR-10 86.59",
        commands=(
            f"utility.py --data-root {ROOT} --only mnist:descent-1",
            f"utility.py --data-root {ROOT} --only cifar10-jpeg:descent-3",
        ),
        takes="30 minutes on two cores",
        result="utility.md",
        measured="from sums over records, CIFAR-10 (a JPEG copy) at ε = 3 instead of 2",
    ),
    "dpsd-table4": Table(
        about="DPSD Table IV: labels by randomised response",
        prints="MNIST 97.62 at ε = 1, by a figure that protects one synthetic image",
        commands=(f"table5.py --data-root {ROOT} --only mnist:label",),
        takes="5 minutes on two cores once the teachers of Table V are trained",
        result="table5.md",
        measured="one run on MNIST at a sound ε of 10, five holders",
    ),
    "dpsd-table5": Table(
        about="DPSD Table V: FedDPSD beside FedAvg, FedDF and DENSE, five holders",
        prints="FedDPSD at ε = 10: MNIST 95.76, Fashion-MNIST 88.64, CIFAR-10 71.12",
        commands=tuple(
            f"table5.py --data-root {ROOT} --data {data}"
            for data in ("mnist", "fashion-mnist", "cifar10-jpeg")
        ),
        takes="10 hours on two cores, which other work shared",
        result="table5.md",
        measured="measured; ImageNet is not, and CIFAR-10 is a JPEG copy",
    ),
    "dpsd-table6": Table(
        about="DPSD Table VI, Figs. 5 and 6: terms of Eq. 8, clipping, classic distillation",
        prints="MNIST 97.85; without CE 96.02, without IE 66.37, without NORM 86.39",
        commands=("ablations.py",),
        takes="not timed yet",
        result="ablations.jsonl",
        measured="not measured at this version",
    ),
    "dpsd-figure9": Table(
        about="DPSD Fig. 9: accuracy over ε from 0.1 to 10",
        prints="MNIST 29.19 at ε = 0.1, 96.03 at 1, 97.85 at 10",
        commands=(f"figure9.py --data-root {ROOT}",),
        takes="10 minutes a point on two cores once the teachers of Table I are trained",
        result="figure9.md",
        measured="measured",
    ),
    "dp-promise-table2": Table(
        about="dp-promise Table 2: classifiers that learned from samples alone, and FID",
        prints="CNN at ε = 1 / 10: MNIST 95.8 / 98.2, Fashion-MNIST 81.6 / 85.5",
        commands=tuple(
            f'methods.py --data {data} --data-root {ROOT} --only mixture dp-promise "dp-promise, no'
            ' start"'
            for data in ("mnist", "fashion-mnist")
        ),
        takes=_DIFFUSION,
        result="methods.md",
        measured="see the file; CelebA and CIFAR-10 are not measured",
    ),
    "dp-promise-table4": Table(
        about="dp-promise Table 4 and Fig. 6: Phase I, K, S, the sampler",
        prints="MNIST CNN 98.1 with Phase I, 97.8 without",
        commands=("diffusion_ablations.py --only dp-promise --seed 0 1 2",),
        takes=_ABLATIONS,
        result="diffusion_ablations.md",
        measured="see the file",
    ),
    "dp-sad-table2": Table(
        about="DP-SAD Table 2: classifiers that learned from samples alone",
        prints="at ε = 1 / 10: MNIST 96.21 / 97.61, Fashion-MNIST 84.37 / 89.60",
        commands=tuple(
            f'methods.py --data {data} --data-root {ROOT} --only mixture dp-sad "dp-sad, no start"'
            for data in ("mnist", "fashion-mnist")
        ),
        takes=_DIFFUSION,
        result="methods.md",
        measured="see the file; CelebA is not measured",
    ),
    "dp-sad-table3": Table(
        about="DP-SAD Tables 3 and 4 and Fig. 5: λ, losses, T, conditioning",
        prints="FID on CelebA 14.63 at λ = 0, 11.68 at 1, 13.55 at 4; MNIST 94.99 without MSE and "
        "ADV, 97.61 with both",
        commands=("diffusion_ablations.py --only dp-sad --seed 0 1 2",),
        takes=_ABLATIONS,
        result="diffusion_ablations.md",
        measured="see the file",
    ),
}


def main() -> None:
    options = _options()
    if options.table is None:
        for name, table in TABLES.items():
            print(f"{name:<18} {table.about}")
        return
    table = TABLES[options.table]
    commands = [command.format(root=options.data_root or "DIR") for command in table.commands]
    _describe(table, commands)
    if options.dry_run:
        return
    if table.needs_root and options.data_root is None:
        raise SystemExit("Give --data-root DIR, where MNIST, Fashion-MNIST and CIFAR-10 are.")
    for command in commands:
        print(f"\n> {command}", flush=True)
        subprocess.run([sys.executable, *shlex.split(command)], cwd=HERE, check=True)
    print(f"\nDone: {HERE / 'results' / table.result}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", nargs="?", choices=list(TABLES))
    parser.add_argument("--data-root", type=Path, help="where the data sets are")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run, and stop")
    options = parser.parse_args()
    if options.data_root is not None:
        options.data_root = options.data_root.resolve()
    return options


def _describe(table: Table, commands: list[str]) -> None:
    print(table.about)
    print(f"  the paper prints  {table.prints}")
    print(f"  it takes          {table.takes}")
    print(f"  measured here     {table.measured}")
    print(f"  our figures       benchmarks/results/{table.result}")
    for number, command in enumerate(commands):
        print(f"  {'it runs' if number == 0 else '':<17} python benchmarks/{command}")


if __name__ == "__main__":
    main()
