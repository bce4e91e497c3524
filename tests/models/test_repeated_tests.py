"""The same images, shown again and again to a student that learns."""

import torch

from fedtranscribe.data import ImageSet
from fedtranscribe.models import build
from fedtranscribe.models.inference import RepeatedTest, accuracy, logits_of


def test_a_linear_students_rows_are_computed_once_for_each_map(monkeypatch):
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (300, 1, 28, 28), dtype=torch.uint8, generator=rng)
    images = ImageSet("made", "made", pixels, torch.arange(300) % 10, 10)
    student = build("scatter", 10, 1, 28, seed=0)
    seen, forward = [], student.backbone.forward
    testing = RepeatedTest(student, images)

    def counted(part: torch.Tensor) -> torch.Tensor:
        seen.append(len(part))
        return forward(part)

    def expect_same() -> None:
        expected = logits_of(student, pixels)
        right = accuracy(student, pixels, images.labels)
        with monkeypatch.context() as patch:
            patch.setattr(student.backbone, "forward", counted)
            assert torch.equal(testing.logits(), expected)
            assert testing.accuracy() == right

    expect_same()
    with torch.no_grad():
        student.head.weight.add_(torch.randn(student.head.weight.shape, generator=rng))
    expect_same()  # another head, the same rows
    assert seen == [250, 50]
    student.backbone.set_axes(student.backbone.centre + 1, student.backbone.map * 2 + 0.01)
    expect_same()
    assert seen == [250, 50] * 2
    # A checkpoint that is read puts its values into the same tensors.
    student.load_state_dict(build("scatter", 10, 1, 28, seed=1).state_dict())
    expect_same()
    assert seen == [250, 50] * 3


def test_a_network_that_learns_all_layers_is_asked_anew():
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (20, 1, 28, 28), dtype=torch.uint8, generator=rng)
    images = ImageSet("made", "made", pixels, torch.arange(20) % 10, 10)
    student = build("cnn-small", 10, 1, 28, seed=0)
    testing = RepeatedTest(student, images)
    before = testing.logits()
    with torch.no_grad():
        student.backbone[0].weight.mul_(2)
    assert torch.equal(testing.logits(), logits_of(student, pixels))
    assert not torch.equal(testing.logits(), before)
