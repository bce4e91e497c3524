"""Tables and figures of the papers, as choices of cases.

The papers' ε does not hold (docs/flaws.md), so their figures are claims about accuracy at a privacy
that nobody has.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """Cases of one benchmark.

    Attributes:
        name: of the benchmark.
        only: NAME=VALUE of the cases; several values of one name are alternatives.
        seeds: instead of the benchmark's own.
    """

    name: str
    only: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Table:
    """One table or figure.

    Attributes:
        about: what it compares.
        prints: what the paper prints of its own method.
        measured: how much of it was measured here, and what was not.
        runs: what measures it.
    """

    about: str
    prints: str
    measured: str
    runs: tuple[Run, ...]

    def __str__(self) -> str:
        rows = [f"the paper prints: {self.prints}", f"measured here: {self.measured}"]
        rows += [f"results: benchmarks/results/{run.name}.md" for run in self.runs]
        return "\n  ".join([self.about, *rows])


_BOTH = ("data=mnist", "data=fashion-mnist")
_ABLATED = "on the packaged digits; see the file"
TABLES = {
    "dpsd-table1": Table(
        "DPSD Table I: students at ε = 1 and 10 on MNIST and Fashion-MNIST",
        "MNIST 96.03 / 97.85, Fashion-MNIST 83.97 / 90.08 at ε = 1 / 10",
        "measured; CelebA is not",
        (Run("utility", (*_BOTH, "case=epsilon-10", "case=epsilon-1")), Run("table1")),
    ),
    "dpsd-table2": Table(
        "DPSD Table II: medical images at ε = 1 and 10",
        "MedMNIST 81.25 / 86.01, COVIDx 74.11 / 81.73",
        "PneumoniaMNIST from sums over records, without teachers; COVIDx is not measured",
        (Run("utility", ("data=medmnist:pneumoniamnist", "case=descent-10", "case=descent-1")),),
    ),
    "dpsd-table3": Table(
        "DPSD Table III: MNIST at ε = 1, CIFAR-10 at ε = 2",
        "MNIST 96.03, CIFAR-10 86.59",
        "from sums over records, CIFAR-10 (a JPEG copy) at ε = 3 instead of 2",
        (
            Run("utility", ("data=mnist", "case=descent-1")),
            Run("utility", ("data=cifar10-jpeg", "case=descent-3")),
        ),
    ),
    "dpsd-table4": Table(
        "DPSD Table IV: labels by randomised response",
        "MNIST 97.62 at ε = 1, by a figure that protects one synthetic image",
        "one run on MNIST at a sound ε of 10, five holders",
        (Run("table5", ("data=mnist", "method=label")),),
    ),
    "dpsd-table5": Table(
        "DPSD Table V: FedDPSD beside FedAvg, FedDF and DENSE, five holders",
        "FedDPSD at ε = 10: MNIST 95.76, Fashion-MNIST 88.64, CIFAR-10 71.12",
        "measured; ImageNet is not, and CIFAR-10 is a JPEG copy",
        (Run("table5"),),
    ),
    "dpsd-figure9": Table(
        "DPSD Fig. 9: accuracy over ε from 0.1 to 10",
        "MNIST 29.19 at ε = 0.1, 96.03 at 1, 97.85 at 10",
        "measured",
        (Run("figure9"),),
    ),
    "dp-promise-table2": Table(
        "dp-promise Table 2: classifiers that learned from samples alone, and FID",
        "CNN at ε = 1 / 10: MNIST 95.8 / 98.2, Fashion-MNIST 81.6 / 85.5",
        "see the file; CelebA and CIFAR-10 are not measured",
        (
            Run(
                "methods",
                (*_BOTH, "method=mixture", "method=dp-promise", "method=dp-promise, no start"),
            ),
        ),
    ),
    "dp-promise-table4": Table(
        "dp-promise Table 4 and Fig. 6: Phase I, K, S, the sampler",
        "MNIST CNN 98.1 with Phase I, 97.8 without",
        _ABLATED,
        (Run("diffusion_ablations", ("data=digits", "method=dp-promise"), (0, 1, 2)),),
    ),
    "dp-sad-table2": Table(
        "DP-SAD Table 2: classifiers that learned from samples alone",
        "at ε = 1 / 10: MNIST 96.21 / 97.61, Fashion-MNIST 84.37 / 89.60",
        "see the file; CelebA is not measured",
        (Run("methods", (*_BOTH, "method=mixture", "method=dp-sad", "method=dp-sad, no start")),),
    ),
    "dp-sad-table3": Table(
        "DP-SAD Tables 3 and 4 and Fig. 5: λ, losses, T, conditioning",
        "FID on CelebA 14.63 at λ = 0, 11.68 at 1, 13.55 at 4; MNIST 94.99 without MSE and ADV, "
        "97.61 with both",
        _ABLATED,
        (Run("diffusion_ablations", ("data=digits", "method=dp-sad"), (0, 1, 2)),),
    ),
}
