"""A private training in seconds: 48 tiny images, three steps per phase."""

from pathlib import Path

import numpy as np
import pytest
from synthesis_settings import TINY

from fedtranscribe.config import DpPromiseOptions, SynthesizeSettings


@pytest.fixture
def small_data(tmp_path: Path) -> Path:
    """48 grey 16x16 images of 3 classes to train on, 12 held out."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    images = (rng.integers(0, 80, (60, 16, 16)) + 60 * labels[:, None, None]).astype(np.uint8)
    path = tmp_path / "small.npz"
    np.savez(
        path,
        images=images[:48],
        labels=labels[:48],
        ids=np.array([f"patient-{i}" for i in range(48)]),
        test_images=images[48:],
        test_labels=labels[48:],
        classes=3,
    )
    return path


@pytest.fixture
def tiny_synthesis(small_data: Path, tmp_path: Path) -> SynthesizeSettings:
    """dp-promise at ε = 1, which the accountant finds quickly; a checkpoint after every step."""
    return SynthesizeSettings(
        data=str(small_data),
        ledger=tmp_path / "book.sqlite",
        epsilon=1.0,
        size="tiny",
        sampling_steps=2,
        samples=60,
        physical_batch=4,
        checkpoint_seconds=0,
        dp_promise=DpPromiseOptions(**TINY),
    )


@pytest.fixture(scope="module", autouse=True)
def quick_accountant(coarse_grid: None) -> None:
    """Calibrating takes longer than the training."""


@pytest.fixture(autouse=True)
def no_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing a grid takes longer than all the training here; tests that want one say so."""
    if "figures" not in request.fixturenames:
        monkeypatch.setattr("fedtranscribe.trainers.synthesize.figures_available", lambda: False)


@pytest.fixture
def figures() -> None:
    """Draw grids as a user's run does."""
