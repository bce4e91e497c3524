import sys
from urllib.error import URLError

import pytest
import torch

from fedtranscribe.config.catalogue import torchvision_networks
from fedtranscribe.errors import UnknownArchitectureError, WeightsNotFoundError
from fedtranscribe.models import available, build

TESTED = ["alexnet", "resnet50", "mobilenet_v2", "shufflenet_v2_x1_0", "googlenet"]
LARGE = ["vgg19_bn", "wide_resnet50_2", "densenet161", "vit_b_16"]
# Families whose last layer or input is built in another way.
ODD_ONES = ["squeezenet1_1", "inception_v3", "mnasnet0_5", "swin_t", "mobilenet_v3_small"]


@pytest.mark.parametrize(
    "name",
    [*TESTED, *ODD_ONES, *(pytest.param(name, marks=pytest.mark.long) for name in LARGE)],
)
def test_forward_pass_on_grey_and_colour_with_any_class_count(name):
    for channels, size, classes in ((1, 28, 2), (3, 32, 13)):
        net = build(name, classes, channels, size).eval()
        x = torch.rand(2, channels, size, size)
        with torch.no_grad():
            features = net.features(x)
            logits = net(x)
        assert logits.shape == (2, classes)
        assert features.shape == (2, net.head.in_features)
        assert torch.isfinite(logits).all()
        torch.testing.assert_close(net.head(features), logits)
        assert not torch.equal(features[0], features[1])


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_no_auxiliary_outputs_while_training(name):
    net = build(name, 5, 1, 28).train()
    assert net(torch.rand(4, 1, 28, 28)).shape == (4, 5)


def test_a_fourth_channel_gets_a_convolution_of_its_own():
    net = build("resnet18", 3, 4, 40).eval()
    x = torch.rand(2, 4, 40, 40)
    x[1] = x[0]
    x[1, 3] = 0
    with torch.no_grad():
        one, other = net(x)
    assert not torch.allclose(one, other)


def test_input_scaling_is_a_constant():
    net = build("resnet18", 3, 1, 28)
    alone = net.adapter(torch.zeros(1, 1, 28, 28))
    beside = net.adapter(torch.cat([torch.zeros(1, 1, 28, 28), torch.ones(1, 1, 28, 28)]))[:1]
    assert torch.equal(alone, beside)
    assert alone.shape == (1, 3, 32, 32)


def test_unknown_names_suggest_close_ones():
    with pytest.raises(UnknownArchitectureError, match="did you mean resnet50"):
        build("resnet-50", 10, 1, 28)
    with pytest.raises(UnknownArchitectureError, match="known: cnn-small"):
        build("???", 10, 1, 28)
    assert {*TESTED, *LARGE} < set(available())


def test_without_torchvision_the_extra_is_named(monkeypatch, request):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    torchvision_networks.cache_clear()
    request.addfinalizer(torchvision_networks.cache_clear)
    assert available() == ["cnn-small", "cnn", "cnn-wide", "cnn-deep", "scatter", "patches"]
    with pytest.raises(UnknownArchitectureError, match=r"fedtranscribe\[vision\]"):
        build("resnet50", 10, 1, 28)


def test_imagenet_weights_without_a_network(monkeypatch):
    def offline(*_, **__):
        raise URLError("no route")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    with pytest.raises(WeightsNotFoundError, match=r"'mobilenet_v2'.*network"):
        build("mobilenet_v2", 10, 1, 28, weights="imagenet")
    with pytest.raises(WeightsNotFoundError, match="our own 'cnn'"):
        build("cnn", 10, 1, 28, weights="imagenet")


@pytest.mark.parametrize("name", ["shufflenet_v2_x0_5", "googlenet", "inception_v3"])
def test_imagenet_weights_fill_all_but_the_last_layer(monkeypatch, name):
    from torchvision import models

    options = {} if name.startswith("shuffle") else {"init_weights": False}
    fetched = models.get_model(name, **options).state_dict()
    monkeypatch.setattr(
        "torchvision.models._api.load_state_dict_from_url", lambda *_, **__: fetched
    )
    net = build(name, 10, 1, 28, weights="imagenet")
    key = next(k for k in fetched if k.endswith("weight"))
    assert torch.equal(net.backbone.state_dict()[key], fetched[key])
    assert net(torch.rand(2, 1, 28, 28)).shape == (2, 10)
    assert net.adapter.size >= 96
