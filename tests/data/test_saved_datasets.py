"""Folders that the package `datasets` has saved, as private data."""

import io
import json

import numpy as np
import pytest
from PIL import Image as Picture

from fedtranscribe.config import OwnData
from fedtranscribe.data import hub_datasets as saved_datasets
from fedtranscribe.data import load
from fedtranscribe.errors import ConfigError, DataNotFoundError, InvalidDataError

datasets = pytest.importorskip("datasets")

NAMES = ["benign", "malignant"]
PATIENTS = [f"p{i % 30}" for i in range(60)]


def rows(n=60, side=8, mode="L"):
    pictures = []
    for i in range(n):
        stream = io.BytesIO()
        colour = 100 + i if mode == "L" else (100 + i, 0, 0)
        Picture.new(mode, (side, side), colour).save(stream, "PNG")
        pictures.append({"bytes": stream.getvalue(), "path": None})
    return {
        "scan": pictures,
        "diagnosis": [i % 2 for i in range(n)],
        "age": [40 + i for i in range(n)],
    }


FEATURES = datasets.Features(
    {
        "scan": datasets.Image(),
        "diagnosis": datasets.ClassLabel(names=NAMES),
        "age": datasets.Value("int64"),
    }
)


WITH_PATIENTS = datasets.Features({**FEATURES, "patient": datasets.Value("string")})


def dataset(features=FEATURES, **changes):
    return datasets.Dataset.from_dict({**rows(), **changes}, features=features)


def test_columns_are_found_by_their_types(tmp_path):
    dataset().save_to_disk(tmp_path / "scans")
    split = load(str(tmp_path / "scans"))
    train = split.train
    assert len(train) + len(split.test) == 60
    assert (train.classes, train.class_names) == (2, tuple(NAMES))
    assert (train.channels, train.size) == (1, 8)
    assert train.data_id == "datasets:scans"
    assert train.folder == tmp_path / "scans"
    assert train.positional
    levels = train.images[:, 0, 0, 0] - 100
    assert (levels % 2 == train.labels).all()


def test_a_column_of_ids_keeps_patients_together(tmp_path):
    dataset(WITH_PATIENTS, patient=PATIENTS).save_to_disk(tmp_path)
    with pytest.raises(InvalidDataError, match=r"without 'patient', .* by --id-column"):
        load(str(tmp_path))
    split = load(str(tmp_path), own=OwnData(id_column="patient"))
    assert {*split.train.ids, *split.test.ids} == set(PATIENTS)
    assert set(split.train.ids).isdisjoint(split.test.ids)
    numbered = load(str(tmp_path), own=OwnData(id_column="age"))
    assert "40" in {*numbered.train.ids, *numbered.test.ids}
    with pytest.raises(ConfigError, match="--id-column='name' as one of the columns 'scan'"):
        load(str(tmp_path), own=OwnData(id_column="name"))


def test_the_splits_train_and_test(tmp_path):
    whole = dataset().train_test_split(test_size=20, shuffle=False)
    whole["validation"] = dataset()
    whole.save_to_disk(tmp_path / "scans")
    split = load(str(tmp_path / "scans"))
    assert (len(split.train), len(split.test)) == (40, 20)
    assert split.notes == (f"left out of '{tmp_path / 'scans'}': the splits 'validation'",)
    assert split.train.images[0, 0, 0, 0] == 100
    alone = datasets.DatasetDict({"train": dataset()})
    alone.save_to_disk(tmp_path / "alone")
    assert len(load(str(tmp_path / "alone")).train) < 60
    datasets.DatasetDict({"all": dataset()}).save_to_disk(tmp_path / "other")
    with pytest.raises(DataNotFoundError, match=r"'train' and 'test' in .*, found 'all'"):
        load(str(tmp_path / "other"))
    assert len(load(str(tmp_path / "other" / "all")).train) < 60


def test_what_is_not_clear_is_named_by_the_user(tmp_path):
    two = datasets.Features({**FEATURES, "age": datasets.ClassLabel(num_classes=200)})
    dataset(two).save_to_disk(tmp_path / "two")
    with pytest.raises(ConfigError, match=r"one column of labels in .*found 2 .*--label-column"):
        load(str(tmp_path / "two"))
    split = load(str(tmp_path / "two"), own=OwnData(label_column="diagnosis"))
    assert split.train.class_names == tuple(NAMES)
    plain = datasets.Features({**FEATURES, "diagnosis": datasets.Value("int64")})
    dataset(plain).save_to_disk(tmp_path / "plain")
    with pytest.raises(ConfigError, match="found 0 among"):
        load(str(tmp_path / "plain"))
    named = OwnData(label_column="diagnosis")
    with pytest.raises(InvalidDataError, match="ClassLabel, which states the classes"):
        load(str(tmp_path / "plain"), own=named)
    stated = named.model_copy(update={"classes": 2})
    assert load(str(tmp_path / "plain"), own=stated).train.classes == 2
    text = datasets.Features({**FEATURES, "diagnosis": datasets.Value("string")})
    dataset(text, diagnosis=[NAMES[i % 2] for i in range(60)]).save_to_disk(tmp_path / "text")
    stated = named.model_copy(update={"classes": tuple(NAMES)})
    labels = load(str(tmp_path / "text"), own=stated).train.labels
    assert labels.equal(load(str(tmp_path / "two"), own=named).train.labels)
    with pytest.raises(ConfigError, match="found no 'x' among"):
        load(str(tmp_path / "plain"), own=OwnData(image_column="x"))
    with pytest.raises(ConfigError, match=r"'age' of .* to have the type Image"):
        load(str(tmp_path / "two"), own=OwnData(label_column="diagnosis", image_column="age"))


def test_settings_that_do_not_fit(tmp_path):
    dataset().save_to_disk(tmp_path)
    with pytest.raises(ConfigError, match="classes=3 to be the 2 classes"):
        load(str(tmp_path), own=OwnData(classes=3))
    with pytest.raises(ConfigError, match="--id-column NAME"):
        load(str(tmp_path), own=OwnData(id_pattern="(p)"))
    for name in ("digits", str(tmp_path / "x.npz")):
        with pytest.raises(ConfigError, match="Expected no --id-column for data="):
            load(name, own=OwnData(id_column="patient"))


def test_pictures_are_decoded_as_those_of_folders(tmp_path):
    dataset(scan=rows(side=12)["scan"]).save_to_disk(tmp_path / "larger")
    small = load(str(tmp_path / "larger"), own=OwnData(image_size=8))
    assert small.train.size == 8
    mixed = rows()["scan"][:59] + rows(side=12)["scan"][:1]
    dataset(scan=mixed).save_to_disk(tmp_path / "mixed")
    with pytest.raises(InvalidDataError, match="--image-size to resize"):
        load(str(tmp_path / "mixed"))
    broken = [{"bytes": b"no picture", "path": None}, *rows()["scan"][1:]]
    dataset(scan=broken).save_to_disk(tmp_path / "broken")
    with pytest.raises(InvalidDataError, match=r"The image in row 0 of .* cannot be read"):
        load(str(tmp_path / "broken"))


def test_a_path_or_an_address_in_place_of_a_picture_is_not_followed(tmp_path):
    picture = tmp_path / "elsewhere.png"
    Picture.new("L", (8, 8)).save(picture)
    for number, place in enumerate((str(picture), "https://pictures.example/x.png")):
        # As somebody might write it by hand: `save_to_disk` would take the pictures in.
        plain = datasets.Features(
            {
                **FEATURES,
                "scan": {"bytes": datasets.Value("binary"), "path": datasets.Value("string")},
            }
        )
        folder = tmp_path / f"saved{number}"
        dataset(plain, scan=[{"bytes": None, "path": place}] * 60).save_to_disk(folder)
        info = json.loads((folder / "dataset_info.json").read_text())
        info["features"]["scan"] = {"_type": "Image"}
        (folder / "dataset_info.json").write_text(json.dumps(info))
        with pytest.raises(InvalidDataError, match="row 0 has none"):
            load(str(folder))


@pytest.mark.parametrize("name", ["../other/data.arrow", "/etc/hostname", 3, "absent.arrow"])
def test_files_elsewhere_are_not_read(tmp_path, name):
    dataset().save_to_disk(tmp_path / "scans")
    state = tmp_path / "scans" / "state.json"
    value = json.loads(state.read_text())
    state.write_text(json.dumps({**value, "_data_files": [{"filename": name}]}))
    with pytest.raises(InvalidDataError, match=r"Arrow files of .* inside of it"):
        load(str(tmp_path / "scans"))


@pytest.mark.parametrize("file", ["state.json", "dataset_info.json", "data-00000-of-00001.arrow"])
def test_damaged_files(tmp_path, file):
    dataset().save_to_disk(tmp_path / "scans")
    (tmp_path / "scans" / file).write_bytes(b"[")
    with pytest.raises(InvalidDataError, match="save"):
        load(str(tmp_path / "scans"))


def test_labels_that_are_missing_are_no_class(tmp_path):
    dataset(diagnosis=[-1] + [0] * 59).save_to_disk(tmp_path)
    with pytest.raises(InvalidDataError, match="and a label is not"):
        load(str(tmp_path))
    missing = dataset(WITH_PATIENTS, patient=[None] + ["a"] * 59)
    missing.save_to_disk(tmp_path / "ids")
    with pytest.raises(InvalidDataError, match="strings or whole numbers in the column 'patient'"):
        load(str(tmp_path / "ids"), own=OwnData(id_column="patient"))


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    dataset().save_to_disk(tmp_path)
    monkeypatch.setattr(saved_datasets.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataNotFoundError, match=r"fedtranscribe\[datasets\]"):
        load(str(tmp_path))


def test_colour(tmp_path):
    dataset(scan=rows(mode="RGB")["scan"]).save_to_disk(tmp_path)
    train = load(str(tmp_path)).train
    assert train.channels == 3
    assert np.unique(train.images[:, 1].numpy()).tolist() == [0]
