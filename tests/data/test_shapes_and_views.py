import pytest
import torch

from fedtranscribe.data import draw_shapes
from fedtranscribe.data.shapes import augment


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (1, 64)])
def test_shapes_are_varied_light_figures_on_a_dark_ground(channels: int, size: int):
    images = draw_shapes(40, channels, size, rng())
    assert images.shape == (40, channels, size, size)
    assert images.dtype == torch.uint8
    assert len({bytes(image.numpy().tobytes()) for image in images}) == 40
    assert images.float().mean() < 110, "mostly ground"
    assert int(images.amax()) > 200, "with light figures"


def test_shapes_depend_on_their_generator_alone():
    assert torch.equal(draw_shapes(8, 1, 28, rng(1)), draw_shapes(8, 1, 28, rng(1)))
    assert not torch.equal(draw_shapes(8, 1, 28, rng(1)), draw_shapes(8, 1, 28, rng(2)))


def test_views_stay_in_range_and_differ():
    images = draw_shapes(16, 1, 28, rng()).float() / 255
    views = augment(images, 1.0, rng())
    assert views.shape == images.shape
    assert float(views.min()) >= 0
    assert float(views.max()) <= 1
    assert ((views - images).abs().mean((1, 2, 3)) > 1e-3).all()
    assert augment(images, 0.0, rng()) is images


def test_stronger_views_are_further_from_the_image():
    images = draw_shapes(64, 1, 28, rng()).float() / 255
    distance = [float((augment(images, s, rng()) - images).abs().mean()) for s in (0.2, 0.6, 1.0)]
    assert distance == sorted(distance)
