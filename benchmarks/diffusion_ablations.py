"""The ablations of dp-promise and DP-SAD in small, and what becomes of the papers' claims.

Every case changes one setting of the method's default at a sound ε of 10, with 25 sampling steps.
The cases of a method and a seed begin with one mixture and one network pre-trained on its samples,
so that they differ by their setting alone; T-100 needs a pre-training of its own. `start-alone` is
all but the pre-trained network: it sees an eighth of the records, once. Cases of the sampler draw
anew from the network of `base`, which costs nothing. Runs and pre-trained networks stay in
`--work`. The table has a row for each claim of the papers.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Benchmark, Case, Line, Options, grid, page, select, spread
from fedtranscribe.config import SynthesizeSettings, build
from fedtranscribe.config.evaluation import EvaluationSettings
from fedtranscribe.evaluation.evaluate import evaluate
from fedtranscribe.models.diffusion import Synthesizer
from fedtranscribe.noise.sources import BitSource, NoiseSource
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.trainers.preparation import PreparedTraining, prepare
from fedtranscribe.trainers.private_start import MIXTURE, TrainerWithStart
from fedtranscribe.trainers.stages import Trainer
from fedtranscribe.trainers.synthesize import synthesize

DATA = ("digits", "mnist", "fashion-mnist")
EPSILON = 10.0
# DP-SAD's default; more than dp-promise's, so that only its cases of the sampler depend on it.
SAMPLING_STEPS = 25
BASE = "base"
SAMPLES = 2_000
"""Images to learn from."""
QUICK = {"pretrain_epochs": 0.05, "sampling_steps": 2, "size": "tiny"}


@dataclass(frozen=True)
class Change:
    """What differs from the method's default.

    Attributes:
        options: of the method's own table.
        sampling: of the sampler alone.
        apart: whether the pre-training differs, too.
    """

    options: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    apart: bool = False


@dataclass(frozen=True, eq=False)
class Forked(PreparedTraining):
    """A training that goes on where another one's pre-training was about to end.

    Attributes:
        begun: that training's state, a step before.
    """

    begun: dict[str, Any] = field(default_factory=dict)

    def trainer(self, noise: NoiseSource | None = None, bits: BitSource | None = None) -> Trainer:
        """A trainer of this training's own plan, with the networks of `begun`."""
        trainer = super().trainer(noise, bits)
        assert isinstance(trainer, TrainerWithStart)
        own = trainer.training.state()
        apart = {name: own[name] for name in ("plan", "discriminator") if name in own}
        trainer.load_state({**self.begun, **apart})
        return trainer


CHANGES: dict[str, dict[str, Change]] = {
    "dp-promise": {
        BASE: Change(),
        "start-alone": Change({"phase2_epochs": 0.125}),
        "phase1": Change({"phase1": True}),
        # 800, as in the paper, takes more than is left beside the start.
        "S-850": Change({"boundary": 850}),
        "K-8": Change({"copies": 8}),
        "time-embedding-trained": Change({"freeze_time_embedding": False}),
        "steps-10": Change(sampling={"steps": 10}),
        "steps-100": Change(sampling={"steps": 100}),
        "rho-1": Change(sampling={"eta": 1.0}),
        "w-1": Change(sampling={"guidance": 1.0}),
    },
    "dp-sad": {
        BASE: Change(),
        "start-alone": Change({"epochs": 0.125}),
        "lambda-0": Change({"adversarial_weight": 0.0}),
        "lambda-0.5": Change({"adversarial_weight": 0.5}),
        "lambda-4": Change({"adversarial_weight": 4.0}),
        "teacher-loss-alone": Change({"data_weight": 0.0, "adversarial_weight": 0.0}),
        "T-100": Change({"time_steps": 100}, apart=True),
        "no-conditioning": Change(
            {"student_conditioning": False, "discriminator_conditioning": False}
        ),
        "student-conditioning": Change({"discriminator_conditioning": False}),
        "teacher-dp": Change({"teacher": "dp"}),
    },
}


@dataclass(frozen=True)
class Claim:
    """That one case is better than another, as a paper says it."""

    method: str
    where: str
    words: str
    better: str
    worse: str
    metric: str = "cnn"


CLAIMS = (
    Claim("dp-promise", "ours", "Noisy gradients help after the start", BASE, "start-alone"),
    Claim("dp-sad", "ours", "Noisy gradients help after the start", BASE, "start-alone"),
    Claim("dp-promise", "Table 4", "Phase I helps", "phase1", BASE),
    Claim("dp-promise", "Phase II", "More noise samples per record (K) help", "K-8", BASE),
    Claim("dp-promise", "Training", "S = 900 rather than 800 (here 850)", "phase1", "S-850"),
    Claim(
        "dp-promise",
        "Phase II",
        "Freezing the time embedding helps",
        BASE,
        "time-embedding-trained",
    ),
    Claim("dp-promise", "Fig. 6", "More sampling steps help", "steps-100", "steps-10", "fid"),
    Claim("dp-promise", "Fig. 6", "ρ = 1 gives a lower FID than ρ = 0", "rho-1", BASE, "fid"),
    Claim("dp-promise", "Fig. 6", "w = 1 gives a higher FID than w = 0", BASE, "w-1", "fid"),
    Claim("dp-sad", "Table 3", "λ = 1 rather than no discriminator", BASE, "lambda-0", "fid"),
    Claim("dp-sad", "Table 3", "λ = 1 rather than 0.5", BASE, "lambda-0.5", "fid"),
    Claim("dp-sad", "Table 3", "λ = 1 rather than 4", BASE, "lambda-4", "fid"),
    Claim("dp-sad", "Table 4", "MSE beside MSE-T helps", "lambda-0", "teacher-loss-alone"),
    Claim("dp-sad", "Table 4", "The adversarial loss helps", BASE, "lambda-0"),
    Claim("dp-sad", "Fig. 5", "T = 500 rather than 100, same betas", BASE, "T-100", "fid"),
    Claim("dp-sad", "Fig. 5", "Both conditionings help", BASE, "no-conditioning", "fid"),
    Claim("dp-sad", "Fig. 5", "The discriminator's helps", BASE, "student-conditioning", "fid"),
    Claim("dp-sad", "4.2", "A teacher from private records helps", "teacher-dp", BASE),
    Claim("dp-sad", "4.2", "A teacher from private records helps", "teacher-dp", BASE, "fid"),
)


CASES = [
    {"data": data, "method": method, "case": name, "seed": 0}
    for data in DATA
    for method, changes in CHANGES.items()
    for name in changes
]


def measure(case: Case, options: Options) -> Line:
    """A training, or another sampler for the network of `base`."""
    change = CHANGES[case["method"]][case["case"]]
    run = _trained({**case, "case": BASE} if change.sampling else case, options)
    if change.sampling:
        assert isinstance(run.generator, Synthesizer)
        sampling = replace(run.generator.sampling, **change.sampling)
        run = replace(run, generator=replace(run.generator, sampling=sampling))
    samples = 100 if options.quick else SAMPLES
    found = evaluate(
        run,
        EvaluationSettings(
            classifiers=("cnn",),
            samples=samples,
            seed=case["seed"],
            data_root=options.data_root,
        ),
    )
    return {
        # A student without labels gives images that a classifier cannot learn from.
        "cnn": found.get("downstream", {}).get("cnn"),
        "fid": found["fidelity"]["fid"],
        "sound": run.result.guarantee.epsilon,
        "samples": samples,
    }


def _trained(case: Case, options: Options) -> FinishedRun:
    data, method, name, seed = (case[key] for key in ("data", "method", "case", "seed"))
    folder, change = options.work / f"{data}-{method}-{name}-{seed}", CHANGES[method][name]
    settings = build(
        SynthesizeSettings,
        {
            "method": method,
            "data": data,
            "data_root": options.data_root,
            "epsilon": EPSILON,
            "seed": seed,
            "sampling_steps": SAMPLING_STEPS,
            "evaluate": False,
            # The data are public, so every run may have a ledger of its own.
            "ledger": folder.with_suffix(".sqlite"),
            method.replace("-", "_"): change.options,
            **(QUICK if options.quick else {}),
        },
    )
    if not (folder / "metrics.json").exists():
        resume, prepared = (folder / "config.toml").exists(), prepare(settings)
        if not change.apart:
            begun = _begun(prepared, options.work / f"{data}-{method}-begun-{seed}.pt")
            parts = {each.name: getattr(prepared, each.name) for each in fields(prepared)}
            prepared = Forked(**parts, begun=begun)
        synthesize(prepared, folder, resume=resume, say=print)
    return FinishedRun.open(folder)


def _begun(prepared: PreparedTraining, path: Path) -> dict[str, Any]:
    """The state a step before pre-training ends; from a file, if another case left it there."""
    if not path.exists():
        # Public data: each case books its whole plan, this part included, when it goes on.
        trainer, steps = prepared.trainer(), prepared.plan.steps
        trainer.train(steps[MIXTURE] + steps["pre-training"] - 1)
        torch.save(trainer.state(), path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)
    return torch.load(path, weights_only=True)


# ---------------------------------------------------------------- the table


def table(lines: list[Line]) -> str:
    """For each data set the figures, then the claims."""
    samples = " or ".join(f"{count:,}" for count in sorted({line["samples"] for line in lines}))
    parts = []
    for data in DATA:
        if of_data := select(lines, {"data": data}):
            head = ("method", "case", "CNN", "FID", "runs")
            claims = grid(("paper", "claim", "here", "by"), (_row(of_data, c) for c in CLAIMS))
            parts += [f"## {data}", grid(head, _figures(of_data)), claims]
    return page(
        "# Ablations of dp-promise and DP-SAD in small",
        "By `benchmarks/diffusion_ablations.py`. Each case changes one setting of the method's "
        f"default, with its private start, at a sound ε of {EPSILON:g} (record, zero-out, "
        f"δ = 1e-5) and with {SAMPLING_STEPS} sampling steps. Cases of one seed share mixture and "
        "pre-trained network. CNN: accuracy in per cent on all real test images after learning "
        f"from {samples} samples alone; FID is under the project's own features. Mean over "
        "runs (lowest – highest). A claim is judged by runs that began from one pre-trained "
        "network. Seed 0 of dp-sad has two: the cases of conditioning and teacher began from the "
        "second, lambda-0.5 and T-100 from the first, all others once from each.",
        *parts,
    )


def _figures(lines: list[Line]) -> Iterator[tuple[object, ...]]:
    for method, changes in CHANGES.items():
        for name in changes:
            if fid := list(_by_network(lines, method, name, "fid").values()):
                scores = _by_network(lines, method, name, "cnn").values()
                cnn = spread([100 * score for score in scores]) if scores else "no labels"
                yield method, name, cnn, spread(fid), len(fid)


def _row(lines: list[Line], claim: Claim) -> tuple[str, ...]:
    """Whether a claim holds, by as many runs of either case; ranges that overlap show nothing."""
    better = _by_network(lines, claim.method, claim.better, claim.metric)
    worse = _by_network(lines, claim.method, claim.worse, claim.metric)
    unit, scale, sign = ("points", 100, 1) if claim.metric == "cnn" else ("FID", 1, -1)
    shared = sorted(better.keys() & worse.keys())
    good = [sign * better[key] for key in shared]
    bad = [sign * worse[key] for key in shared]
    return f"{claim.method}, {claim.where}", claim.words, *_verdict(good, bad, scale, unit)


def _verdict(good: list[float], bad: list[float], scale: int, unit: str) -> tuple[str, str]:
    if not good:
        return "not tested", unit
    gain = f"{scale * (statistics.mean(good) - statistics.mean(bad)):+.1f} {unit}"
    if len(good) < 2:
        return "one run", gain
    gain += f", {len(good)} runs each"
    if min(good) > max(bad):
        return "holds", gain
    return "does not hold" if max(good) < min(bad) else "no difference seen", gain


def _by_network(
    lines: list[Line], method: str, name: str, metric: str
) -> dict[tuple[int, int], float]:
    """{(seed, which pre-trained network of that seed): score}; lines without a score left out."""
    return {
        (line["seed"], line.get("network", 1)): line[metric]
        for line in select(lines, {"method": method, "case": name})
        if line[metric] is not None
    }


BENCHMARK = Benchmark(
    table,
    CASES,
    measure,
    quick=({"data": "digits", "method": "dp-promise", "case": BASE, "seed": 0},),
)
