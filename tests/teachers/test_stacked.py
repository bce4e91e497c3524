"""Three ways to run an ensemble, one answer; and what keeps shards apart in each of them."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedtranscribe.config import TeacherSettings
from fedtranscribe.errors import ConfigError, CorruptWeightsError, ModelMismatchError
from fedtranscribe.models import Classifier, build, save
from fedtranscribe.models import ensemble as stacked
from fedtranscribe.models.classifier import WIDTHS
from fedtranscribe.models.ensemble import Ensemble, Stacked, Way, pick_way, portion, run_stacked
from fedtranscribe.models.teacher_training import load_backbone, shard_file
from fedtranscribe.models.teachers import Manifest

CPU = torch.device("cpu")
CLASSES = 4
GREY, COLOUR = (1, 28), (3, 32)


def manifest_of(
    shards: int, arch: str = "cnn-small", shape: tuple[int, int] = GREY, mode: str = "full"
) -> Manifest:
    return Manifest.model_validate(
        {
            "architecture": arch,
            "mode": mode,
            "classes": CLASSES,
            "channels": shape[0],
            "size": shape[1],
            "shards": shards,
            "data": "none",
            "data_root": None,
            "data_id": "none",
            "record_ids": "positional",
            "key": "00",
            "seed": 0,
            "weights": None,
            "settings": TeacherSettings(),
            "complete": True,
        }
    )


def network(shard: int, arch: str = "cnn-small", shape: tuple[int, int] = GREY) -> Classifier:
    """Another network for each shard, its norms and biases no longer as initialised."""
    made = build(arch, CLASSES, *shape, seed=shard)
    rng = torch.Generator().manual_seed(shard)
    with torch.no_grad():
        for value in made.parameters():
            if value.ndim == 1:
                value.add_(torch.randn(value.shape, generator=rng) / 4)
    return made.eval()


def folder_of(
    folder: Path,
    shards: int,
    empty: Sequence[int] = (),
    arch: str = "cnn-small",
    shape: tuple[int, int] = GREY,
) -> Path:
    folder.mkdir()
    manifest_of(shards, arch, shape).save(folder)
    for shard in set(range(shards)) - set(empty):
        save(network(shard, arch, shape), shard_file(folder, shard))
    return folder


def pictures(n: int, shape: tuple[int, int] = GREY) -> Tensor:
    rng = torch.Generator().manual_seed(n)
    return torch.randint(0, 256, (n, shape[0], shape[1], shape[1]), generator=rng).to(torch.uint8)


def ask(folder: Path, way: Way, images: Tensor, held_mib: float = 64) -> Tensor:
    return torch.cat(list(Ensemble(folder, CPU, way=way, held_mib=held_mib).logits(images)))


@pytest.mark.parametrize("held_mib", [64, 0])
@pytest.mark.parametrize(
    ("arch", "shape", "shards", "empty", "rows"),
    [
        ("cnn-small", GREY, 1, (), 3),
        ("cnn-small", GREY, 11, (0, 10), 130),
        ("cnn", GREY, 7, (3,), 61),
        ("cnn", COLOUR, 6, (), 1),
        ("cnn-wide", COLOUR, 3, (1,), 40),
        ("cnn-small", (2, 9), 8, (5, 6, 7), 5),
    ],
)
def test_all_ways_give_each_networks_own_logits_in_order(
    tmp_path: Path,
    arch: str,
    shape: tuple[int, int],
    shards: int,
    empty: tuple[int, ...],
    rows: int,
    held_mib: float,
):
    folder, images = folder_of(tmp_path / "a", shards, empty, arch, shape), pictures(rows, shape)
    for way in Way:
        got = ask(folder, way, images, held_mib)
        assert got.shape == (shards, rows, CLASSES)
        assert got.dtype is torch.float32
        assert not got.requires_grad
        for shard in range(shards):
            if shard in empty:
                assert bool(torch.isnan(got[shard]).all())
                continue
            with torch.no_grad():
                expected = network(shard, arch, shape)(images.float() / 255)
            torch.testing.assert_close(got[shard], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("way", list(Way))
@pytest.mark.parametrize("arch", list(WIDTHS))
def test_no_shard_moves_another_ones_logits_by_a_bit(tmp_path: Path, way: Way, arch: str):
    folder, images = folder_of(tmp_path / "a", 7, arch=arch), pictures(20)
    before = ask(folder, way, images)
    others = [shard for shard in range(7) if shard != 2]
    shard_file(folder, 2).unlink()
    assert torch.equal(ask(folder, way, images)[others], before[others]), "a shard left"
    wild = network(2, arch)
    with torch.no_grad():
        for value in wild.parameters():
            value.fill_(3e38)  # finite, so it loads; every map overflows
    save(wild, shard_file(folder, 2))
    after = ask(folder, way, images)
    assert not bool(torch.isfinite(after[2]).any())
    assert torch.equal(after[others], before[others]), "a shard overflowed"


@pytest.mark.parametrize("way", list(Way))
def test_rows_are_those_of_the_same_image_asked_alone(tmp_path: Path, way: Way):
    folder, images = folder_of(tmp_path / "a", 6), pictures(260)
    whole = ask(folder, way, images)
    for row in (0, 133, 259):
        alone = ask(folder, way, images[row : row + 1])
        torch.testing.assert_close(whole[:, row : row + 1], alone, atol=1e-5, rtol=0)


def test_weights_are_read_once_where_they_fit_and_each_time_where_not(tmp_path: Path):
    folder, images = folder_of(tmp_path / "a", 6), pictures(3)
    kept, streamed = Ensemble(folder, CPU), Ensemble(folder, CPU, held_mib=0)
    before = torch.cat(list(kept.logits(images)))
    assert torch.equal(torch.cat(list(streamed.logits(images))), before)
    save(network(77), shard_file(folder, 4))
    assert torch.equal(torch.cat(list(kept.logits(images))), before)
    anew = torch.cat(list(streamed.logits(images)))
    assert [torch.equal(a, b) for a, b in zip(anew, before, strict=True)] == [True] * 4 + [
        False,
        True,
    ]
    kept.verify()
    assert torch.equal(torch.cat(list(kept.logits(images))), anew), "verify looks at the disk"


def test_what_fits_is_decided_by_the_public_count_of_shards(tmp_path: Path):
    folder, images = folder_of(tmp_path / "a", 200, range(1, 200)), pictures(1)
    one = sum(value.nbytes for value in network(0).state_dict().values()) / 2**20
    for held_mib, kept in ((199 * one, False), (201 * one, True)):
        teachers = Ensemble(folder, CPU, held_mib=held_mib)
        first = torch.cat(list(teachers.logits(images)))
        save(network(77), shard_file(folder, 0))
        second = torch.cat(list(teachers.logits(images)))
        assert torch.equal(first[0], second[0]) is kept
        save(network(0), shard_file(folder, 0))


@pytest.mark.parametrize("held_mib", [64, 0])
@pytest.mark.parametrize("way", list(Way))
def test_broken_files_are_named_and_nothing_is_kept(tmp_path: Path, way: Way, held_mib: float):
    folder, images = folder_of(tmp_path / "a", 7), pictures(2)
    teachers = Ensemble(folder, CPU, way=way, held_mib=held_mib)
    path = shard_file(folder, 6)
    whole = path.read_bytes()
    path.write_bytes(whole[:-50])
    with pytest.raises(CorruptWeightsError, match="shard-00006"):
        list(teachers.logits(images))
    broken = network(6)
    nn.init.constant_(broken.head.bias, float("nan"))
    save(broken, path)
    with pytest.raises(CorruptWeightsError, match="shard-00006"):
        teachers.verify()
    save(network(6, "cnn"), path)
    with pytest.raises(ModelMismatchError, match="shard-00006"):
        teachers.verify()
    nn.init.constant_(broken.head.bias, 3e38)
    nn.init.constant_(broken.head.weight, 3e38)
    save(broken, path)
    with pytest.raises(CorruptWeightsError, match=r"shard-00006.*non-finite"):
        teachers.verify()
    path.write_bytes(whole)
    teachers.verify()
    assert bool(torch.isfinite(torch.cat(list(teachers.logits(images)))).all())


def test_heads_are_one_product_and_equal_each_head_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    manifest, shards, empty = manifest_of(7, "mobilenet_v2", COLOUR, "heads"), range(7), {4}
    manifest.save(tmp_path)
    backbone = load_backbone(manifest, tmp_path)
    heads = {shard: nn.Linear(backbone.width, CLASSES) for shard in set(shards) - empty}
    for shard, head in heads.items():
        save(head, shard_file(tmp_path, shard))
    monkeypatch.setattr("fedtranscribe.models.ensemble._HEADS", 3)
    teachers, images = Ensemble(tmp_path, CPU), pictures(6, COLOUR)
    got = list(teachers.logits(images))
    assert [tuple(block.shape) for block in got] == [(1, 6, CLASSES)] * 7
    with torch.no_grad():
        features = backbone(images.float() / 255)
        for shard, block in enumerate(got):
            if shard in empty:
                assert bool(torch.isnan(block).all())
            else:
                torch.testing.assert_close(block[0], heads[shard](features), atol=1e-4, rtol=1e-5)
    shard_file(tmp_path, 5).unlink()
    teachers.verify()
    left = torch.cat(list(teachers.logits(images)))
    others = [0, 1, 2, 3, 6]
    assert torch.equal(left[others], torch.cat(got)[others]), "a head left"


def test_large_networks_go_one_after_the_other(tmp_path: Path):
    manifest = manifest_of(2, "resnet18", COLOUR)
    manifest.save(tmp_path)
    large = build("resnet18", CLASSES, *COLOUR, seed=5)
    save(large, shard_file(tmp_path, 1))
    with pytest.raises(ConfigError, match=r"way='loop'.*resnet18.*'vmap'"):
        Ensemble(tmp_path, CPU, way=Way.VMAP)
    teachers, images = Ensemble(tmp_path, CPU), pictures(2, COLOUR)
    assert teachers.way is Way.LOOP
    for _ in range(2):  # norms with running statistics stay as they were
        empty, there = teachers.logits(images)
        assert bool(torch.isnan(empty).all())
        with torch.no_grad():
            expected = large.eval()(images.float() / 255)
        torch.testing.assert_close(there[0], expected, atol=1e-5, rtol=1e-5)


def test_the_way_follows_from_architecture_and_device():
    for arch in WIDTHS:
        assert pick_way(arch, CPU) is pick_way(arch, torch.device("cuda")) is Way.GROUPED
        assert pick_way(arch, torch.device("mps")) is Way.LOOP
    assert pick_way("resnet18", CPU) is Way.LOOP


@pytest.mark.parametrize("arch", list(WIDTHS))
@pytest.mark.parametrize("shape", [GREY, COLOUR, (3, 224)])
def test_activations_stay_within_their_bound(arch: str, shape: tuple[int, int]):
    made = build(arch, CLASSES, *shape).eval()
    maps: list[int] = []
    for layer in made.backbone.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda module, given, out: maps.append(out.nbytes))
    with torch.no_grad():
        made(torch.zeros(1, shape[0], shape[1], shape[1]))
    for shards in (1, 3, 1_000):
        at_once = portion(Way.GROUPED, made, shards, CPU)
        assert at_once.shards == min(shards, stacked._CPU_SHARDS)
        assert at_once.rows == 1 or at_once.shards * at_once.rows * max(maps) <= stacked._CPU_BYTES


def test_a_layer_that_has_no_grouped_form_is_refused():
    made = network(0)
    assert isinstance(made.backbone, nn.Sequential)
    made.backbone[2] = nn.GELU()
    stack = Stacked.empty(made, 1, CPU)
    stack.put(0, made)
    with pytest.raises(TypeError, match="GELU"):
        run_stacked(Way.GROUPED, made, stack, pictures(1), 1, CPU)
