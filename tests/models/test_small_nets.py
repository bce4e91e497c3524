import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional

from fedtranscribe.models import build, is_small
from fedtranscribe.models.classifier import WIDTHS


@pytest.mark.parametrize("name", WIDTHS)
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (3, 64), (4, 19)])
def test_any_shape_and_class_count(name, channels, size):
    net = build(name, 7, channels, size)
    x = torch.rand(3, channels, size, size)
    features = net.features(x)
    assert net(x).shape == (3, 7)
    assert features.ndim == 2
    assert torch.equal(net.head(features), net(x))
    assert (net.classes, net.channels, net.size) == (7, channels, size)


@pytest.mark.parametrize(
    ("name", "thousands"), [("cnn-small", 11), ("cnn", 34), ("cnn-wide", 114), ("cnn-deep", 400)]
)
def test_sizes_are_as_documented(name, thousands):
    net = build(name, 10, 1, 28)
    assert round(sum(p.numel() for p in net.parameters()) / 1000) == thousands
    assert is_small(name)
    assert not is_small("resnet50")


def test_the_seed_fixes_the_weights_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    first, again, other = (build("cnn", 10, 1, 28, seed=s) for s in (1, 1, 2))
    assert torch.equal(first.head.weight, again.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)
    assert torch.equal(torch.get_rng_state(), before)


def test_one_image_never_reaches_the_answer_to_another():
    net = build("cnn", 10, 1, 28)
    x = torch.rand(4, 1, 28, 28)
    changed = x.clone()
    changed[3] = 0
    assert not [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    torch.testing.assert_close(net(x)[:3], net(changed)[:3])


def test_a_stack_of_teachers_trains_under_vmap_as_each_one_alone():
    nets = [build("cnn", 10, 1, 28, seed=s) for s in range(3)]
    parameters, buffers = stack_module_state(nets)
    x, y = torch.rand(3, 5, 1, 28, 28), torch.arange(15).view(3, 5) % 10

    def loss(parameters, buffers, x, y):
        return functional.cross_entropy(functional_call(nets[0], (parameters, buffers), (x,)), y)

    stacked = vmap(grad(loss))(parameters, buffers, x, y)
    for i, net in enumerate(nets):
        functional.cross_entropy(net(x[i]), y[i]).backward()
        for name, parameter in net.named_parameters():
            torch.testing.assert_close(stacked[name][i], parameter.grad, rtol=1e-3, atol=1e-5)


def test_cnn_learns_digits_from_240_images(digits_240):
    train_x, train_y, test_x, test_y = digits_240
    net = build("cnn", 10, 1, 28)
    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    rng = torch.Generator().manual_seed(0)
    for _ in range(60):
        rows = torch.randperm(240, generator=rng)[:64]
        optimiser.zero_grad()
        functional.cross_entropy(net(train_x[rows]), train_y[rows]).backward()
        optimiser.step()
    assert (net(test_x).argmax(1) == test_y).float().mean() > 0.75


@pytest.fixture
def digits_240():
    from fedtranscribe.data import load

    digits = load("digits")
    rows = torch.randperm(4000, generator=torch.Generator().manual_seed(0))[:240]
    train, test = digits.train.subset(rows), digits.test
    return train.images / 255, train.labels, test.images / 255, test.labels
