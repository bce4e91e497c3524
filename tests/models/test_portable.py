"""A network's file says how to build it again."""

import pytest
import torch

from fedtranscribe.errors import CorruptWeightsError, WeightsNotFoundError
from fedtranscribe.models import Classifier, Generator, build, load_network, save, save_network


@pytest.mark.parametrize("name", ["cnn-small", "cnn-wide", "resnet18"])
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32)])
def test_a_classifier_comes_back_as_it_was(tmp_path, name, channels, size):
    network = build(name, 4, channels, size, seed=3).eval()
    save_network(network, tmp_path / "n.safetensors")
    back = load_network(tmp_path / "n.safetensors")
    assert isinstance(back, Classifier)
    images = torch.rand(3, channels, size, size)
    assert torch.equal(back(images), network(images))


def test_a_generator_comes_back_as_it_was(tmp_path):
    generator = Generator(8, 3, 64, 4, seed=5).eval()
    save_network(generator, tmp_path / "g.safetensors")
    back = load_network(tmp_path / "g.safetensors")
    assert isinstance(back, Generator)
    latent = torch.randn(2, 8)
    assert torch.equal(back(latent), generator(latent))


def test_a_file_that_says_nothing_is_refused(tmp_path):
    save(build("cnn-small", 3, 1, 28), tmp_path / "n.safetensors")
    with pytest.raises(CorruptWeightsError, match="does not say which network"):
        load_network(tmp_path / "n.safetensors")
    with pytest.raises(WeightsNotFoundError):
        load_network(tmp_path / "absent.safetensors")
