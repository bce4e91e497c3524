"""Data whose images may have several labels, in every form in which they come."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedtranscribe.config import OwnData
from fedtranscribe.data import dirichlet_partition, from_memory, load
from fedtranscribe.data.archives import read_medmnist
from fedtranscribe.data.array_folders import pack
from fedtranscribe.errors import ConfigError, InvalidDataError

N, NAMES = 30, ("mass", "nodule", "edema")
SEVERAL = OwnData(task="multilabel", classes=NAMES)


@pytest.fixture
def images() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (N, 8, 8)).astype(np.uint8)


@pytest.fixture
def labels() -> NDArray[np.int64]:
    """From none to all three."""
    return np.array([[n >> bit & 1 for bit in range(3)] for n in range(N)])


@pytest.fixture
def archive(tmp_path: Path, images, labels) -> Path:
    np.savez(tmp_path / "scans.npz", images=images, labels=labels, ids=np.arange(N))
    return tmp_path / "scans.npz"


def together(split) -> dict[str, list[int]]:
    """Labels by id, of both parts."""
    return {
        name: row.tolist()
        for part in (split.train, split.test)
        for name, row in zip(part.ids, part.labels, strict=True)
    }


def test_an_archive_and_its_arrays_in_a_folder(archive: Path, labels, tmp_path: Path):
    split = load(str(archive), own=SEVERAL)
    assert split.train.multilabel
    assert split.train.facts.multilabel
    assert (split.train.classes, split.train.class_names) == (3, NAMES)
    assert together(split) == {str(i): row.tolist() for i, row in enumerate(labels)}
    folder = tmp_path / "arrays"
    folder.mkdir()
    for key, array in np.load(archive).items():
        np.save(folder / f"{key}.npy", array)
    assert together(load(str(folder), own=SEVERAL)) == together(split)


@pytest.mark.parametrize("kind", [bool, np.uint8, np.float32])
def test_memory_takes_columns_and_lists(images, labels, kind):
    def of(given: Any, **more: Any) -> dict[str, list[int]]:
        return together(from_memory(images, given, "scans", ids=np.arange(N), own=SEVERAL, **more))

    expected = {str(i): row.tolist() for i, row in enumerate(labels)}
    assert of(labels.astype(kind)) == expected
    assert of(torch.from_numpy(labels)) == expected
    assert of([np.flatnonzero(row).tolist() for row in labels]) == expected
    assert of([[NAMES[i] for i in np.flatnonzero(row)] for row in labels]) == expected
    items = [(image, torch.from_numpy(row)) for image, row in zip(images, labels, strict=True)]

    class Items(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return N

        def __getitem__(self, index: int):
            return items[index]

    split = from_memory(Items(), None, "scans", ids=np.arange(N), own=SEVERAL)
    assert together(split) == expected


def test_hugging_face_lists_of_class_labels(images, labels, tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    kind = datasets.Features(
        {
            "image": datasets.Image(),
            "findings": datasets.Sequence(datasets.ClassLabel(names=[*NAMES])),
            "patient": datasets.Value("string"),
        }
    )
    rows = {
        "image": [Image.fromarray(image) for image in images],
        "findings": [np.flatnonzero(row).tolist() for row in labels],
        "patient": [f"p{i}" for i in range(N)],
    }
    dataset = datasets.Dataset.from_dict(rows, features=kind)
    own = OwnData(task="multilabel", id_column="patient")
    dataset.save_to_disk(tmp_path / "saved")
    split = load(str(tmp_path / "saved"), own=own)
    assert split.train.class_names == NAMES
    assert together(split) == {f"p{i}": row.tolist() for i, row in enumerate(labels)}
    in_memory = from_memory(dataset, None, "scans", ids="patient", own=OwnData(task="multilabel"))
    assert together(in_memory) == together(split)
    with pytest.raises(ConfigError, match="one column of labels"):
        load(str(tmp_path / "saved"), own=OwnData(id_column="patient"))


@pytest.fixture
def folder(tmp_path: Path, images) -> Path:
    """Files without subfolders, as collections are published."""
    from PIL import Image

    place = tmp_path / "files"
    place.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(place / f"{number}.png")
    return place


def in_columns(path: Path, labels, titles=NAMES, cell=str) -> OwnData:
    lines = [",".join(["path", "patient", *titles])]
    lines += [",".join([f"{i}.png", f"p{i // 2}", *map(cell, row)]) for i, row in enumerate(labels)]
    path.write_text("\n".join(lines))
    return SEVERAL.model_copy(update={"table": path})


@pytest.mark.parametrize("cell", [str, float])
def test_a_table_with_a_column_for_each(folder: Path, labels, tmp_path: Path, cell):
    own = in_columns(tmp_path / "table.csv", labels, cell=lambda value: str(cell(value)))
    split = load(str(folder), own=own)
    assert len(split.train) + len(split.test) == N
    assert len(set(split.train.ids)) + len(set(split.test.ids)) == N // 2
    shuffled = in_columns(tmp_path / "b.csv", labels, titles=("A", "B", "C"))
    named = shuffled.model_copy(update={"label_column": "A, B ,C"})
    assert torch.equal(load(str(folder), own=named).train.labels, split.train.labels)
    packed = pack(folder, tmp_path / "packed", own)
    assert packed
    again = load(str(tmp_path / "packed"), own=OwnData(task="multilabel"))
    assert torch.equal(again.train.labels, split.train.labels)


def test_a_table_with_names_in_one_column(folder: Path, labels, tmp_path: Path):
    """As the NIH publishes its chest X-rays."""
    path = tmp_path / "table.csv"
    words = ["|".join(NAMES[i] for i in np.flatnonzero(row)) for row in labels]
    lines = [f"{i}.png,{text or 'No Finding'}" for i, text in enumerate(words)]
    path.write_text("\n".join(["Image Index,Finding Labels", *lines]))
    found = load(str(folder), own=SEVERAL.model_copy(update={"table": path}))
    assert together(found) == {f"{i}.png": row.tolist() for i, row in enumerate(labels)}


def test_chest_mnist_is_known_by_its_name(images, tmp_path: Path):
    findings = np.random.default_rng(1).integers(0, 2, (N, 14))
    arrays = {}
    for part in ("train", "val", "test"):
        arrays |= {f"{part}_images": images, f"{part}_labels": findings}
    np.savez(tmp_path / "chestmnist.npz", **arrays)
    split = load("medmnist:chestmnist", tmp_path)
    assert split.train.multilabel
    assert (split.train.classes, split.train.class_names[0]) == (14, "atelectasis")
    assert np.array_equal(split.test.labels.numpy(), findings)
    assert split.train.ids[0] == "chestmnist-train-0"
    assert read_medmnist(tmp_path / "chestmnist.npz").train.multilabel


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda y: y[:, :2], r"as \[30, 3\], a column for each class"),
        (lambda y: y[:-1], r"as \[30, 3\]"),
        (lambda y: y[:, 0], r"as \[30, 3\]"),
        (lambda y: y + 1, "as 0 and 1, and one is not"),
        (lambda y: y * 0.5, "as 0 and 1, and one is not"),
        (lambda y: np.where(y, np.nan, 0.0), "as 0 and 1, and one is not"),
        (lambda y: y.astype(str), "as 0 and 1, and one is not"),
    ],
)
def test_unusable_labels_are_refused(archive: Path, labels, changed, message: str):
    arrays = dict(np.load(archive))
    np.savez(archive, **{**arrays, "labels": changed(labels)})
    with pytest.raises(InvalidDataError, match=message):
        load(str(archive), own=SEVERAL)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[0, 3]] * N, "among the 3 classes, and a label is not"),
        ([["mass", "flu"]] * N, "among the 3 classes, and a label is not"),
        ([[-1]] * N, "among the 3 classes"),
        ([[0.5]] * N, "among the 3 classes"),
        ([[0, 0, 1]] * N, "names a class twice; columns of 0 and 1 are given as an array"),
        ([0] * N, "as 30 lists of classes"),
    ],
)
def test_unusable_lists_are_refused(images, given, message: str):
    with pytest.raises(InvalidDataError, match=message):
        from_memory(images, given, "scans", own=SEVERAL)


def test_all_mistakes_of_a_table_are_told_with_their_lines(folder: Path, labels, tmp_path: Path):
    path = tmp_path / "table.csv"
    own = in_columns(path, labels)
    lines = path.read_text().splitlines()
    lines[3], lines[7] = "2.png,p1,1,,0", "6.png,p3,1,-1,0"
    path.write_text("\n".join(lines))
    with pytest.raises(InvalidDataError, match="2 mistakes") as caught:
        load(str(folder), own=own)
    for line in (4, 8):
        assert f"line {line}: a label that is none of the classes" in str(caught.value)
    in_columns(path, labels, titles=("mass", "nodule", "oedema"))
    with pytest.raises(ConfigError, match=r"a column for each class .* found no 'edema'"):
        load(str(folder), own=own)
    with pytest.raises(ConfigError, match="found 2 for 3 classes"):
        load(str(folder), own=own.model_copy(update={"label_column": "mass,nodule"}))
    with pytest.raises(ConfigError, match="Expected a column of labels"):
        load(str(folder), own=own.model_copy(update={"classes": 3}))


def test_what_has_one_label_per_image_is_refused(archive: Path, folder: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="images in class subfolders"):
        load(str(folder.parent), own=SEVERAL)
    for name in ("digits", "medmnist:pneumoniamnist"):
        with pytest.raises(ConfigError, match="whose images have one label each"):
            load(name, tmp_path, own=OwnData(task="multilabel"))
    with pytest.raises(InvalidDataError, match="pass --task multilabel"):
        load(str(archive), own=OwnData(classes=3))


def test_parts_are_dealt_by_the_first_label(archive: Path):
    whole = load(str(archive), own=SEVERAL).train
    parts = dirichlet_partition(whole, 2, alpha=100.0, seed=0)
    assert sum(map(len, parts)) == len(whole)
    assert all(part.multilabel for part in parts)
