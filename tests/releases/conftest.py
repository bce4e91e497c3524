"""Finished runs, made once: on somebody's own records, with a seed, on a benchmark, federated."""

import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.flower.apps import settings_from
from fedtranscribe.flower.simulated import _serve, simulated_client_app
from fedtranscribe.noise.sources import SeededNoise
from fedtranscribe.releases import make_release
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from tests.conftest import TINY_DPSD, TINY_TEACHERS
from tests.federation.local_grid import LocalGrid

OWN = "scans-of-ward-seven"
# So many that shares of the held-out ones have long decimals, which stand nowhere by chance.
RECORDS = 235


@dataclass(frozen=True)
class Made:
    """A run and what it was made from."""

    run: Path
    data: Path | None = None
    ledger: Path | None = None


def own_data(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    labels = np.arange(RECORDS) % 3
    images = rng.integers(0, 80, (RECORDS, 28, 28)) + 60 * labels[:, None, None]
    path = folder / f"{OWN}.npz"
    ids = np.array([f"patient-{i}" for i in range(RECORDS)])
    np.savez(path, images=images.astype(np.uint8), labels=labels, ids=ids, classes=3)
    return path


def local(folder: Path, data: Path | None, **options) -> Made:
    ledger = folder / "book-of-ward-seven.sqlite"
    settings = TranscribeSettings(
        data=str(data) if data else "digits",
        teacher="cnn-small",
        student="cnn-small",
        device="cpu",
        ledger=ledger,
        dpsd=TINY_DPSD,
        teachers=TINY_TEACHERS,
        **{"shards": 20, "rows": 40, **options},
    )
    transcribe(prepare(settings), folder / "run-of-ward-seven", force=True)
    return Made(folder / "run-of-ward-seven", data, ledger)


@pytest.fixture(scope="session")
def own(tmp_path_factory) -> Made:
    """On a user's own records."""
    folder = tmp_path_factory.mktemp("own")
    return local(folder, own_data(folder))


@pytest.fixture(scope="session")
def seeded(tmp_path_factory) -> Made:
    """With noise that anybody can draw again."""
    folder = tmp_path_factory.mktemp("seeded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedtranscribe.holder.answering.OsNoise", lambda: SeededNoise(0))
        return local(folder, own_data(folder))


@pytest.fixture(scope="session")
def benchmark(tmp_path_factory) -> Made:
    """On the packaged digits, whose test part is public by declaration."""
    return local(tmp_path_factory.mktemp("benchmark"), None)


def federated(folder: Path, **options) -> Made:
    config = {
        "data": str(own_data(folder)),
        "holders": 3,
        "alpha": 10.0,
        "shards": 2,
        "teacher": "cnn-small",
        "student": "cnn-small",
        "rows": 20,
        "force": True,
        "device": "cpu",
        "out": str(folder / "run"),
        "teachers.steps": 2,
        "dpsd.round-rows": 10,
        "dpsd.batch": 8,
        "dpsd.latent-dim": 8,
        "dpsd.generator-width": 4,
        "dpsd.pretrain-steps": 2,
        "dpsd.generator-steps": 1,
        "dpsd.student-steps": 1,
        "dpsd.finish-steps": 1,
        "baseline.rounds": 1,
        "baseline.local-steps": 2,
        "baseline.batch": 8,
        **options,
    }
    grid = LocalGrid(simulated_client_app("toy"), {1: {}, 2: {}, 3: {}}, config)
    _serve(grid, settings_from(config), folder / "run")
    return Made(folder / "run", Path(config["data"]))


@pytest.fixture(scope="session")
def central(tmp_path_factory) -> Made:
    """Three holders and a server that adds the noise."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("central")
        patch.setenv("FEDTRANSCRIBE_HOME", str(folder / "home"))
        return federated(folder, noise="central")


@pytest.fixture(scope="session")
def fedavg(tmp_path_factory) -> Made:
    """A baseline without any privacy."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        folder = tmp_path_factory.mktemp("fedavg")
        patch.setenv("FEDTRANSCRIBE_HOME", str(folder / "home"))
        return federated(folder, method="fedavg")


@pytest.fixture(scope="session")
def made_once(own: Made, tmp_path_factory) -> Path:
    """The release of `own`; to be looked at only."""
    return make_release(own.run, tmp_path_factory.mktemp("made") / "release").folder


@pytest.fixture
def released(made_once: Path, tmp_path: Path) -> Path:
    """A release of `own` that a test may spoil."""
    return Path(shutil.copytree(made_once, tmp_path / "release"))


@pytest.fixture
def run(own: Made, tmp_path: Path) -> Path:
    """A copy of the run `own` that a test may spoil."""
    return Path(shutil.copytree(own.run, tmp_path / "run"))
