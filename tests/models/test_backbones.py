"""Frozen public networks: which weights they have, and that nothing else changes what they see."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torchvision import models
from torchvision.transforms import functional

from fedtranscribe.config.catalogue import torchvision_networks
from fedtranscribe.config.facts import expect_pinned
from fedtranscribe.errors import (
    ConfigError,
    CorruptWeightsError,
    ModelMismatchError,
    UnknownArchitectureError,
    WeightsNotFoundError,
)
from fedtranscribe.models import build, load_network, save_network
from fedtranscribe.models.backbones import (
    Backbone,
    Backbones,
    FrozenBackbone,
    backbone_of,
    file_digest,
    find_weights,
)
from fedtranscribe.models.fixed_features import (
    coefficient_count,
    features_for,
    is_fixed,
    row_width,
    words_for,
)
from fedtranscribe.models.zoo import IMAGENET_MEAN, IMAGENET_STD
from tests.conftest import NETWORK

SIDE = 40


@pytest.fixture
def backbone(public_weights: Path) -> Backbone:
    return backbone_of(NETWORK, public_weights, 28, SIDE)


def images(n: int = 3, channels: int = 1, size: int = 28) -> torch.Tensor:
    return torch.rand(n, channels, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("channels", [1, 3])
def test_features_are_what_the_networks_last_layer_sees(public_weights, backbone, channels):
    frozen = FrozenBackbone(backbone, channels)
    frozen.load(public_weights)
    shown = images(channels=channels, size=SIDE)
    whole = models.get_model(NETWORK, weights=None).eval()
    whole.load_state_dict(torch.load(public_weights, weights_only=True))
    with torch.no_grad():
        colour = shown.expand(-1, 3, -1, -1)
        maps = whole.features(functional.normalize(colour, IMAGENET_MEAN, IMAGENET_STD))
        torch.testing.assert_close(frozen(shown), maps.mean((2, 3)))


def test_the_same_network_by_either_library(tmp_path):
    timm = pytest.importorskip("timm")
    network = timm.create_model("resnet10t").eval()
    path = tmp_path / "resnet10t.pth"
    torch.save(network.state_dict(), path)
    made = backbone_of("timm/resnet10t", path, 28)
    assert made.side == timm.get_pretrained_cfg("resnet10t").input_size[-1]
    frozen = FrozenBackbone(Backbone(made.network, SIDE, made.digest), 3)
    frozen.load(path)
    shown, config = images(channels=3, size=SIDE), network.pretrained_cfg
    with torch.no_grad():
        scaled = functional.normalize(shown, config["mean"], config["std"])
        seen = network.forward_head(network.forward_features(scaled), pre_logits=True)
        torch.testing.assert_close(frozen(shown), seen)


def test_a_name_says_network_side_and_weights(backbone, public_weights):
    assert Backbone.parse(backbone.name) == backbone
    assert backbone.digest == file_digest(public_weights)
    assert is_fixed(backbone.name)
    assert features_for(backbone.name, 3) == backbone.name
    assert coefficient_count(backbone.name, 1, 28) == 512
    assert row_width(backbone.name, 3, 64) == 513
    assert backbone.digest[:12] in words_for(backbone.name)
    expect_pinned(backbone.pinned_name)


@pytest.mark.parametrize(
    "name", [None, "", "cnn", "resnet18", "resnet18/96@12", "a b/9@" + 64 * "a"]
)
def test_other_names_are_no_backbones(name):
    assert Backbone.parse(name) is None
    assert not is_fixed(name)


def test_a_name_has_one_spelling(backbone):
    assert Backbone.parse(backbone.name.replace("/40@", "/040@")) is None


@pytest.mark.parametrize("name", ["fcos_resnet50_fpn", "cnn", "scatter", "timm/resnet18.nothing"])
def test_a_file_cannot_have_other_networks_made_or_fetched(tmp_path, name):
    header = {"kind": "classifier", "architecture": f"{name}/64@{64 * '0'}"}
    header |= {"classes": 2, "channels": 3, "size": 8}
    path = tmp_path / "student.safetensors"
    content = {"x": torch.zeros(1)}
    path.write_bytes(safetensors.torch.save(content, {"network": json.dumps(header)}))
    with pytest.raises(UnknownArchitectureError):
        load_network(path)


def test_the_bytes_that_are_used_are_those_that_the_digest_is_of(
    backbone, public_weights, tmp_path, monkeypatch
):
    mine, other = tmp_path / "mine.pth", tmp_path / "other.pth"
    mine.write_bytes(public_weights.read_bytes())
    state = torch.load(public_weights, weights_only=True)
    torch.save(state | {"features.0.bias": state["features.0.bias"] + 1}, other)
    whole = Path.read_bytes

    def swapped(path):
        content = whole(path)
        if path == mine and other.exists():
            other.replace(mine)
        return content

    monkeypatch.setattr(Path, "read_bytes", swapped)
    frozen = FrozenBackbone(backbone, 1)
    frozen.load(mine)
    assert torch.equal(frozen.layers.state_dict()["features.0.bias"], state["features.0.bias"])
    with pytest.raises(ModelMismatchError):
        frozen.load(mine)


@pytest.mark.parametrize("side", [7, 513, 9_999])
def test_a_side_has_bounds(side):
    with pytest.raises(ConfigError, match=f"features-side={side} within 8..512"):
        Backbone.parse(f"resnet18/{side}@{64 * '0'}")


def test_told_features_are_a_network_and_a_digest():
    for junk in ("resnet18", "resnet18@", "resnet18@" + 63 * "0", "\n@" + 64 * "0", 10**4 * "x"):
        with pytest.raises(ConfigError, match="NETWORK@SHA-256"):
            expect_pinned(junk)


def test_small_images_are_enlarged_and_large_ones_shrunk_unless_somebody_says(public_weights):
    sides = [backbone_of("resnet18", public_weights, size).side for size in (28, 128, 224, 900)]
    assert sides == [96, 128, 224, 224]
    assert backbone_of("vit_b_16", public_weights, 28).side == 224


def test_images_that_a_network_cannot_take_are_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"cannot take such images .*another features-side"):
        coefficient_count(f"vit_b_16/90@{64 * '0'}", 1, 28)
    with pytest.raises(ConfigError, match="1 or 3 channels for resnet18, got 4"):
        coefficient_count(f"resnet18/32@{64 * '0'}", 4, 28)


def test_a_student_on_it_needs_no_other_file_and_never_changes_it(
    backbone, public_weights, tmp_path
):
    student = build(backbone.name, 3, 1, 28)
    student.backbone.fixed.load(public_weights)
    student.train()
    assert not any(module.training for module in student.backbone.fixed.modules())
    assert {name for name, p in student.named_parameters() if p.requires_grad} == {
        "head.weight",
        "head.bias",
    }
    save_network(student, tmp_path / "student.safetensors")
    loaded = load_network(tmp_path / "student.safetensors")
    assert loaded.architecture == backbone.name
    with torch.no_grad():
        assert torch.equal(loaded(images()), student.eval()(images()))


def test_only_the_named_file_is_taken(backbone, public_weights, tmp_path):
    other = tmp_path / "other.pth"
    state = torch.load(public_weights, weights_only=True)
    torch.save(state | {"features.0.bias": state["features.0.bias"] + 1}, other)
    with pytest.raises(ModelMismatchError, match=f"SHA-256 {backbone.digest}.*give the file"):
        FrozenBackbone(backbone, 1).load(other)
    with pytest.raises(WeightsNotFoundError, match="check the path"):
        FrozenBackbone(backbone, 1).load(tmp_path / "nowhere.pth")
    for network in ("resnet18", "squeezenet1_0"):
        wrong = backbone_of(network, public_weights, 28)
        with pytest.raises((CorruptWeightsError, ModelMismatchError)):
            FrozenBackbone(wrong, 1).load(public_weights)


def test_a_classifier_of_ours_lends_its_layers(tmp_path):
    classifier = build(NETWORK, 7, 1, 28, seed=5).eval()
    path = tmp_path / "classifier.safetensors"
    save_network(classifier, path)
    frozen = FrozenBackbone(backbone_of(NETWORK, path, 28, classifier.adapter.size), 1)
    frozen.load(path)
    with torch.no_grad():
        torch.testing.assert_close(frozen(images()), classifier.features(images()))


def test_a_holder_allows_files_and_no_names(backbone, public_weights, tmp_path):
    allowed = Backbones.of({NETWORK: public_weights})
    assert allowed.names == (backbone.pinned_name,)
    assert allowed.allows(backbone)
    assert not allowed.allows(Backbone(NETWORK, SIDE, 64 * "0"))
    assert not allowed.allows(Backbone("resnet18", SIDE, backbone.digest))
    with pytest.raises(WeightsNotFoundError):
        Backbones.of({NETWORK: tmp_path / "nowhere.pth"})
    with pytest.raises(UnknownArchitectureError, match="squeezenet1_1"):
        Backbones.of({"squeezenet1_2": public_weights})


def test_unknown_networks_are_named(public_weights):
    with pytest.raises(UnknownArchitectureError, match="did you mean resnet18"):
        backbone_of("resnet19", public_weights, 28)
    assert "cnn" not in torchvision_networks()
    with pytest.raises(UnknownArchitectureError, match="'cnn'"):
        backbone_of("cnn", public_weights, 28)
    pytest.importorskip("timm")
    with pytest.raises(UnknownArchitectureError, match=r"did you mean.* resnet18"):
        backbone_of("timm/resnet18x", public_weights, 28)


def test_timm_is_named_where_it_is_missing(public_weights, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnknownArchitectureError, match=r"pip install 'fedtranscribe\[timm\]'"):
        backbone_of("timm/resnet18", public_weights, 28)


# ---------------------------------------------------------------- where weights come from


def test_torchvisions_weights_are_taken_from_its_cache(public_weights, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    cached = tmp_path / "hub" / "checkpoints" / "squeezenet1_1-b8a52dc0.pth"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(public_weights.read_bytes())
    assert find_weights("imagenet", NETWORK) == cached

    def offline(url, path, progress):
        raise OSError("no network")

    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    with pytest.raises(WeightsNotFoundError, match=r"none could be downloaded.*or name a file"):
        find_weights("imagenet", "resnet18")
    with pytest.raises(ConfigError, match="torchvision's networks"):
        find_weights("imagenet", "timm/resnet18")


def test_the_hubs_files_are_taken_from_its_cache(public_weights, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    commit = 40 * "a"
    there = tmp_path / "models--owner--net"
    (there / "refs").mkdir(parents=True)
    (there / "refs" / "main").write_text(commit)
    snapshot = there / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "weights.pth").write_bytes(public_weights.read_bytes())
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    for given in ("hub:owner/net/weights.pth", f"hub:owner/net/weights.pth@{commit}"):
        assert file_digest(find_weights(given, NETWORK)) == file_digest(public_weights)
    with pytest.raises(WeightsNotFoundError, match=r"other\.pth is not on this machine"):
        find_weights("hub:owner/net/other.pth", NETWORK)
    with pytest.raises(ConfigError, match="hub:OWNER/NAME/FILE"):
        find_weights("hub:owner", NETWORK)


@pytest.mark.parametrize("given", ["~nobody-here/x.pth", 5_000 * "x", "a\0b"])
def test_what_is_no_path_is_told_in_one_line(given):
    with pytest.raises(WeightsNotFoundError, match="check the path"):
        find_weights(given, NETWORK)


def test_a_hubs_file_stays_in_its_repository():
    pytest.importorskip("huggingface_hub")
    with pytest.raises(WeightsNotFoundError, match="could not be downloaded"):
        find_weights("hub:a/b/../../x", NETWORK)


def test_a_path_that_leads_nowhere_is_named(tmp_path):
    with pytest.raises(WeightsNotFoundError, match=r"No weights file 'nowhere\.pth'"):
        find_weights("nowhere.pth", NETWORK)
