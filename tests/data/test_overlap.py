"""What may not be called public beside private records, however it is named or stored."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedtranscribe.config import RunOptions
from fedtranscribe.data import DrawnFrom, NamedData, expect_public, load, load_public, share_records
from fedtranscribe.data.partitions import part_id, whole_id
from fedtranscribe.errors import ConfigError, InvalidDataError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 255, (40, 8, 8), dtype=np.uint8)
LABELS = np.arange(40) % 3


def saved(path: Path, images: np.ndarray = IMAGES, **arrays: np.ndarray) -> Path:
    np.savez(path, images=images, labels=np.arange(len(images)) % 3, classes=3, **arrays)
    return path


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Records without ids: which of them are held out depends on their order."""
    return saved(tmp_path / "scans.npz")


def refused(public: str | Path, private: str | Path) -> str:
    records = NamedData.of(str(private), load(str(private)))
    with pytest.raises(ConfigError) as error:
        load_public("public_data", str(public), records)
    words = str(error.value)
    assert repr(str(public)) in words
    assert repr(str(private)) in words
    assert "choose another set" in words
    return words


def allowed(public: str | Path, private: str | Path) -> None:
    load_public("public_data", str(public), NamedData.of(str(private), load(str(private))))


def test_public_pictures_are_read_as_the_private_ones(tmp_path):
    for number in range(9):
        for name, mode in (("cat", "L"), ("dog", "RGB")):
            (tmp_path / "open" / name).mkdir(parents=True, exist_ok=True)
            Image.new(mode, (8, 8), number if mode == "L" else (number, 0, 9)).save(
                tmp_path / "open" / name / f"{number}.png"
            )
    (tmp_path / "open" / "more.txt").write_text("?")
    own = RunOptions(channels=3, allow_skipped=True).as_public
    assert load_public("public_data", str(tmp_path / "open"), None, own=own).channels == 3
    assert load_public("public_data", "uci-digits", None, own=own).channels == 1


# ---------------------------------------------------------------- ids


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("npz:scans", "npz:scans"),
        ("digits", "mnist"),
        ("cifar10", "cifar10-jpeg"),
        ("digits holder-3", "mnist"),
        ("npz:my scans holder-12", "npz:my scans"),
        ("medmnist:organamnist", "medmnist:organsmnist"),
        ("medmnist:pathmnist_128", "medmnist:pathmnist"),
        ("medmnist:organamnist_64", "medmnist:organcmnist_224"),
    ],
)
def test_ids_of_sets_that_share_records(one: str, other: str):
    assert share_records(one, other)
    assert share_records(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("uci-digits", "digits"),
        ("uci-digits", "mnist"),
        ("cifar10", "cifar100"),
        ("fashion-mnist", "mnist"),
        ("kmnist", "mnist"),
        ("npz:scans", "npz:scans2"),
        ("npz:scans", "folder:scans"),
        ("medmnist:pathmnist", "medmnist:bloodmnist"),
        ("medmnist:pneumoniamnist", "medmnist:chestmnist"),
    ],
)
def test_ids_of_other_sets(one: str, other: str):
    assert not share_records(one, other)


def test_a_part_of_a_simulation_belongs_to_its_whole():
    assert whole_id(part_id("npz:a b", 11)) == whole_id("npz:a b") == "npz:a b"


def test_the_packaged_digits_are_not_public_beside_themselves_or_mnist():
    assert "data_id 'digits' is that of" in refused("digits", "digits")
    expect_public("public_data", NamedData("digits", "digits"), NamedData("kmnist", "kmnist"))
    with pytest.raises(ConfigError, match="'digits' shares records with 'mnist'"):
        expect_public("public_data", NamedData("digits", "digits"), NamedData("mnist", "mnist"))


def test_a_data_id_that_is_stated_in_the_archive_counts(scans: Path, tmp_path: Path):
    other = saved(tmp_path / "other.npz", 255 - IMAGES, data_id=np.array("npz:scans"))
    assert "rename the folder or file, or set its key data_id" in refused(other, scans)


# ---------------------------------------------------------------- samples


def test_samples_of_a_private_generator_are_not_public_beside_its_records(tmp_path: Path):
    """Their training has cost something, and a public set costs nothing."""
    run = {"drawn_from": np.array("run-1"), "drawn_from_data_id": np.array("mnist")}
    samples = saved(tmp_path / "samples-60.npz", **run)
    assert load(str(samples)).train.drawn_from == DrawnFrom("run-1", "mnist")
    words = refused(samples, "digits")
    assert "samples of the run 'run-1', whose generator learned from 'mnist'" in words
    assert "name the run: fedtranscribe transcribe --generator" in words
    allowed(samples, "uci-digits")


def test_samples_of_records_that_nobody_names_are_not_public(tmp_path: Path):
    samples = saved(tmp_path / "samples-60.npz", drawn_from=np.array("run-1"))
    assert "learned from records that nobody names" in refused(samples, "uci-digits")
    load_public("public_data", str(samples), None)


def test_where_samples_come_from_is_one_name(tmp_path: Path):
    samples = saved(tmp_path / "samples.npz", drawn_from=np.array([["run", "1"]]))
    with pytest.raises(InvalidDataError, match=r"'drawn_from' .*as one string"):
        load(str(samples))


# ---------------------------------------------------------------- places


def test_another_spelling_of_the_path(scans: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(scans.parent)
    for spelled in ("scans.npz", "./scans.npz", f"../{scans.parent.name}/scans.npz"):
        assert "it is the file or folder of" in refused(spelled, scans)
        assert "it is the file or folder of" in refused(scans, spelled)


def test_links_are_followed(scans: Path):
    scans.with_name("innocent.npz").symlink_to(scans)
    os.link(scans, scans.with_name("hard.npz"))
    for name in ("innocent.npz", "hard.npz"):
        assert "it is the file or folder of" in refused(scans.with_name(name), scans)


def test_one_of_several_names_of_a_simulation(scans: Path):
    records = NamedData.of(f"nowhere.npz, {scans}", load(str(scans)))
    with pytest.raises(ConfigError, match="it is the file or folder of"):
        expect_public("public_data", NamedData(str(scans), "npz:x"), records)


def pictures(folder: Path) -> Path:
    for part, first in (("train", 0), ("test", 20)):
        for i in range(first, first + 20):
            place = folder / part / str(i % 3)
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(IMAGES[i]).save(place / f"{i}.png")
    return folder


def test_a_folder_inside_the_other(tmp_path: Path):
    whole = pictures(tmp_path / "patients")
    for inside in ("train", "test"):
        assert "it is the file or folder of" in refused(whole / inside, whole)
        assert "it is the file or folder of" in refused(whole, whole / inside)


# ---------------------------------------------------------------- images


def test_a_copy_under_another_name(scans: Path, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    copy = shutil.copy(scans, tmp_path / "elsewhere" / "public.npz")
    assert "its images are exactly those of" in refused(copy, scans)


def test_a_copy_with_permuted_rows_other_labels_and_new_ids(scans: Path, tmp_path: Path):
    order = RNG.permutation(40)
    for name, arrays in {
        "plain": {},
        "ids": {"ids": np.array([f"new-{i}" for i in order])},
    }.items():
        copy = saved(tmp_path / f"{name}.npz", IMAGES[order], **arrays)
        apart = [load(str(path)).train.images.numpy().tobytes() for path in (copy, scans)]
        assert apart[0] != apart[1]
        assert "its images are exactly those of" in refused(copy, scans)


def test_a_copy_as_floats_or_as_pictures(scans: Path, tmp_path: Path):
    as_floats = saved(tmp_path / "floats.npz", IMAGES.astype(np.float32) / 255)
    assert "its images are exactly those of" in refused(as_floats, scans)
    folder, copy = pictures(tmp_path / "patients"), tmp_path / "archive.npz"
    saved(copy, IMAGES[:20], test_images=IMAGES[20:], test_labels=LABELS[20:])
    assert "its images are exactly those of" in refused(copy, folder)


def test_the_training_or_the_held_out_part_alone(scans: Path, tmp_path: Path):
    for part in (load(str(scans)).train, load(str(scans)).test):
        other = RNG.integers(0, 255, (4, 8, 8), dtype=np.uint8)
        copy = saved(
            tmp_path / "part.npz",
            part.images.numpy(),
            test_images=other,
            test_labels=np.arange(4) % 3,
        )
        assert "its images are exactly those of" in refused(copy, scans)


def test_sets_that_only_have_their_held_out_images_in_common_are_others(tmp_path: Path):
    tested = {"test_images": IMAGES[:6], "test_labels": LABELS[:6]}
    private = saved(tmp_path / "private.npz", IMAGES[6:20], **tested)
    public = saved(tmp_path / "public.npz", IMAGES[20:], **tested)
    allowed(public, private)


def test_a_set_that_overlaps_in_part_is_not_recognised(scans: Path, tmp_path: Path):
    """What the docstring says is not caught: the limit of a comparison of whole sets."""
    allowed(saved(tmp_path / "fewer.npz", IMAGES[:-1]), scans)
    changed = IMAGES.copy()
    changed[:20, 0, 0] ^= 1  # of the training part, and of the held-out one
    allowed(saved(tmp_path / "changed.npz", changed), scans)


def test_repeated_images_count(tmp_path: Path):
    once = saved(tmp_path / "once.npz", IMAGES[:20])
    twice = saved(tmp_path / "twice.npz", np.concatenate([IMAGES[:20], IMAGES[:20]]))
    allowed(twice, once)


def test_without_the_records_images_are_not_compared(scans: Path, tmp_path: Path):
    """A holder's node gives its data id alone: its refusal must not tell which images it has."""
    copy = shutil.copy(scans, tmp_path / "public.npz")
    load_public("pretrain_data", str(copy), NamedData("the records", "npz:scans"))
    with pytest.raises(ConfigError, match="data_id 'npz:scans'"):
        load_public("pretrain_data", str(scans), NamedData("the records", "npz:scans"))
