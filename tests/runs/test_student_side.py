"""The axes that a student of fixed features starts from."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.data import ImageSet
from fedtranscribe.methods.moments import features_of
from fedtranscribe.models import Classifier
from fedtranscribe.runs import student_side
from fedtranscribe.runs.student_side import build_student_side


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hundred shapes, which no other test comes to see."""
    monkeypatch.setattr(student_side, "_AXES", 100)
    monkeypatch.setattr(student_side, "_shape_count", lambda size: 100)
    student_side._drawn_map.cache_clear()
    yield
    student_side._drawn_map.cache_clear()


def student(public: ImageSet | None = None, **chosen: Any) -> Classifier:
    settings = TranscribeSettings(data="digits", student="scatter", **chosen)
    return build_student_side(settings, 10, 1, 28, public, torch.device("cpu")).student


def test_a_later_run_of_a_process_starts_from_the_same_axes():
    first = features_of(student())
    centre, axes = first.centre.clone(), first.map.clone()
    # What a run does to its own student reaches no other.
    first.map.zero_()
    first.centre.zero_()
    for again in (student(), student(epsilon=1.0)):
        assert torch.equal(features_of(again).map, axes)
        assert torch.equal(features_of(again).centre, centre)
    assert student_side._drawn_map.cache_info().misses == 1
    student_side._drawn_map.cache_clear()
    assert torch.equal(features_of(student()).map, axes)
    assert not torch.equal(features_of(student(seed=1)).map, axes)


def test_public_images_of_ones_own_have_axes_of_their_own():
    drawn = features_of(student()).map
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (60, 1, 28, 28), generator=rng, dtype=torch.uint8)
    public = ImageSet("mine", "mine", images, torch.zeros(60).long(), 2)
    own = features_of(student(public, dpsd={"pretrain_steps": 1})).map
    assert not torch.equal(own, drawn)
    # 60 images cannot show more than 60 axes.
    assert not bool(own[:, 60:].any())
