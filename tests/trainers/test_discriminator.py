import pytest
import torch
from torch import Tensor, nn

from fedtranscribe.errors import ConfigError
from fedtranscribe.trainers.denoising import ImageDiscriminator
from fedtranscribe.trainers.per_sample import Backend, record_gradients


def judge(network: ImageDiscriminator, x: Tensor, t: int = 3, label: int = 0) -> Tensor:
    rows = torch.ones(len(x)).long()
    return network(x, t * rows, label * rows)


@pytest.mark.parametrize("side", [8, 28, 32, 64, 128])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_every_size_gives_one_logit_per_row(side: int, channels: int):
    network = ImageDiscriminator(channels, side, 10)
    assert judge(network, torch.randn(2, channels, side, side)).shape == (2,)


def test_rows_do_not_meet():
    network = ImageDiscriminator(1, 28, 10, width=8)
    x = torch.randn(5, 1, 28, 28)
    together, alone = judge(network, x), judge(network, x[2:3])
    torch.testing.assert_close(together[2:3], alone)


def test_it_depends_on_image_step_and_label():
    network = ImageDiscriminator(1, 28, 3)
    x = torch.randn(1, 1, 28, 28)
    seen = [judge(network, x), judge(network, x, t=4), judge(network, x, label=2)]
    seen.append(judge(network, -x))
    assert len({float(verdict.detach()) for verdict in seen}) == 4
    # The null label is one more.
    assert network.null_label == 3
    assert judge(network, x, label=3).isfinite().all()


def test_the_first_weights_are_xavier_and_follow_the_seed():
    first, same, other = (ImageDiscriminator(1, 28, 2, seed) for seed in (4, 4, 5))
    assert torch.equal(first.first.weight, same.first.weight)
    assert not torch.equal(first.first.weight, other.first.weight)
    bound = (6 / (9 * 1 + 9 * 16)) ** 0.5
    assert float(first.first.weight.detach().abs().max()) <= bound
    for layer in first.modules():
        if isinstance(layer, nn.Conv2d):
            assert layer.bias is not None
            assert not layer.bias.any()


@pytest.mark.parametrize("backend", [Backend.OPACUS, Backend.CONTRACTED])
def test_back_ends_agree_on_its_gradients_per_record(backend: Backend):
    network = ImageDiscriminator(1, 8, 2, width=8)
    rng = torch.Generator().manual_seed(0)
    inputs = (
        torch.randn(3, 2, 1, 8, 8, generator=rng),
        torch.randint(1, 9, (3, 2), generator=rng),
        torch.randint(3, (3, 2), generator=rng),
    )

    def loss(network: ImageDiscriminator, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.softplus(network(x, t, labels))

    expected = record_gradients(Backend.FUNCTIONAL, network, loss)(inputs)
    for one, other in zip(expected, record_gradients(backend, network, loss)(inputs), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 28, 10), "channels=0 >= 1"),
        ((1, 7, 10), "image size=7 >= 8"),
        ((1, 28, -1), "classes=-1 >= 0"),
        ((1, 28, 10, 0, 12), "width=12"),
    ],
)
def test_impossible_sizes_are_refused(arguments: tuple, words: str):
    with pytest.raises(ConfigError, match=words):
        ImageDiscriminator(*arguments)
