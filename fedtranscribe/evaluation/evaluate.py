"""One finished run measured: student, classifiers on its synthetic images, fidelity."""

import importlib.util
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtranscribe.config import build
from fedtranscribe.config.evaluation import NETS, XGBOOST, EvaluationSettings
from fedtranscribe.data import DataSplit, ImageSet, NamedData
from fedtranscribe.data.imageset import NO_LABEL, groups_of
from fedtranscribe.errors import ConfigError
from fedtranscribe.evaluation.downstream import downstream
from fedtranscribe.evaluation.fidelity import feature_source, measure
from fedtranscribe.evaluation.figures import draw_classes, draw_neighbours
from fedtranscribe.files import write_atomically
from fedtranscribe.models import Classifier, pick_device
from fedtranscribe.models.classifier import probabilities_of
from fedtranscribe.models.inference import (
    count,
    findings_of,
    logits_of,
    named_by,
    operating_point,
    predict,
)
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.results.allowed import expect_allowed
from fedtranscribe.results.figures import figures_available
from fedtranscribe.results.progress import Progress, silent
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.trainers.synthesize import Judge


def cnn_judge(seed: int) -> Judge:
    """The small CNN of the field's evaluations, chosen on synthetic images only.

    Args:
        seed: of its training; public.
    """
    wanted = build(EvaluationSettings, {"classifiers": "cnn", "seed": seed})

    def judge(
        images: Tensor, labels: Tensor, test: ImageSet, device: torch.device, progress: Progress
    ) -> float | None:
        real = test.images, test.labels
        return downstream((images, labels), real, test.classes, wanted, device, progress)["cnn"]

    return judge


_CHUNK = 500

Embed = Callable[[Tensor], Tensor]


def nearest(queries: Tensor, records: Tensor, k: int, embed: Embed) -> Tensor:
    """Rows of the k nearest records of each query, nearest first.

    Args:
        queries: uint8 [m, ch, s, s].
        records: uint8 [n, ch, s, s].
        k: how many; fewer where there are fewer records.
        embed: images -> float [·, d]; distance is Euclidean there.

    Returns:
        int64 [m, min(k, n)].
    """
    wanted = embed(queries)
    best, rows = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
    for first, part in _chunks(records):
        distance = torch.cdist(wanted, embed(part))
        seen = torch.arange(first, first + len(part)).expand(len(queries), -1)
        best, rows = torch.cat([best, distance], 1), torch.cat([rows, seen], 1)
        best, order = best.topk(min(k, best.shape[1]), largest=False)
        rows = rows.gather(1, order)
    return rows


def pixels(images: Tensor) -> Tensor:
    """uint8 [n, ch, s, s] -> float [n, ch * s * s] in [0, 1]."""
    return images.flatten(1).float() / 255


def features_of(student: Classifier) -> Embed:
    """What the student sees: the input of its last layer."""

    def embed(images: Tensor) -> Tensor:
        device = next(student.parameters()).device
        with torch.no_grad():
            return student.features(images.to(device).float() / 255).cpu()

    return embed


def _chunks(records: Tensor) -> Iterator[tuple[int, Tensor]]:
    first = 0
    for part in records.split(_CHUNK):
        yield first, part
        first += len(part)


EVALUATION = "evaluation.json"
SAMPLES = "samples.png"
NEIGHBOURS = "neighbours.png"

STAMP = "measured on the holder's own held-out records: NOT PRIVATE, do not release"
OWN_RECORDS = "the holder's own held-out records: measured under private/, never part of a release"
_NO_GENERATOR = "the run has no generator: its student's accuracy only"
_NO_LABELS = "the run's images do not have the records' labels: no classifier can learn from them"
_DRAWN = "synthetic images"
_QUERIES = 10
_NEIGHBOURS = 4
_SAMPLES = 20_000
_BATCH = 250


def check_libraries(settings: EvaluationSettings) -> None:
    """Check that what an evaluation needs is installed, without importing any of it.

    Raises:
        ConfigError: says how to install it.
    """
    needed = ["torch_fidelity"] if settings.fidelity else []
    needed += ["sklearn"] if set(settings.classifiers) - {*NETS} else []
    needed += ["xgboost"] if XGBOOST in settings.classifiers else []
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"This evaluation needs {' and '.join(missing)}: "
            "pip install 'fedtranscribe[evaluation]'."
        )


def evaluate(
    run: FinishedRun, settings: EvaluationSettings, progress: Progress = silent
) -> dict[str, Any]:
    """Measure a run and write the figures into its folder, over those of an earlier time.

    Args:
        run: a finished one.
        settings: samples, classifiers, features, seed.
        progress: shows long work.

    Returns:
        What `evaluation.json` holds. Where the real images are a user's own records, `private`
        comes on top: the figures that rest on them, which are in no file outside `private/`.

    Raises:
        ConfigError: a library is missing, or the device is, or the images that a feature network
            would learn from are the private records.
        DataError: the real images are not where the run found them.
        ModelError: Inception weights are absent or damaged.
        StorageError: the folder cannot be written.
    """
    check_libraries(settings)
    if settings.at is not None and not (run.student and run.student.takes_thresholds):
        raise ConfigError(
            f"Expected --at {settings.at} with a student of two classes, or of several labels per "
            "image; leave it out."
        )
    device = pick_device(settings.device)
    # Data are looked for before any work, and judged in the same breath whether they are public.
    split, public = run.data(settings.data_root), run.declared_public
    if run.student is not None:
        run.student.to(device)
    head = {"run": run.result.run, "data": run.result.data}
    samples = settings.samples or run.usual_samples(_SAMPLES)
    tail = {
        "samples": samples if run.generator is not None else 0,
        "seed": settings.seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    alone, real = _measured(run, samples, split, settings, device, progress)
    if public:
        words = f"{len(split.test)} held-out images of a public benchmark, declared public"
        result = {**head, "real": words, **_joined(alone, real), **tail}
        _publish(result, run)
        return result
    full = {**head, "real": STAMP, **_joined(alone, real), **tail}
    _write(full, run.private / EVALUATION)
    result = {**head, "real": OWN_RECORDS, **alone, **tail}
    _publish(result, run)
    return result | {"private": {"stamp": STAMP, **real}}


def _measured(
    run: FinishedRun,
    samples: int,
    split: DataSplit,
    settings: EvaluationSettings,
    device: torch.device,
    progress: Progress,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What follows from the networks alone, and what rests on real images."""
    real: dict[str, Any] = {}
    if run.student is not None:
        real["student"] = score_student(run.student, split.test)
        if settings.at is not None:
            points = _points(run.student, split.test, settings.at)
            real["student"]["operating_point"] = points if run.student.multilabel else points[0]
    if run.generator is None:
        return {"note": _NO_GENERATOR}, real
    source = None
    if settings.fidelity:
        asked = run.result.asked
        source = feature_source(settings, asked, NamedData.of(asked.data, split))
    if not isinstance(run.generator, GaussianMixture):  # drawn on the CPU
        run.generator.to(device)
    progress(_DRAWN, 0, 1)
    images, labels = run.synthesise(samples, settings.seed, progress)
    progress(_DRAWN, 1, 1)
    alone: dict[str, Any] = {}
    if run.student is not None:
        alone["synthetic"] = describe(run.student, images, labels)
    if source is not None:
        progress("fidelity", 0, 1)
        found = measure(images, split.test.images, source, device)
        progress("fidelity", 1, 1)
        facts = {"features": source.words, "samples": len(images)}
        unary = {name: found.pop(name) for name in ("inception_score", "inception_score_std")}
        alone["fidelity"] = {**unary, **facts}
        real["fidelity"] = {**found, **unary, **facts, "real": len(split.test)}
    held = split.test.images, split.test.labels
    if run.labelled:
        real["downstream"] = downstream(
            (images, labels), held, split.test.classes, settings, device, progress
        )
    else:
        alone["note"] = _NO_LABELS
    if figures_available():
        names = run.result.class_names if run.labelled else None
        if labels.ndim == 2 and names is not None:
            names = (NO_LABEL, *names)
        draw_classes(images, groups_of(labels), run.path / SAMPLES, names)
        _draw_neighbours(run, images[:_QUERIES], split.train.images)
    return alone, real


def score_student(student: Classifier, test: ImageSet) -> dict[str, Any]:
    """The student on real held-out images.

    Returns:
        accuracy; balanced, its mean over classes; per_class, None for a class without images;
        confusion, a row per true class. Of several labels, accuracy over all decisions, and
        findings.
    """
    if student.multilabel:
        logits = logits_of(student, test.blocks())
        right = (named_by(student, logits) == test.labels).double().mean()
        found = findings_of(logits, test.labels)
        return {"accuracy": float(right), "findings": found.to_json()}
    confusion = count(test.labels, predict(student, test.blocks()), test.classes)
    totals = confusion.sum(1).tolist()
    right = confusion.diagonal().tolist()
    recalls = [hits / n if n else None for hits, n in zip(right, totals, strict=True)]
    there = [recall for recall in recalls if recall is not None]
    return {
        "accuracy": sum(right) / len(test),
        "balanced": sum(there) / len(there),
        "per_class": recalls,
        "confusion": confusion.tolist(),
    }


def _points(student: Classifier, test: ImageSet, at: str) -> list[dict[str, Any]]:
    """What threshold has the wanted share on real held-out images, and both shares there.

    Of two classes for the second one; of several labels for each class.
    """
    wanted, _, least = at.partition("=")
    logits = logits_of(student, test.blocks())
    sure, labels = probabilities_of(logits, multilabel=student.multilabel), test.labels
    if not student.multilabel:
        sure, labels = sure[:, 1:], labels[:, None]
    points = []
    for of_class, has in zip(sure.T, labels.T, strict=True):
        if len(has.unique()) < 2:
            raise ConfigError(
                f"Expected held-out images with and without each class for --at {at}; leave it out."
            )
        found = operating_point(of_class, has, wanted, float(least))
        shares = zip(("threshold", "sensitivity", "specificity"), found, strict=True)
        points.append({"at": at, **dict(shares)})
    return points


def describe(student: Classifier, images: Tensor, labels: Tensor) -> dict[str, Any]:
    """What the student makes of synthetic images: shares of classes, and how sure it is."""
    device = next(student.parameters()).device
    with torch.no_grad():
        sure = [
            probabilities_of(student(part.to(device).float() / 255), multilabel=student.multilabel)
            .amax(-1)
            .cpu()
            for part in images.split(_BATCH)
        ]
    has = labels if labels.ndim == 2 else F.one_hot(labels, student.classes)
    shares = has.float().mean(0)
    return {
        "class_shares": [round(share, 6) for share in shares.tolist()],
        "confidence": float(torch.cat(sure).mean()),
    }


def _draw_neighbours(run: FinishedRun, synthetic: Tensor, records: Tensor) -> None:
    near = nearest(synthetic, records, _NEIGHBOURS, pixels)
    alike = None
    if run.student is not None:
        alike = records[nearest(synthetic, records, _NEIGHBOURS, features_of(run.student))]
    draw_neighbours(synthetic, records[near], alike, run.private / NEIGHBOURS)


def _joined(alone: dict[str, Any], real: dict[str, Any]) -> dict[str, Any]:
    """Both halves in the order of a reader's questions; the fuller `fidelity` stays."""
    both = {**alone, **real}
    order = ("student", "downstream", "fidelity", "synthetic", "note")
    return {name: both[name] for name in order if name in both}


def _publish(result: dict[str, Any], run: FinishedRun) -> None:
    expect_allowed(EVALUATION, result)
    _write(result, run.path / EVALUATION)


def _write(result: dict[str, Any], path: Path) -> None:
    text = json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, text.encode())
