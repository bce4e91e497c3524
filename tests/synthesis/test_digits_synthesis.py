"""The run of a first-time user: packaged digits, no noise. Minutes."""

from pathlib import Path

import pytest

from fedtranscribe.config import SynthesizeSettings
from fedtranscribe.evaluation.evaluate import cnn_judge
from fedtranscribe.trainers.preparation import prepare
from fedtranscribe.trainers.synthesize import synthesize


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("figures")
def test_a_classifier_trained_on_samples_knows_real_digits(tmp_path: Path):
    settings = SynthesizeSettings(noise=False)
    result = synthesize(
        prepare(settings), tmp_path / "run", judge=cnn_judge(settings.seed)
    ).to_json()
    assert result["accuracy"]["downstream"] >= 0.8
    assert (tmp_path / "run" / "images.png").stat().st_size > 0
