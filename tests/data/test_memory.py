"""Data in memory: what is accepted, what it becomes, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from fedtranscribe.config import OwnData
from fedtranscribe.data import from_memory, load
from fedtranscribe.data.memory import digest_of
from fedtranscribe.errors import (
    ConfigError,
    DataError,
    DataNotFoundError,
    FedtranscribeError,
    InvalidDataError,
)

THREE = OwnData(classes=3)
LABELS = np.arange(30) % 3
GREY = np.random.default_rng(0).integers(0, 256, (30, 8, 8), dtype=np.uint8)
COLOUR = np.random.default_rng(1).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
IDS = [f"patient-{i // 2}" for i in range(30)]
NAMED = [("cat", "dog", "owl")[label] for label in LABELS]


def read(images: Any, labels: Any = LABELS, **others: Any):
    return from_memory(images, labels, "scans", **{"own": THREE, **others})


def whole(split) -> torch.Tensor:
    """All images, in the order of their bytes."""
    images = torch.cat([split.train.images, split.test.images])
    return images[np.lexsort(images.flatten(1).numpy().T)]


def pictures() -> list[Any]:
    image_module = pytest.importorskip("PIL.Image")
    return [image_module.fromarray(image) for image in COLOUR]


class Pictures(Dataset[Any]):
    """As torchvision's sets: a picture of Pillow and a number."""

    def __init__(self) -> None:
        self.pictures = pictures()

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.pictures[index], int(LABELS[index])


@pytest.mark.parametrize(
    "images",
    [
        GREY,
        GREY[:, None],
        GREY[..., None],
        torch.from_numpy(GREY),
        torch.from_numpy(GREY)[:, None].float() / 255,
        GREY / 255,
        (GREY / 255).astype(np.float32),
        GREY.astype(np.int64),
        list(GREY),
        [torch.from_numpy(image)[None] for image in GREY],
    ],
)
def test_grey_images_are_the_same_in_every_form(images: Any):
    split = read(images)
    assert (split.train.channels, split.train.size, split.train.classes) == (1, 8, 3)
    assert whole(split).equal(whole(read(GREY)))
    assert len(split.train) + len(split.test) == 30


@pytest.mark.parametrize(
    "images",
    [
        COLOUR.transpose(0, 3, 1, 2),
        torch.from_numpy(COLOUR),
        torch.from_numpy(COLOUR).permute(0, 3, 1, 2) / 255,
    ],
)
def test_colour_images_are_the_same_in_every_form(images: Any):
    assert whole(read(images)).equal(whole(read(COLOUR)))
    assert read(images).train.channels == 3


class Strings:
    """As a pandas Series has them."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(NAMED, dtype=object)


@pytest.mark.parametrize("labels", [NAMED, np.array(NAMED), Strings()])
def test_labels_may_be_the_stated_names(labels: Any):
    """Their order is that of the names, whichever labels there are."""
    names = ("owl", "cat", "dog", "eel")
    split = read(GREY, labels, own=OwnData(classes=names))
    numbers = np.array([1, 2, 0])[LABELS]
    assert split.train.labels.equal(read(GREY, numbers).train.labels)
    assert (split.train.classes, split.train.class_names) == (4, names)


def test_a_label_that_is_no_class_is_not_printed():
    with pytest.raises(DataError, match="among the class names 'cat', 'dog'") as caught:
        read(GREY, NAMED, own=OwnData(classes=("cat", "dog")))
    assert "owl" not in str(caught.value)


@pytest.mark.parametrize("labels", [LABELS.tolist(), torch.from_numpy(LABELS), LABELS[:, None]])
def test_labels_are_the_same_in_every_form(labels: Any):
    assert read(GREY, labels).train.labels.equal(read(GREY).train.labels)


def test_it_is_the_split_of_an_archive(tmp_path: Path):
    facts = {"images": GREY, "labels": LABELS, "ids": np.array(IDS), "classes": 3}
    np.savez(tmp_path / "scans.npz", **facts)
    archive, here = load(str(tmp_path / "scans.npz")), read(GREY, ids=IDS)
    for one, other in ((archive.train, here.train), (archive.test, here.test)):
        assert one.images.equal(other.images)
        assert one.labels.equal(other.labels)
        assert one.record_ids == other.record_ids


def test_images_of_one_patient_stay_together():
    split = read(GREY, ids=IDS)
    assert not set(split.train.ids) & set(split.test.ids)
    assert not split.train.positional
    assert read(GREY).train.positional


def test_a_test_part_is_taken_as_it_is():
    split = read(GREY[:20], LABELS[:20], test=(GREY[20:], LABELS[20:]))
    assert (len(split.train), len(split.test)) == (20, 10)
    tensors = torch.from_numpy(GREY[20:])[:, None], torch.from_numpy(LABELS[20:])
    again = read(GREY[:20], LABELS[:20], test=TensorDataset(*tensors))
    assert again.test.images.equal(split.test.images)


def test_what_it_is_called():
    split = read(GREY, own=OwnData(classes=("a", "b", "c")))
    assert (split.train.name, split.train.data_id) == ("memory:scans", "scans")
    assert split.train.class_names == ("a", "b", "c")
    assert split.train.folder is None


# ---------------------------------------------------------------- torch


def test_torch_datasets_are_read_item_by_item():
    tensors = TensorDataset(torch.from_numpy(GREY)[:, None] / 255, torch.from_numpy(LABELS))
    assert whole(read(tensors, None)).equal(whole(read(GREY)))
    halves = ConcatDataset([Subset(tensors, range(15)), Subset(tensors, range(15, 30))])
    assert read(halves, None).train.labels.equal(read(GREY).train.labels)
    assert whole(read(Pictures(), None)).equal(whole(read(COLOUR)))
    assert whole(read(pictures())).equal(whole(read(COLOUR)))


def test_pictures_may_be_scaled():
    split = read(Pictures(), None, own=OwnData(classes=3, image_size=16))
    assert split.train.size == 16


class Stream(IterableDataset[Any]):
    def __iter__(self):
        yield GREY[0], 0


class Dictionaries(Dataset[Any]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": GREY[0], "label": 0}


# ---------------------------------------------------------------- Hugging Face


def hub_dataset(**more: Any) -> Any:
    datasets = pytest.importorskip("datasets")
    names = ["cat", "dog", "owl"]
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=names)}
    kinds |= {name: datasets.Value("string") for name in more}
    columns = {"image": pictures(), "label": LABELS.tolist(), **more}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


def test_a_hub_dataset_states_its_classes():
    split = read(hub_dataset(), None, own=OwnData())
    assert whole(split).equal(whole(read(COLOUR)))
    assert split.train.class_names == ("cat", "dog", "owl")
    assert read(hub_dataset().with_format("torch"), None).train.images.equal(split.train.images)
    with pytest.raises(ConfigError, match="3 classes"):
        read(hub_dataset(), None, own=OwnData(classes=4))


def test_ids_may_be_a_column_of_a_hub_dataset():
    split = read(hub_dataset(patient=IDS), None, ids="patient")
    assert split.train.ids_by == read(hub_dataset(), None, ids=IDS).train.ids_by, "the same ids"
    assert set(split.train.ids) | set(split.test.ids) == set(IDS)
    with pytest.raises(ConfigError, match=r"ids='doctor' as one of the columns 'image', 'label'"):
        read(hub_dataset(), None, ids="doctor")


def test_ids_that_come_with_a_dataset_are_not_overlooked():
    with pytest.raises(DataError, match=r"without 'patient', .* Pass ids='NAME'"):
        read(hub_dataset(patient=IDS), None)
    patients = torch.arange(30) // 2
    three = TensorDataset(torch.from_numpy(GREY), torch.from_numpy(LABELS), patients)
    with pytest.raises(DataError, match=r"got 3 values: .* pass ids="):
        read(three, None)
    assert whole(read(three, None, ids=IDS, test=three)).equal(whole(read(GREY, test=three)))


@pytest.mark.parametrize(
    "own", [{"id_pattern": "p(.*)_"}, {"id_column": "patient"}, {"ids": Path("ids.csv")}]
)
def test_how_files_are_read_is_refused_for_data_in_memory(own: dict[str, Any]):
    with pytest.raises(ConfigError, match=f"no {next(iter(own))}=.* images in memory"):
        read(COLOUR, own=OwnData(classes=3, **own))


def test_grey_and_colour_pictures_in_memory():
    image_module = pytest.importorskip("PIL.Image")
    pictures = [image_module.fromarray(image) for image in GREY]
    pictures[1] = pictures[1].convert("RGB")
    assert whole(read(pictures)).equal(whole(read(GREY)))
    pictures[1] = image_module.fromarray(COLOUR[1])
    with pytest.raises(
        InvalidDataError, match=r"number 0 is grey and number 1 is colour.*channels"
    ):
        read(pictures)
    for channels in (1, 3):
        own = OwnData(classes=3, channels=channels)
        assert read(pictures, own=own).train.channels == channels
    with pytest.raises(ConfigError, match=r"no channels=3 for the images .* with 1 channel;"):
        read(GREY, own=OwnData(classes=3, channels=3))


def test_what_cannot_be_told_apart_in_a_hub_dataset_is_asked_for():
    twice = (
        hub_dataset()
        .add_column("other", [0] * 30)
        .cast_column("other", hub_dataset().features["label"])
    )
    with pytest.raises(ConfigError, match=r"one column of labels .* found 2"):
        read(twice, None)
    both = pytest.importorskip("datasets").DatasetDict(train=hub_dataset(), test=hub_dataset())
    with pytest.raises(ConfigError, match=r"dataset\['train'\]"):
        read(both, None)


# ---------------------------------------------------------------- refused


NAN = GREY / 255
NAN[3, 2, 1] = np.nan


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"images": NAN}, "finite pixels"),
        ({"images": GREY * 2.0}, r"within \[0, 1\]"),
        ({"images": GREY.astype(np.int64) - 1}, r"within \[0, 255\]"),
        ({"images": GREY[:, :4]}, "square"),
        ({"images": GREY[0]}, "got shape"),
        ({"images": np.zeros((30, 2, 8, 8), np.uint8)}, "1 or 3 channels"),
        ({"images": GREY[:0], "labels": LABELS[:0]}, "at least one record, got none: the images"),
        ({"images": [], "labels": []}, "at least one record, got none"),
        ({"ids": ["same"] * 30}, "more than 1 record in .*, since all 30 images share one id"),
        ({"images": [GREY[0], GREY[0, :4]], "labels": [0, 1]}, "one size"),
        ({"images": ["a.png"], "labels": [0]}, "got str"),
        ({"images": "digits"}, "data=…"),
        ({"images": 5}, "got int"),
        ({"labels": LABELS[:29]}, "29 labels for 30 images"),
        ({"labels": LABELS + 1}, r"within 0\.\.2"),
        ({"labels": LABELS - 1}, r"within 0\.\.2"),
        ({"labels": LABELS + 0.5}, "whole"),
        ({"labels": ["cat"] * 30}, r"got strings\. State the names .* in Python \['cat', 'dog'\]"),
        ({"labels": None}, "Expected labels"),
        ({"own": OwnData()}, "classes=N"),
        ({"ids": IDS[:29]}, "29 ids for 30 images"),
        ({"ids": ["", *IDS[1:]]}, "non-empty"),
        ({"ids": np.linspace(0, 1, 30)}, "strings or whole numbers"),
        ({"ids": [*IDS[1:], float("nan")]}, "got strings and float"),
        ({"ids": "patient"}, "Hugging Face"),
        ({"test": (COLOUR, LABELS)}, "agree on"),
        ({"test": (GREY, LABELS + 3)}, r"within 0\.\.2"),
        ({"test": GREY}, "Expected labels"),
        ({"images": Stream(), "labels": None}, "with a length"),
        ({"images": Dictionaries(), "labels": None}, "items"),
        ({"images": Dictionaries()}, "no labels"),
    ],
)
def test_what_cannot_be_used_is_refused(arguments: dict[str, Any], named: str):
    with pytest.raises(FedtranscribeError, match=named) as caught:
        from_memory(**{"images": GREY, "labels": LABELS, "data_id": "s", "own": THREE, **arguments})
    assert isinstance(caught.value, DataError | ConfigError)


def test_a_name_has_to_be_one():
    with pytest.raises(DataError, match="1 to 200 printable"):
        from_memory(GREY, LABELS, "a\nb", own=THREE)


def test_they_cannot_be_loaded_again():
    with pytest.raises(DataNotFoundError, match="passed in memory"):
        load("memory:scans.npz")


def test_the_digest_tells_data_apart():
    same = digest_of(read(GREY, ids=IDS))
    assert same == digest_of(read(torch.from_numpy(GREY), LABELS.tolist(), ids=np.array(IDS)))
    other = GREY.copy()
    other[7, 0, 0] ^= 1
    relabelled = np.where(np.arange(30) == 4, 2, LABELS)
    others = [read(other, ids=IDS), read(GREY, relabelled, ids=IDS), read(GREY), read(GREY[::-1])]
    assert len({same, *map(digest_of, others)}) == 5
