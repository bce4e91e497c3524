"""Pictures of real size: sums take any, and what cannot is refused before anything is spent."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.methods.pretraining import GeneratorPretraining
from fedtranscribe.models.fixed_features import FIXED, coefficient_count, fixed_features, side_seen
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from tests.conftest import TINY_DPSD, TINY_TEACHERS

SIDE = 224


@pytest.fixture
def settings(tmp_path: Path) -> TranscribeSettings:
    """40 colour pictures of two classes: bright above, or below."""
    rng, labels = np.random.default_rng(0), np.arange(40) % 2
    pictures = rng.integers(0, 80, (40, SIDE, SIDE, 3), dtype=np.uint8)
    for picture, label in zip(pictures, labels, strict=True):
        picture[SIDE // 2 * label :][: SIDE // 2] += 120
    path = tmp_path / "pictures.npz"
    np.savez(path, images=pictures, labels=labels, classes=2)
    return TranscribeSettings(
        data=str(path),
        epsilon=200,
        budget=201,
        descent_rounds=2,
        dpsd=TINY_DPSD,
        teachers=TINY_TEACHERS,
    )


@pytest.mark.long
def test_sums_give_a_student_and_a_mixture_of_them(settings, tmp_path, monkeypatch):
    def never(*_):
        raise AssertionError("no network is trained where a mixture is the generator")

    monkeypatch.setattr(GeneratorPretraining, "step", never)
    prepared = prepare(settings)
    assert prepared.public is None, "no drawn images of that size are made"
    shown = transcribe(prepared, tmp_path / "run")
    assert shown.accuracy["student"] > 0.9
    run = FinishedRun.open(tmp_path / "run")
    assert isinstance(run.generator, GaussianMixture)
    images, labels = run.synthesise(4)
    assert images.shape == (4, 3, SIDE, SIDE)
    assert set(labels.tolist()) <= {0, 1}


@pytest.mark.long
def test_a_run_without_a_generator_goes_on_without_one(settings, tmp_path):
    alone = settings.model_copy(update={"with_generator": False})
    transcribe(prepare(alone), tmp_path / "run")
    assert FinishedRun.open(tmp_path / "run").generator is None


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (
            {"teacher": "cnn-small", "descent_rounds": None},
            r"28, 32, 64 .*got 224.*image-size 64",
        ),
        ({"mixture_share": 0.0}, r"without a mixture, got 224; .*--no-generator"),
    ],
)
def test_what_needs_smaller_images_is_refused_before_anything_is_spent(
    settings, tmp_path, changed, named
):
    with pytest.raises(ConfigError, match=named):
        prepare(settings.model_copy(update=changed))
    assert not list(tmp_path.glob("*.ledger.sqlite"))


@pytest.mark.parametrize("features", FIXED)
def test_our_features_see_larger_images_as_averages(features):
    fixed = fixed_features(features, 3)
    small = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    large = small.repeat_interleave(4, 2).repeat_interleave(4, 3)
    with torch.no_grad():
        torch.testing.assert_close(fixed(large), fixed(small))
    assert coefficient_count(features, 3, 256) == coefficient_count(features, 3, 64)
    assert (side_seen(features, 256), side_seen(features, 28)) == (64, 28)
    assert side_seen(f"resnet18/96@{64 * '0'}", 256) == 96
