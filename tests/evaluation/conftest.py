"""Tiny finished runs: on a user's own records, and on the packaged digits, declared public."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.config.evaluation import EvaluationSettings
from fedtranscribe.evaluation import fidelity as features
from fedtranscribe.models import Generator, build, save_network
from fedtranscribe.results.run_directory import GENERATOR, STUDENT, RunDirectory
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from tests.results import result_of

TINY = EvaluationSettings(
    samples=120, classifiers=("mlp", "lda", "gaussian-nb"), epochs=2, device="cpu"
)


@pytest.fixture
def quick_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """A feature network of two steps: what it has learned is not what is tested."""
    train = features.train_features
    monkeypatch.setattr(features, "train_features", lambda public: train(public, steps=2))
    features.registered.cache_clear()


@pytest.fixture
def transcribed(tiny_settings: TranscribeSettings, tmp_path: Path) -> FinishedRun:
    """A true transcription of the tiny `.npz`."""
    transcribe(prepare(tiny_settings), tmp_path / "transcribed", force=True)
    return FinishedRun.open(tmp_path / "transcribed")


@pytest.fixture
def own_run(tiny_data: Path, tmp_path: Path) -> FinishedRun:
    """As one leaves it: whatever is measured on the held-out part of the `.npz` is private."""
    run = make_run(tmp_path / "own", run={"accuracy": None}, classes=3, data=str(tiny_data))
    run.private.mkdir()
    (run.private / "accuracy.json").write_text('{"student": 0.5}')
    return run


@pytest.fixture
def public_run(tmp_path: Path) -> FinishedRun:
    """Untrained networks in the folder of a finished run on the packaged digits."""
    return make_run(tmp_path / "public")


def make_run(
    path: Path,
    *,
    generator: bool = True,
    run: dict[str, Any] | None = None,
    classes: int = 10,
    **settings: Any,
) -> FinishedRun:
    """A folder as `transcribe` leaves it, with untrained networks."""
    chosen = TranscribeSettings.model_validate({"data": "digits", "device": "cpu", **settings})
    folder = RunDirectory.create(path, chosen)
    save_network(build("cnn-small", classes, 1, 28, seed=1), path / STUDENT)
    if generator:
        save_network(Generator(8, 1, 28, 4, seed=1), path / GENERATOR)
    result_of(
        **{
            "epsilon": chosen.epsilon,
            "delta": chosen.delta,
            "unit": chosen.unit,
            "privacy": chosen.privacy,
            "noise_std": 0.2,
            "private": True,
            "rows": 100,
            "run": folder.run_id,
            "data": chosen.data,
            "accuracy": {"student": 0.5},
            "settings": json.loads(chosen.model_dump_json(exclude_none=True)),
            **(run or {}),
        }
    ).write(path)
    return FinishedRun.open(path)


def labelled(n: int, seed: int, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy 8x8 images that are brighter in a place per class: easy, but not trivial."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (n,), generator=rng)
    images = torch.randint(0, 200, (n, 1, 8, 8), generator=rng)
    for label in range(classes):
        images[labels == label, 0, label] += 55
    return images.to(torch.uint8), labels
