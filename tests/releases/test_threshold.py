"""A threshold that was chosen on public images goes with a release of two classes."""

from pathlib import Path

import numpy as np
import pytest
import torch

import fedtranscribe
from fedtranscribe.config import TranscribeSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.releases import make_release, verify
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe

pytestmark = pytest.mark.usefixtures("without_onnx")
CHOSEN_ON = "the *public* test images of somebody"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    images = rng.integers(0, 80, (60, 28, 28)) + 60 * labels[:, None, None]
    named = {"labels": labels, "ids": np.arange(60), "classes": 2}
    np.savez(tmp_path / "two.npz", images=images.astype(np.uint8), **named)
    settings = TranscribeSettings(
        data=str(tmp_path / "two.npz"), epsilon=50, budget=51, with_generator=False
    )
    transcribe(prepare(settings), tmp_path / "run")
    return tmp_path / "run"


def test_it_is_stated_on_the_card_and_used(run: Path):
    images = torch.rand(40, 1, 28, 28)
    plain = fedtranscribe.load(make_release(run).folder)
    assert plain.threshold is None
    likely = plain.probabilities(images)[:, 1]
    middle = float(likely.median())
    folder = make_release(run, threshold=middle, chosen_on=CHOSEN_ON).folder
    assert verify(folder).ok
    release = fedtranscribe.load(folder)
    assert release.threshold == pytest.approx(middle)
    assert torch.equal(release.predict(images), (likely >= middle).long())
    assert torch.equal(release.probabilities(images), plain.probabilities(images))
    card = (folder / "card.md").read_text(encoding="utf-8")
    line = next(line for line in card.splitlines() if "- Threshold" in line)
    assert f"a probability of {middle:.6g} on" in line
    assert r"the \*public\* test images of somebody" in line
    (folder / "card.md").write_text(card.replace(line, ""), encoding="utf-8")
    failed = {check.name: check.words for check in verify(folder).checks if not check.ok}
    assert "its threshold is not what privacy.json says" in failed["card"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"threshold": 0.5}, "Expected threshold=0.5 and chosen_on=None together"),
        ({"chosen_on": CHOSEN_ON}, "together"),
        ({"threshold": 0.0, "chosen_on": CHOSEN_ON}, "threshold=0.0 above 0 and up to 1"),
        ({"threshold": float("nan"), "chosen_on": CHOSEN_ON}, "threshold=nan above 0"),
        ({"threshold": 0.5, "chosen_on": "a\nb"}, "as one line"),
    ],
)
def test_what_makes_no_threshold_is_refused(run: Path, given, message: str):
    with pytest.raises(ConfigError, match=message):
        make_release(run, **given)
    assert not (run / "release").exists()


def test_only_two_classes_have_one(own, tmp_path: Path):
    with pytest.raises(
        ConfigError, match="the student takes no threshold, and 1 threshold is stated"
    ):
        make_release(own.run, tmp_path / "release", threshold=0.5, chosen_on=CHOSEN_ON)
