"""What several tests share: tiny private data, and settings that finish in seconds."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

from fedtranscribe.config import DpsdSettings, TeacherSettings, TranscribeSettings
from fedtranscribe.models import fixed_randomness
from fedtranscribe.privacy import accountant

# The same examples at every run: no test fails by chance. To look for new ones:
# pytest --hypothesis-profile explore
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.register_profile("explore", derandomize=False, print_blob=True)
hypothesis.settings.load_profile("repeatable")

# Ledgers of the person who runs the tests are looked for below the home, and belong to no test.
os.environ.setdefault("MPLCONFIGDIR", str(Path.home() / ".config" / "matplotlib"))
_HOME = tempfile.TemporaryDirectory(prefix="fedtranscribe-home-")
os.environ["HOME"] = _HOME.name

TINY_DPSD = DpsdSettings(
    round_rows=10,
    batch=8,
    student_steps=2,
    finish_steps=2,
    generator_steps=1,
    latent_dim=8,
    generator_width=4,
    pretrain_steps=2,
    sharpen_steps=2,
)
TINY_TEACHERS = TeacherSettings(steps=2, batch=4, copies=2)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test begins without ledgers."""
    home = tmp_path / "home"
    monkeypatch.setenv("FEDTRANSCRIBE_HOME", str(home))
    return home


@pytest.fixture(scope="module")
def coarse_grid() -> Iterator[None]:
    """A module's plans of DP-SGD cost a little more, and are calibrated several times as fast.

    Coarser grids are sound, too. For tests of runs; what they cost exactly is tested elsewhere.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accountant, "GRID", 10 * accountant.GRID)
        accountant._quote.cache_clear()
        yield
    accountant._quote.cache_clear()


@pytest.fixture
def without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases have no ONNX, whose export takes most of the time."""
    monkeypatch.setattr("fedtranscribe.releases.writing.export_onnx", lambda _: None)


NETWORK = "squeezenet1_1"
"""torchvision's smallest."""


@pytest.fixture(scope="session")
def public_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of `NETWORK` in torchvision's layout, from a seed."""
    from torchvision import models

    path = tmp_path_factory.mktemp("public") / "squeezenet.pth"
    with fixed_randomness(3):
        torch.save(models.get_model(NETWORK, weights=None).state_dict(), path)
    return path


@pytest.fixture
def tiny_data(tmp_path: Path) -> Path:
    """60 grey 28x28 images of 3 classes with persistent ids, as `.npz`."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    images = rng.integers(0, 80, (60, 28, 28)) + 60 * labels[:, None, None]
    path = tmp_path / "tiny.npz"
    np.savez(
        path,
        images=images.astype(np.uint8),
        labels=labels,
        ids=np.array([f"patient-{i}" for i in range(60)]),
        classes=3,
    )
    return path


@pytest.fixture
def tiny_settings(tiny_data: Path) -> TranscribeSettings:
    """A whole transcription in a second or two."""
    return TranscribeSettings(
        data=str(tiny_data),
        teacher="cnn-small",
        student="cnn-small",
        shards=20,
        rows=40,
        dpsd=TINY_DPSD,
        teachers=TINY_TEACHERS,
    )
