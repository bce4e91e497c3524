import pytest
import torch
from torch import nn

from fedtranscribe.errors import (
    ConfigError,
    CorruptWeightsError,
    ModelMismatchError,
    StorageError,
    WeightsNotFoundError,
)
from fedtranscribe.models import build, load_state, read_metadata, restore, save


@pytest.fixture
def net():
    return build("cnn-small", 10, 1, 28, seed=3)


@pytest.fixture
def path(tmp_path, net):
    target = tmp_path / "net.safetensors"
    save(net, target, {"architecture": "cnn-small"})
    return target


def test_round_trip(net, path):
    again = build("cnn-small", 10, 1, 28, weights=path, seed=4).eval()
    x = torch.rand(2, 1, 28, 28)
    assert torch.equal(again(x), net.eval()(x))
    assert read_metadata(path) == {"architecture": "cnn-small"}
    assert [p.name for p in path.parent.iterdir()] == ["net.safetensors"]


def test_truncated_anywhere(path):
    whole = path.read_bytes()
    for length in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptWeightsError, match="truncated"):
            build("cnn-small", 10, 1, 28, weights=path)
        with pytest.raises(CorruptWeightsError):
            read_metadata(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_weights_are_refused(net, path, value):
    with torch.no_grad():
        net.head.weight[2, 3] = value
    save(net, path)
    with pytest.raises(CorruptWeightsError, match=r"'head\.weight'.*NaN"):
        load_state(path)


def test_another_network_or_class_count_is_named(path):
    with pytest.raises(ModelMismatchError, match="another architecture"):
        build("cnn", 10, 1, 28, weights=path)
    with pytest.raises(CorruptWeightsError, match="another network"):
        build("resnet18", 10, 1, 28, weights=path)
    with pytest.raises(ModelMismatchError, match="10 classes, the data have 7"):
        build("cnn-small", 7, 1, 28, weights=path)
    with pytest.raises(ModelMismatchError, match=r"\(8, 3, 5, 5\), got \(8, 1, 5, 5\)"):
        build("cnn-small", 10, 3, 28, weights=path)


def test_missing_files_and_folders(net, tmp_path):
    for read in (load_state, read_metadata):
        with pytest.raises(WeightsNotFoundError, match=r"none\.safetensors"):
            read(tmp_path / "none.safetensors")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Cannot write"):
        save(net, tmp_path / "file" / "net.safetensors")


def test_torch_files_without_running_code(net, tmp_path):
    path = tmp_path / "net.pt"
    torch.save({"state_dict": net.state_dict()}, path)
    restore(build("cnn-small", 10, 1, 28), load_state(path), path)
    torch.save(nn.Linear(2, 2), path)  # a pickled module, which would run code
    with pytest.raises(CorruptWeightsError, match=r"net\.pt"):
        load_state(path)
    torch.save([1, 2], path)
    with pytest.raises(CorruptWeightsError, match="dictionary of tensors"):
        load_state(path)
    for content in (b"", b"garbage", b"PK\x03\x04 cut"):
        path.write_bytes(content)
        with pytest.raises(CorruptWeightsError):
            load_state(path)


@pytest.mark.parametrize("name", ["shufflenet_v2_x0_5", "googlenet", "swin_t"])
def test_files_in_torchvisions_own_layout(tmp_path, name):
    theirs, path = torchvision_file(tmp_path, name)
    ours = build(name, 5, 3, 64, weights=path).eval()
    x = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(ours.adapter(x)))


def test_squeezenets_own_files_are_refused(tmp_path):
    _, path = torchvision_file(tmp_path, "squeezenet1_1")
    with pytest.raises(ModelMismatchError, match=r"head\.weight"):
        build("squeezenet1_1", 5, 3, 64, weights=path)


def torchvision_file(tmp_path, name):
    from torchvision import models

    options = {"init_weights": False} if name == "googlenet" else {}
    theirs = models.get_model(name, num_classes=5, **options).eval()
    path = tmp_path / "theirs.pth"
    torch.save(theirs.state_dict(), path)
    return theirs, path


def test_bad_numbers_are_named():
    for facts, words in (
        ((1, 1, 28), "classes=1"),
        ((10, 0, 28), "channels=0"),
        ((10, 1, 4), "size=4"),
    ):
        with pytest.raises(ConfigError, match=words):
            build("cnn", *facts)
