"""The ablations of dp-promise and DP-SAD in small, and what becomes of the papers' claims.

    python benchmarks/diffusion_ablations.py                              # the packaged digits
    python benchmarks/diffusion_ablations.py --data mnist --data-root DIR --only dp-promise
    python benchmarks/diffusion_ablations.py --case dp-sad:base dp-sad:lambda-0 --seed 0 1 2

Every case changes one setting of the method's default at a sound ε of 10, with 25 sampling steps.
The cases of a method and a seed begin with one mixture and one network pre-trained on its samples,
so that they differ by their setting alone; T-100 needs a pre-training of its own. `start-alone` is
all but the pre-trained network: it sees an eighth of the records, once. Cases of the sampler draw
anew from the network of `base`, which costs nothing. Resumable but for a pre-training: runs stay in
`--work`, finished lines in `results/diffusion_ablations.jsonl`. The table, with a row for each
claim of the papers, goes to `results/diffusion_ablations.md`.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from kept_lines import add_line, read_lines

from fedtranscribe.config import SynthesizeSettings, build
from fedtranscribe.config.evaluation import EvaluationSettings
from fedtranscribe.evaluation.evaluate import evaluate
from fedtranscribe.models.diffusion import Synthesizer
from fedtranscribe.noise.sources import BitSource, NoiseSource
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.trainers.preparation import Prepared, prepare
from fedtranscribe.trainers.private_start import MIXTURE, TrainerWithStart
from fedtranscribe.trainers.stages import Trainer
from fedtranscribe.trainers.synthesize import synthesize

RESULTS = Path(__file__).parent / "results"
LINES = RESULTS / "diffusion_ablations.jsonl"
DATA = ("digits", "mnist", "fashion-mnist")
EPSILON = 10.0
# DP-SAD's default; more than dp-promise's, so that only its cases of the sampler depend on it.
SAMPLING_STEPS = 25
BASE = "base"


@dataclass(frozen=True)
class Case:
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
class Forked(Prepared):
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
        kept = {name: own[name] for name in ("plan", "discriminator") if name in own}
        trainer.load_state({**self.begun, **kept})
        return trainer


CASES: dict[str, dict[str, Case]] = {
    "dp-promise": {
        BASE: Case(),
        "start-alone": Case({"phase2_epochs": 0.125}),
        "phase1": Case({"phase1": True}),
        # 800, as in the paper, takes more than is left beside the start.
        "S-850": Case({"boundary": 850}),
        "K-8": Case({"copies": 8}),
        "time-embedding-trained": Case({"freeze_time_embedding": False}),
        "steps-10": Case(sampling={"steps": 10}),
        "steps-100": Case(sampling={"steps": 100}),
        "rho-1": Case(sampling={"eta": 1.0}),
        "w-1": Case(sampling={"guidance": 1.0}),
    },
    "dp-sad": {
        BASE: Case(),
        "start-alone": Case({"epochs": 0.125}),
        "lambda-0": Case({"adversarial_weight": 0.0}),
        "lambda-0.5": Case({"adversarial_weight": 0.5}),
        "lambda-4": Case({"adversarial_weight": 4.0}),
        "teacher-loss-alone": Case({"data_weight": 0.0, "adversarial_weight": 0.0}),
        "T-100": Case({"time_steps": 100}, apart=True),
        "no-conditioning": Case(
            {"student_conditioning": False, "discriminator_conditioning": False}
        ),
        "student-conditioning": Case({"discriminator_conditioning": False}),
        "teacher-dp": Case({"teacher": "dp"}),
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


def main() -> None:
    options = _options()
    for seed in options.seed:
        for method, name in _chosen(options):
            key = {"data": options.data, "method": method, "case": name, "seed": seed}
            if any(key.items() <= line.items() for line in read_lines(LINES)):
                continue
            line = key | _measure(method, name, seed, options)
            add_line(LINES, line)
    table = _table(read_lines(LINES))
    (RESULTS / "diffusion_ablations.md").write_text(table, encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="digits", choices=DATA)
    parser.add_argument("--data-root", type=Path, help="where MNIST and Fashion-MNIST are")
    parser.add_argument("--only", choices=list(CASES), help="one of the methods")
    parser.add_argument("--case", nargs="*", default=[], help="METHOD:CASE, …; all if left out")
    parser.add_argument("--seed", type=int, nargs="*", default=[0])
    parser.add_argument("--samples", type=int, default=2_000, help="images to learn from")
    parser.add_argument("--work", type=Path, default=Path("runs/diffusion-ablations"))
    return parser.parse_args()


def _chosen(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    for method, cases in CASES.items():
        for name in cases:
            wanted = not options.case or f"{method}:{name}" in options.case
            if wanted and options.only in (None, method):
                yield method, name


def _measure(method: str, name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    case, began = CASES[method][name], time.process_time()
    run = _trained(method, BASE if case.sampling else name, seed, options)
    if case.sampling:
        assert isinstance(run.generator, Synthesizer)
        sampling = replace(run.generator.sampling, **case.sampling)
        run = replace(run, generator=replace(run.generator, sampling=sampling))
    chosen = EvaluationSettings(
        classifiers=("cnn",),
        samples=options.samples,
        seed=seed,
        data_root=options.data_root,
    )
    found = evaluate(run, chosen)
    return {
        # A student without labels gives images that a classifier cannot learn from.
        "cnn": found.get("downstream", {}).get("cnn"),
        "fid": found["fidelity"]["fid"],
        "sound": run.result.guarantee.epsilon,
        "samples": options.samples,
        "cpu_seconds": round(time.process_time() - began),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def _trained(method: str, name: str, seed: int, options: argparse.Namespace) -> FinishedRun:
    folder = options.work / f"{options.data}-{method}-{name}-{seed}"
    settings = build(
        SynthesizeSettings,
        {
            "method": method,
            "data": options.data,
            "data_root": options.data_root,
            "epsilon": EPSILON,
            "seed": seed,
            "sampling_steps": SAMPLING_STEPS,
            "evaluate": False,
            # The data are public, so every run may have a ledger of its own.
            "ledger": folder.with_suffix(".sqlite"),
            method.replace("-", "_"): CASES[method][name].options,
        },
    )
    if not (folder / "metrics.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        resume, prepared = (folder / "config.toml").exists(), prepare(settings)
        if not CASES[method][name].apart:
            begun = _begun(prepared, options.work / f"{options.data}-{method}-begun-{seed}.pt")
            parts = {each.name: getattr(prepared, each.name) for each in fields(prepared)}
            prepared = Forked(**parts, begun=begun)
        synthesize(prepared, folder, resume=resume, say=print)
    return FinishedRun.open(folder)


def _begun(prepared: Prepared, path: Path) -> dict[str, Any]:
    """The state a step before pre-training ends; from a file, if another case left it there."""
    if not path.exists():
        # Public data: each case books its whole plan, this part included, when it goes on.
        trainer, steps = prepared.trainer(), prepared.plan.steps
        trainer.train(steps[MIXTURE] + steps["pre-training"] - 1)
        torch.save(trainer.state(), path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)
    return torch.load(path, weights_only=True)


# ---------------------------------------------------------------- the table


def _table(lines: list[dict[str, Any]]) -> str:
    rows = [
        "# Ablations of dp-promise and DP-SAD in small",
        "",
        "By `benchmarks/diffusion_ablations.py`. Each case changes one setting of the method's "
        f"default, with its private start, at a sound ε of {EPSILON:g} (record, zero-out, "
        f"δ = 1e-5) and with {SAMPLING_STEPS} sampling steps. Cases of one seed share mixture and "
        "pre-trained network. CNN: accuracy in per cent on all real test images after learning "
        f"from {_samples(lines)} samples alone; FID is under the project's own features. Mean over "
        "runs (lowest – highest). A claim is judged by runs that began from one pre-trained "
        "network. Seed 0 of dp-sad has two: the cases of conditioning and teacher began from the "
        "second, lambda-0.5 and T-100 from the first, all others once from each.",
    ]
    for data in DATA:
        of_data = [line for line in lines if line["data"] == data]
        if of_data:
            rows += ["", f"## {data}", "", *_figures(of_data), "", *_claims(of_data)]
    return "\n".join(rows) + "\n"


def _samples(lines: list[dict[str, Any]]) -> str:
    return " or ".join(f"{count:,}" for count in sorted({line["samples"] for line in lines}))


def _figures(lines: list[dict[str, Any]]) -> list[str]:
    rows = ["| method | case | CNN | FID | runs |", "| --- | --- | --- | --- | --- |"]
    for method, cases in CASES.items():
        for name in cases:
            if fid := _scores(lines, method, name, "fid"):
                cnn = [100 * score for score in _scores(lines, method, name, "cnn")]
                shown = _spread(cnn) if cnn else "no labels"
                rows.append(f"| {method} | {name} | {shown} | {_spread(fid)} | {len(fid)} |")
    return rows


def _claims(lines: list[dict[str, Any]]) -> list[str]:
    rows = ["| paper | claim | here | by |", "| --- | --- | --- | --- |"]
    for claim in CLAIMS:
        better = _by_network(lines, claim.method, claim.better, claim.metric)
        worse = _by_network(lines, claim.method, claim.worse, claim.metric)
        shared = sorted(better.keys() & worse.keys())
        verdict = _verdict(claim, [better[key] for key in shared], [worse[key] for key in shared])
        rows.append(f"| {claim.method}, {claim.where} | {claim.words} | {verdict} |")
    return rows


def _verdict(claim: Claim, better: list[float], worse: list[float]) -> str:
    """Whether a claim holds, by as many runs of either case; ranges that overlap show nothing."""
    unit, scale, sign = ("points", 100, 1) if claim.metric == "cnn" else ("FID", 1, -1)
    if not better:
        return f"not tested | {unit}"
    gain = sign * scale * (statistics.mean(better) - statistics.mean(worse))
    told = f"{gain:+.1f} {unit}, {len(better)} runs each"
    if len(better) < 2:
        return f"one run | {gain:+.1f} {unit}"
    if min(sign * x for x in better) > max(sign * x for x in worse):
        return f"holds | {told}"
    if max(sign * x for x in better) < min(sign * x for x in worse):
        return f"does not hold | {told}"
    return f"no difference seen | {told}"


def _scores(lines: list[dict[str, Any]], method: str, name: str, metric: str) -> list[float]:
    return list(_by_network(lines, method, name, metric).values())


def _by_network(
    lines: list[dict[str, Any]], method: str, name: str, metric: str
) -> dict[tuple[int, int], float]:
    """{(seed, which pre-trained network of that seed): score}; lines without a score left out."""
    key = {"method": method, "case": name}
    found = (line for line in lines if key.items() <= line.items())
    return {
        (line["seed"], line.get("network", 1)): line[metric]
        for line in found
        if line[metric] is not None
    }


def _spread(scores: list[float]) -> str:
    if len(scores) == 1:
        return f"{scores[0]:.1f}"
    return f"{statistics.mean(scores):.1f} ({min(scores):.1f} – {max(scores):.1f})"


if __name__ == "__main__":
    main()
