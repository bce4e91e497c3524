import pytest
import torch

from fedtranscribe.errors import ConfigError
from fedtranscribe.models import Generator, xavier_


@pytest.mark.parametrize("size", [28, 32, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_the_right_shape_in_the_unit_range(size, channels):
    generator = Generator(16, channels, size, width=8)
    images = generator(torch.randn(5, 16, generator=torch.Generator().manual_seed(0)))
    assert images.shape == (5, channels, size, size)
    assert images.min() >= 0
    assert images.max() <= 1
    assert images.std() > 0.05


def test_gradients_reach_the_latent_vectors_and_every_weight():
    generator = Generator(16, 1, 28, width=8)
    z = torch.randn(4, 16, requires_grad=True)
    generator(z).square().sum().backward()
    assert z.grad is not None
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in generator.parameters())


def test_the_seed_fixes_the_weights():
    first, again, other = (Generator(16, 1, 28, width=8, seed=s) for s in (1, 1, 2))
    states = [torch.cat([p.flatten() for p in g.parameters()]) for g in (first, again, other)]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_xavier_bounds_and_biases():
    generator = Generator(16, 1, 28, width=8)
    last = generator.layers[-1]
    with torch.no_grad():
        last.bias.fill_(3)
    xavier_(generator)
    bound = (6 / (9 * (last.in_channels + last.out_channels))) ** 0.5
    assert last.bias.abs().max() == 0
    assert 0.5 * bound < last.weight.abs().max() <= bound


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ((16, 1, 30), "size=30"),
        ((0, 1, 28), "latent_dim=0"),
        ((16, 0, 28), "channels=0"),
        ((16, 1, 28, 0), "width=0"),
    ],
)
def test_bad_settings_are_named(facts, words):
    with pytest.raises(ConfigError, match=words):
        Generator(*facts)
