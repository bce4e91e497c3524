"""DPSD Table V rebuilt: FedDPSD beside FedAvg, FedDF and DENSE on the same holders.

Five holders, Dirichlet 0.5, student `cnn-wide`, the same partition per seed; `moments`, `sums`
and `sums+teachers` instead start from sums over the records, for Dirichlet 0.5 and 0.1, ε = 10
and 1, under masks and with local noise. All holders live in this process; `tests/federation`
shows that Flower carries the same values. Settings were chosen on training images and the first
5,000 test images; reported is the accuracy on the last 5,000, for sums on all 10,000, too.
"""

import itertools
import shutil
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Benchmark, Case, Line, Options, grid, page, per_cent, select
from benchmarks.utility import exact, learn, unseen_of
from fedtranscribe.config import BaselineSettings, DpsdSettings, FederationSettings, TeacherSettings
from fedtranscribe.data import DataSplit, ImageSet, NamedData, load
from fedtranscribe.data.partitions import holder_name
from fedtranscribe.errors import HopelessPlanError
from fedtranscribe.flower.baselines import load_mean, train_locally
from fedtranscribe.holder.node import Node
from fedtranscribe.methods.baselines import dense, distil
from fedtranscribe.models import Classifier, build, load_network
from fedtranscribe.models.ensemble import Ensemble
from fedtranscribe.models.inference import accuracy
from fedtranscribe.models.teachers import ensemble_accuracy
from fedtranscribe.questions.moments import Moments
from fedtranscribe.results.run_directory import STUDENT as STUDENT_FILE
from fedtranscribe.results.run_directory import RunDirectory
from fedtranscribe.runs.federate import federate
from fedtranscribe.runs.learning import HeldOut
from fedtranscribe.runs.simulation import open_holder, partitions
from fedtranscribe.runs.student_side import build_student_side, public_images
from fedtranscribe.runs.transports import InProcess

# MNIST, Fashion-MNIST, CIFAR-10 as printed; the paper's ε = 10 does not hold.
PAPER = {
    "fedavg": (90.55, 83.72, 43.67),
    "dense": (95.82, 85.94, 62.19),
    "vote": (95.76, 88.64, 71.12),
}
COLUMNS = {"mnist": 0, "fashion-mnist": 1, "cifar10-jpeg": 2}

STUDENT = "cnn-wide"
_SHARDS = 50
_DPSD = DpsdSettings(rows=6_000, round_rows=500, student_steps=100, finish_steps=600)
_CLEAN = _DPSD.model_copy(
    update={
        "rows": 20_000,
        "round_rows": 2_000,
        "student_steps": 200,
        "finish_steps": 1_000,
        "prior_weight": 0.0,
        "evidence_weight": 1.0,
        "augment": 0.0,
    }
)
# Settings of a private run that differ from record-level, central, votes.
PRIVATE: dict[str, dict[str, Any]] = {
    "vote": {},
    "data": {"privacy": "data"},
    "holder-level": {"unit": "holder"},
    "local": {"noise": "local"},
    "label": {"privacy": "label", "noise": "local"},
}
# Of the budget, what teachers get after a start.
SHARES = {"moments": 0.0, "sums": 0.0, "sums+teachers": 0.5}
# As before there were rounds of gradients, and features of patches.
MOMENTS_ALONE: dict[str, Any] = {"student": "scatter", "descent_rounds": 0}
STARTS = [
    {"alpha": alpha, "epsilon": epsilon, "noise": noise}
    for alpha, epsilon, noise in itertools.product((0.5, 0.1), (10.0, 1.0), ("secagg", "local"))
]
METHODS = (
    "vote",
    "data",
    "holder-level",
    "no-noise",
    "fedavg",
    "feddf",
    "dense",
    "local",
    "label",
    *SHARES,
)
# Hopeless by forecast: one run shows it.
ONCE = ("local", "label")


SEEDS = range(3)
_QUICK = {"rows": 40, "round_rows": 20, "student_steps": 2, "finish_steps": 2, "pretrain_steps": 2}


def cases() -> Iterator[Case]:
    """First seeds first."""
    for seed, data, method in itertools.product(SEEDS, COLUMNS, METHODS):
        if method in ONCE and seed:
            continue
        for start in STARTS if method in SHARES else [{}]:
            yield {"data": data, "method": method, "seed": seed, **start}


def measure(case: Case, options: Options) -> Line:
    """One student of all holders."""
    data, method, seed = case["data"], case["method"], case["seed"]
    split = _load(data, options.data_root)
    unseen = unseen_of(data, split.test)
    settings = FederationSettings(
        data=data,
        student=STUDENT,
        start="none",
        alpha=0.5,
        seed=seed,
        noise="central",
        shards=2 if options.quick else _SHARDS,
        dpsd=_DPSD.model_copy(update=_QUICK) if options.quick else _DPSD,
        rows=_QUICK["rows"] if options.quick else _DPSD.rows,
        teachers=TeacherSettings(steps=1 if options.quick else 200),
        force=True,
        device=options.device,
    )
    work = options.work / f"{data}-{seed}"
    if method in PRIVATE:
        return _private(settings.model_copy(update=PRIVATE[method]), split, unseen, work, method)
    if method in SHARES:
        start = {name: case[name] for name in ("alpha", "epsilon", "noise")}
        share = {"teachers_share": SHARES[method], "with_generator": SHARES[method] > 0}
        sums = {"start": "moments", "student": None, "descent_rounds": None}
        alone = MOMENTS_ALONE if method == "moments" else {}
        settings = settings.model_copy(update={**sums, **alone, **share, **start})
        return _from_sums(settings, split, unseen, work, method)
    if method == "no-noise":
        return _without_noise(settings, split, unseen, work, options)
    few = {"rounds": 1, "local_steps": 2, "distil_steps": 2}
    baseline = BaselineSettings(**few) if options.quick else BaselineSettings()
    return {"student": _baseline(method, settings, baseline, split, unseen)}


# Pictures take a while to be read.
_load = lru_cache(maxsize=1)(load)


def _nodes(settings: FederationSettings, split: DataSplit, folder: Path) -> list[Node]:
    """The holders; teachers are used again, every run has new ledgers."""
    nodes = []
    for number, part in enumerate(partitions(settings, split.train)):
        home = folder / holder_name(number)
        for old in home.glob("ledger.sqlite*"):
            old.unlink()
        moments = None
        if settings.start == "moments":
            moments = _moments(home, part)
        nodes.append(open_holder(settings, part, number, home, moments=moments))
    return nodes


_moments_of: dict[Path, Moments] = {}
"""By the holder's folder: lines of one partition differ in noise alone."""


def _moments(home: Path, part: ImageSet) -> Moments:
    """A holder's features, computed for the first line that asks for them."""
    if home not in _moments_of:
        for old in [path for path in _moments_of if path.parent != home.parent]:
            del _moments_of[old]  # they take gigabytes of disk
        _moments_of[home] = Moments(part, torch.device("cpu"), home)
    return _moments_of[home]


def _ensembles(settings: FederationSettings, folder: Path) -> list[Ensemble]:
    """The holders' teachers, once `_nodes` has trained them."""
    homes = [folder / holder_name(number) for number in range(settings.holders)]
    return [Ensemble(home / "teachers", torch.device("cpu")) for home in homes]


def _private(
    settings: FederationSettings, split: DataSplit, unseen: ImageSet, work: Path, method: str
) -> dict[str, Any]:
    run = work / f"run-{method}"
    shutil.rmtree(run, ignore_errors=True)
    nodes = _nodes(settings, split, work / "shards")
    hopeless = False
    try:
        result = federated(settings.model_copy(update={"force": False}), nodes, run, unseen)
    except HopelessPlanError:
        hopeless = True
        shutil.rmtree(run)
        result = federated(settings, nodes, run, unseen)
    ensemble = ensemble_accuracy(
        _ensembles(settings, work / "shards"), unseen.images, unseen.labels
    )
    return {
        "student": result["accuracy"]["student"],
        **ensemble,
        "forecast": "hopeless" if hopeless else "worth a try",
        **{k: result[k] for k in ("epsilon", "unit", "noise", "noise_std", "units")},
        "published": result["published"]["epsilon"],
    }


def federated(
    settings: FederationSettings, nodes: list[Node], run: Path, unseen: ImageSet
) -> dict[str, Any]:
    """The result of a run in this process."""
    return federate(
        settings,
        InProcess(nodes),
        RunDirectory.create(run, settings),
        expected=settings.holders,
        test=HeldOut(unseen, public=True),
    ).to_json()


def _from_sums(
    settings: FederationSettings, split: DataSplit, unseen: ImageSet, work: Path, method: str
) -> dict[str, Any]:
    """Sums over the records first; teachers, of the same partition, with their share."""
    run = work / f"run-{method}-{settings.alpha}-{settings.epsilon}-{settings.noise}"
    shutil.rmtree(run, ignore_errors=True)
    nodes = _nodes(settings, split, work / f"shards-{settings.alpha}")
    found = federated(settings, nodes, run, unseen)
    student = load_network(run / STUDENT_FILE)
    assert isinstance(student, Classifier)
    return {
        "student": found["accuracy"]["student"],
        "on_all": accuracy(student, split.test.images, split.test.labels),
        "rows": found["rows"],
        "sound": found["epsilon"],
        "published": found["published"] and found["published"]["epsilon"],
    }


def _without_noise(
    settings: FederationSettings, split: DataSplit, unseen: ImageSet, work: Path, options: Options
) -> Line:
    """One teacher per holder and exact answers: what the holders know, without any privacy."""
    if not options.quick:
        teachers = TeacherSettings(steps=1_500, batch=64)
        settings = settings.model_copy(
            update={"dpsd": _CLEAN, "rows": _CLEAN.rows, "teachers": teachers}
        )
    settings = settings.model_copy(update={"shards": 1})
    _nodes(settings, split, work / "single")
    ensembles = _ensembles(settings, work / "single")

    def joined(images: Tensor) -> Iterator[Tensor]:
        return itertools.chain.from_iterable(each.logits(images) for each in ensembles)

    student = learn(settings, split, exact(joined), "no-noise", options)
    return {
        "student": accuracy(student, unseen.images, unseen.labels),
        **ensemble_accuracy(ensembles, unseen.images, unseen.labels),
        "epsilon": None,
    }


def _baseline(
    method: str,
    settings: FederationSettings,
    baseline: BaselineSettings,
    split: DataSplit,
    unseen: ImageSet,
) -> float:
    """As `flower.baselines` does through Flower, minus Flower."""
    train = split.train
    parts = partitions(settings, train)
    shape = train.classes, train.channels, train.size
    side = build_student_side(settings, *shape, None, torch.device("cpu"))
    student = side.student
    rounds, steps = (
        (baseline.rounds, baseline.local_steps)
        if method == "fedavg"
        else (1, baseline.rounds * baseline.local_steps)
    )
    networks = []
    for round_ in range(rounds):
        networks = []
        for number, part in enumerate(parts):
            network = build(settings.student_architecture, *shape)
            network.load_state_dict(student.state_dict())
            rng = torch.Generator().manual_seed(
                (settings.seed * settings.holders + number) * 10_007 + round_ + 1
            )
            train_locally(network, part, baseline, steps, rng)
            networks.append(network)
        load_mean(student, networks, [len(part) for part in parts])
    if method == "feddf":
        private = NamedData.of(settings.data, split)
        public = public_images(settings, train.channels, train.size, private)
        assert public is not None
        distil(student, networks, public.images, baseline, baseline.distil_steps, side.rng)
    if method == "dense":
        dense(student, side.network, networks, baseline, side.rng, lambda *_: None)
    return accuracy(student, unseen.images, unseen.labels)


def table(lines: list[Line]) -> str:
    """After the paper, then sums."""
    return page(
        "# FedDPSD and its baselines (after DPSD Table V)",
        "Five holders, Dirichlet 0.5 by label, student `cnn-wide`, 2 CPU cores. `vote`, `data`, "
        f"`holder-level`: {_SHARDS} teachers per holder, noise placed centrally, {_DPSD.rows:,} "
        "rows, sound ε = 10 at δ = 1e-5 for the unit named; `no-noise`: one teacher per holder, "
        "exact answers; FedAvg, FedDF (unlabelled data: `shapes`) and DENSE: no privacy at all. "
        "Accuracy on the last 5,000 test images in per cent: mean over seeds (lowest – highest).",
        grid(
            (
                *("data", "method", "sound ε", "unit", "forecast", "ensemble", "student", "seeds"),
                "paper",
            ),
            (
                _row(data, method, found)
                for data in _data(lines)
                for method in METHODS[: -len(SHARES)]
                if (found := select(lines, {"data": data, "method": method}))
            ),
        ),
        "The paper's FedDPSD column claims ε = 10; its accounting does not hold.",
        "## Sums over the records first",
        "The student is a linear classifier on fixed features. `moments`: two sums, of wavelet "
        "features; `sums`: as a run does by itself, with ten rounds of gradients and, for colour, "
        "features of small patches; `sums+teachers`: half of the budget for votes of 50 teachers "
        "per holder about images of the generator. `secagg` bears one drop-out and one colluder; "
        "`local` trusts nobody. Accuracy on all 10,000 test images and on the last 5,000, in per "
        "cent: mean over runs (lowest – highest); every run draws its noise anew.",
        grid(
            ("data", "method", "Dirichlet", "ε", "noise", "all", "last 5,000", "runs"),
            (
                (
                    *(data, method, start["alpha"], f"{start['epsilon']:g}", start["noise"]),
                    *(per_cent(found, "on_all"), per_cent(found, "student"), len(found)),
                )
                for data, method, start in itertools.product(_data(lines), SHARES, STARTS)
                if (found := select(lines, {"data": data, "method": method, **start}))
            ),
        ),
    )


def _data(lines: list[Line]) -> list[str]:
    return list(dict.fromkeys([*COLUMNS, *(line["data"] for line in lines)]))


def _row(data: str, method: str, found: list[Line]) -> tuple[object, ...]:
    first = found[0]
    epsilon, ensemble = first.get("epsilon"), first.get("ensemble")
    return (
        *(data, method, "none" if epsilon is None else f"{epsilon:.3g}"),
        *(first.get("unit", "–"), first.get("forecast", "–")),
        "–" if ensemble is None else f"{100 * ensemble:.1f}",
        *(per_cent(found, "student"), len(found)),
        PAPER[method][COLUMNS[data]] if method in PAPER and data in COLUMNS else "–",
    )


BENCHMARK = Benchmark(
    table,
    tuple(cases()),
    measure,
    quick=(
        *({"data": "digits", "method": name, "seed": 0} for name in ("vote", "feddf")),
        {"data": "digits", "method": "sums", "seed": 0, **STARTS[0]},
    ),
)
