import pytest
import torch
from fedtranscribe.exchange import Moments

from fedtranscribe.config import DpsdSettings
from fedtranscribe.data import draw_shapes
from fedtranscribe.mechanisms import NoisyMoments, moment_sums
from fedtranscribe.methods.moments import (
    class_moments,
    fit_public_map,
    second_moments,
    set_head,
    train_generator,
)
from fedtranscribe.models import Generator, build

CLASSES = 3
FAINT = NoisyMoments(1e-3, by_class=False)
FAINT_BY_CLASS = NoisyMoments(1e-3, by_class=True)


def bars(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Grey images whose class is the direction of a bar."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    images = torch.randint(0, 60, (n, 1, 28, 28), generator=rng, dtype=torch.uint8)
    for image, label, at in zip(
        images, labels, torch.randint(4, 22, (n,), generator=rng), strict=True
    ):
        if label == 0:
            image[:, at : at + 2, :] = 250
        elif label == 1:
            image[:, :, at : at + 2] = 250
        else:
            image[0].diagonal(int(at) - 13).fill_(250)
    return images, labels


@pytest.fixture(scope="module")
def student():
    network = build("scatter", CLASSES, 1, 28)
    fit_public_map(network, draw_shapes(300, 1, 28, torch.Generator().manual_seed(0)), seed=0)
    return network


def answered(student, query, labels, images, by_class: bool) -> Moments:
    with torch.no_grad():
        student.backbone.map.copy_(query.map)
        rows = student.features(images.float() / 255)
    weights = torch.ones(len(rows))
    sums = moment_sums([(rows, labels, weights)], rows.shape[1], CLASSES if by_class else None)
    return Moments(query.id, sums.second, sums.by_class, (1, "head"))


def learned(student):
    """A student after both questions, answered without noise; and the second answer."""
    images, labels = bars(150, 1)
    first = second_moments(student, "run")
    shown = answered(student, first, labels, images, by_class=False)
    second = class_moments(first, shown, FAINT, "run")
    told = answered(student, second, labels, images, by_class=True)
    set_head(student, second, told, FAINT_BY_CLASS)
    return first, second, told


def test_moments_alone_teach_a_task(student):
    first, second, _ = learned(student)
    images, labels = bars(60, 2)
    right = (student(images.float() / 255).argmax(1) == labels).float().mean()
    assert float(right) > 0.9
    assert (first.id, second.id) == ("run/moments-0", "run/moments-1")
    assert (first.by_class, second.by_class) == (False, True)


def test_the_second_question_evens_out_what_the_first_showed(student):
    first, _, told = learned(student)
    images, labels = bars(150, 1)
    before = answered(student, first, labels, images, by_class=False).second[:-1, :-1]
    after = told.second[:-1, :-1]

    def weight_of_the_ten_largest(second: torch.Tensor) -> float:
        values = torch.linalg.eigvalsh(second)
        return float(values[-10:].sum() / values.sum())

    assert weight_of_the_ten_largest(after) < weight_of_the_ten_largest(before)


def test_the_public_map_depends_on_public_images_and_seed_alone(student):
    again = build("scatter", CLASSES, 1, 28, seed=9)
    fit_public_map(again, draw_shapes(300, 1, 28, torch.Generator().manual_seed(0)), seed=0)
    fresh = build("scatter", CLASSES, 1, 28)
    fit_public_map(fresh, draw_shapes(300, 1, 28, torch.Generator().manual_seed(0)), seed=0)
    assert torch.equal(again.backbone.map, fresh.backbone.map)
    # 300 images cannot show more than 300 axes.
    assert not bool(fresh.backbone.map[:, 300:].any())


def test_even_noise_alone_gives_a_finite_student(student):
    query = second_moments(student, "run")
    width = query.map.shape[1] + 1
    rng = torch.Generator().manual_seed(0)
    noise = 100 * torch.randn(width, width, generator=rng).double()
    loud = NoisyMoments(100.0, by_class=True)
    nothing = Moments("q", (noise + noise.T) / 2, noise[:, :CLASSES].clone(), (1, "head"))
    second = class_moments(query, nothing, loud, "run")
    set_head(student, second, nothing, loud)
    assert bool(torch.isfinite(student.head.weight).all())
    assert bool(torch.isfinite(student(bars(3, 0)[0].float() / 255)).all())


def test_the_generator_comes_closer_to_the_moments(student):
    _, _, told = learned(student)
    generator = Generator(8, 1, 28, 8)
    rng = torch.Generator().manual_seed(0)

    def train(steps: int) -> float:
        settings = DpsdSettings(moments_steps=steps)
        return train_generator(generator, student, told, settings, rng, lambda done, total: None)

    before = train(1)
    train(25)
    assert train(1) < before
    assert all(parameter.requires_grad for parameter in student.head.parameters())


def test_only_a_student_of_fixed_features_can_be_set():
    with pytest.raises(ValueError, match="cnn-small"):
        second_moments(build("cnn-small", CLASSES, 1, 28), "run")
