"""Whose labels the images of a mixture have."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from fedtranscribe.models.inference import draw_classes, labelled_samples
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.models.sharpener import Sharpener

SIDE, D = 8, 64


def mixture(known: tuple[bool, bool]) -> GaussianMixture:
    """Of two classes: one dark, one bright, both with much spread; `known` ones are sharpened."""
    sharpener = Sharpener(1, SIDE, 2).eval()
    sharpener.known.copy_(torch.tensor(known))
    axes = torch.eye(D, 1, dtype=torch.float64)
    return GaussianMixture(
        1,
        SIDE,
        2,
        centre=4 * axes[:, 0],
        axes=axes,
        counts=torch.tensor([3.0, 1.0]).double(),
        labels=torch.tensor([0, 1]),
        means=torch.tensor([[-1.0], [1.0]]).double(),
        roots=torch.full((2, 1, 1), 1.5).double(),
        texture=torch.zeros(D).double(),
        sharpener=sharpener,
    )


class Judge(nn.Module):
    """Names an image by its brightness."""

    multilabel = False

    def __init__(self) -> None:
        super().__init__()
        self.edge = nn.Parameter(torch.tensor(0.5))

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([self.edge - images.mean((1, 2, 3)), images.mean((1, 2, 3)) - 0.5], 1)


def bright(images: Tensor) -> Tensor:
    return (images.float().mean((1, 2, 3)) / 255 > 0.5).long()


def test_sharpened_images_have_the_students_labels_and_others_their_components():
    rng = torch.Generator().manual_seed(3)
    _, components = mixture((True, True)).sample(400, rng)
    for known in ((True, True), (False, True), (False, False)):
        images, labels = labelled_samples(mixture(known), Judge(), 400, seed=3)
        sharpened = torch.tensor(known)[components]
        assert torch.equal(labels[~sharpened], components[~sharpened])
        assert torch.equal(labels[sharpened], bright(images)[sharpened])
    assert not torch.equal(bright(images), components)
    blurred = replace(mixture((True, True)), sharpener=None)
    assert torch.equal(labelled_samples(blurred, Judge(), 400, seed=3)[1], components)


def test_what_the_student_takes_for_another_class_is_drawn_anew():
    wanted = torch.tensor([0, 1]).repeat(200)
    once = draw_classes(mixture((True, False)), None, wanted, torch.Generator().manual_seed(3))
    kept = draw_classes(mixture((True, False)), Judge(), wanted, torch.Generator().manual_seed(3))
    wrong = [(bright(images) != wanted) for images in (once, kept)]
    # A quarter is on the wrong side at a time, and four times there is another try.
    assert int(wrong[0][wanted == 0].sum()) > 30
    assert int(wrong[1][wanted == 0].sum()) < 5
    # What is not sharpened is taken as it comes.
    assert torch.equal(kept[wanted == 1], once[wanted == 1])
