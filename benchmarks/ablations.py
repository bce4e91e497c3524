"""The paper's ablations on the packaged digits, in gradient mode at a sound ε of 10.

    python benchmarks/ablations.py --work runs/ablations

- kd: classic instead of decoupled distillation (Fig. 6).
- clip: rows clipped instead of normalised (Fig. 5).
- no-one-hot, no-balance, no-activation: Eq. 8 without one of its terms (Table VI).
- teacher-discriminator: the generator learns from a teacher, not from the student (DPSD-T). That
  generator is NOT private; the student still is.

Each variant is a callable handed to `DPSD` or `MeanGradients`; the method knows nothing of them.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from utility import NoisyHolder, facts_of, plan_of

from fedtranscribe.config import DpsdSettings, TranscribeSettings
from fedtranscribe.data import DataSplit, NamedData, load
from fedtranscribe.holder.answering import Holder
from fedtranscribe.methods.dpsd import DPSD, GeneratorLoss, generator_loss
from fedtranscribe.models import Classifier, build, load_state, restore
from fedtranscribe.models.ensemble import Ensemble
from fedtranscribe.models.inference import accuracy
from fedtranscribe.models.teacher_training import shard_file, train_teachers
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions.gradients import MeanGradients, classic_distillation, gradient_of
from fedtranscribe.questions.kinds import by_kind
from fedtranscribe.questions.rows import RowBound
from fedtranscribe.results.progress import silent
from fedtranscribe.rounds.plan import KINDS
from fedtranscribe.runs.preparation import make_manifest
from fedtranscribe.runs.student_side import build_student_side, public_images

RESULTS = Path(__file__).parent / "results"
SHARDS = 250
# Of each run's own ledger: the data are public, and an ablation may cost more than it plans.
LIMIT = 100.0


def teacher_as_discriminator(teacher: Classifier) -> GeneratorLoss:
    """Eq. 8 with a fixed teacher in the student's place."""

    def loss(student: Classifier, images: Tensor, settings: DpsdSettings) -> Tensor:
        return generator_loss(teacher, images, settings)

    return loss


def variants(teacher: Classifier) -> dict[str, dict[str, Any]]:
    """What each line changes: settings of Eq. 8, the generator's loss, or the holder's side."""
    classic = gradient_of(classic_distillation)
    return {
        "dpsd": {},
        "kd": {"row_gradient": classic},
        "clip": {"gradient_bound": RowBound.CLIP},
        "no-one-hot": {"settings": {"one_hot_weight": 0.0}},
        "no-balance": {"settings": {"balance_weight": 0.0}},
        "no-activation": {"settings": {"activation_weight": 0.0}},
        "teacher-discriminator": {"loss": teacher_as_discriminator(teacher)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("runs/ablations"))
    parser.add_argument("--rows", type=int, default=4_000)
    parser.add_argument("--only", default="", help="one variant")
    options = parser.parse_args()
    split = load("digits")
    settings = TranscribeSettings(
        data="digits", teacher="cnn", privacy="data", rows=options.rows, shards=SHARDS
    )
    teachers = _teachers(settings, split, options.work)
    results = RESULTS / "ablations.jsonl"
    for name, changes in variants(_one_teacher(teachers)).items():
        if options.only not in ("", name):
            continue
        started = time.time()
        score = _run(settings, split, teachers, changes, options.work / f"{time.time_ns()}.sqlite")
        line = {
            "variant": name,
            "student": score,
            "rows": options.rows,
            "seconds": round(time.time() - started),
        }
        print(json.dumps(line), flush=True)
        with results.open("a") as stream:
            stream.write(json.dumps(line) + "\n")


def _teachers(settings: TranscribeSettings, split: DataSplit, work: Path) -> Ensemble:
    folder, device = work / "teachers", torch.device("cpu")
    work.mkdir(parents=True, exist_ok=True)
    manifest = make_manifest(settings, split.train, SHARDS, "full")
    quiet: Callable[[int, int], None] = lambda done, total: None  # noqa: E731
    train_teachers(split.train, manifest, folder, device=device, progress=quiet)
    return Ensemble(folder, device)


def _one_teacher(teachers: Ensemble) -> Classifier:
    m = teachers.manifest
    network = build(m.architecture, m.classes, m.channels, m.size)
    path = shard_file(teachers.folder, 0)
    restore(network, load_state(path), path)
    return network.requires_grad_(False).eval()


def _run(
    settings: TranscribeSettings,
    split: DataSplit,
    teachers: Ensemble,
    changes: dict[str, Any],
    ledger_path: Path,
) -> float:
    train, test = split.train, split.test
    plan = plan_of(settings, facts_of(train, SHARDS))
    private = NamedData.of("digits", split)
    public = public_images(settings, train.channels, train.size, private)
    device = torch.device("cpu")
    side = build_student_side(settings, train.classes, train.channels, train.size, public, device)
    dpsd = settings.dpsd.model_copy(update={"rows": plan.rows, **changes.get("settings", {})})
    method = DPSD(
        side.student,
        side.network,
        kind=KINDS[settings.privacy],
        settings=dpsd,
        rng=side.rng,
        run=ledger_path.stem,
        row_gradient=changes.get("row_gradient"),
        loss=changes.get("loss", generator_loss),
    )
    limit = Budget(LIMIT, settings.delta, Unit.RECORD, Adjacency.ZERO_OUT)
    with Ledger.open(ledger_path, train.data_id, limit) as ledger:
        gradients = MeanGradients(
            teachers,
            row_gradient=changes.get("row_gradient"),
            bound=changes.get("gradient_bound", RowBound.UNIT),
        )
        holder = NoisyHolder(
            Holder(by_kind([gradients]), ledger, method.run, positional_ids=train.positional), plan
        )
        while not method.finished:
            query = method.ask()
            method.learn(query, holder.answer(query))
    method.finish(silent)
    return accuracy(side.student, test.images, test.labels)


if __name__ == "__main__":
    main()
