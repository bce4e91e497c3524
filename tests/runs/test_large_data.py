"""What a run says about the time that features of many records take."""

from pathlib import Path

import numpy as np
import pytest

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.runs import preparation
from fedtranscribe.runs.preparation import prepare


def said(path: Path) -> list[str]:
    settings = TranscribeSettings(data=str(path), epsilon=50, budget=51)
    return [*preparation.words_of_a_long_sum(prepare(settings))]


def test_words_do_not_follow_how_many_images_a_patient_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(preparation, "_MANY", 100)
    monkeypatch.setattr(preparation, "_seconds_per_record", lambda *_: 60.0)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (300, 28, 28), dtype=np.uint8)
    labels, ids = np.arange(300) % 3, np.array([f"p{i // 2}" for i in range(300)])
    found = []
    # In the second file each patient has one image; many patients are in the training part.
    for name, kept in (("two", slice(None)), ("one", slice(None, None, 2))):
        path = tmp_path / f"{name}.npz"
        np.savez(path, images=images[kept], labels=labels[kept], ids=ids[kept], classes=3)
        found.append(said(path))
    assert found[0] == found[1]
    assert len(found[0]) == 1
    assert "records, at one image each, take about" in found[0][0]


def test_few_records_need_no_words(tiny_data: Path):
    assert said(tiny_data) == []
