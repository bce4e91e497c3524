"""Classes are stated, never counted; names are kept."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedtranscribe.config import OwnData
from fedtranscribe.data import DataSplit, ImageSet, load, registry
from fedtranscribe.errors import ConfigError, InvalidDataError


def saved(tmp_path, **changes):
    content = {
        "images": np.zeros((40, 8, 8), dtype=np.uint8),
        "labels": np.arange(40) % 3,
        "ids": np.array([f"patient-{i}" for i in range(40)]),
        **changes,
    }
    np.savez(tmp_path / "ward.npz", **content)
    return str(tmp_path / "ward.npz")


def test_classes_are_never_counted_from_labels(tmp_path):
    with pytest.raises(InvalidDataError, match=r"key 'classes'.* --classes N.* np\.savez"):
        load(saved(tmp_path))


def test_the_printed_command_adds_the_key(tmp_path):
    path = saved(tmp_path)
    with pytest.raises(InvalidDataError) as refused:
        load(path)
    code = str(refused.value).split('python -c "')[1].rstrip('"').replace("classes=N", "classes=3")
    exec(code)
    assert load(path).train.classes == 3


def test_a_record_does_not_change_the_number_of_classes(tmp_path):
    one_more = np.arange(40) % 3
    one_more[7] = 3
    for labels in (np.arange(40) % 3, one_more):
        assert load(saved(tmp_path, labels=labels, classes=5)).train.classes == 5


@pytest.mark.parametrize("label", [3, 300_000_000, -1])
def test_a_label_that_is_no_class_is_not_told(tmp_path, label):
    labels = np.arange(40) % 3
    labels[7] = label
    with pytest.raises(InvalidDataError, match=r"labels in '.*ward\.npz' within 0\.\.2") as refused:
        load(saved(tmp_path, labels=labels, classes=3))
    said = str(refused.value).replace(str(tmp_path), "")
    assert "--classes" in said
    assert f"{label}" not in said.replace("classes=3", "")


def test_the_option_states_them_too(tmp_path):
    path = saved(tmp_path)
    assert load(path, own=OwnData(classes=4)).train.classes == 4
    named = load(path, own=OwnData.model_validate({"classes": "benign, malignant, unclear"}))
    assert named.train.class_names == ("benign", "malignant", "unclear")


def test_names_in_the_archive(tmp_path):
    names = np.array(["benign", "malignant", "unclear"])
    for more in ({}, {"classes": 3}):
        split = load(saved(tmp_path, class_names=names, **more))
        assert split.test.class_names == tuple(names.tolist())
    with pytest.raises(InvalidDataError, match="each of 4 classes"):
        load(saved(tmp_path, class_names=names, classes=4))
    with pytest.raises(InvalidDataError, match="as strings"):
        load(saved(tmp_path, class_names=np.arange(3)))


def test_contradictions_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="classes=4 to be the 3 classes"):
        load(saved(tmp_path, classes=3), own=OwnData(classes=4))
    with pytest.raises(ConfigError, match="class names that"):
        load(saved(tmp_path, class_names=["a", "b", "c"]), own=OwnData(classes=("c", "b", "a")))
    with pytest.raises(ConfigError, match="key 'ids'"):
        load(saved(tmp_path, classes=3), own=OwnData(id_pattern="(.)"))


def test_named_sets_state_theirs_and_take_names(monkeypatch):
    images = torch.zeros(10, 1, 8, 8, dtype=torch.uint8)
    small = ImageSet("digits", "digits", images, torch.arange(10), 10)
    monkeypatch.setitem(registry.PACKAGED, "digits", lambda: DataSplit(small, small))
    ten = tuple(f"digit {i}" for i in range(10))
    assert load("digits", own=OwnData(classes=ten)).test.class_names == ten
    with pytest.raises(ConfigError, match="classes=3 to be the 10 classes that 'digits'"):
        load("digits", own=OwnData(classes=3))
    with pytest.raises(ConfigError, match="ids of its own"):
        load("digits", own=OwnData(id_pattern="(.)"))


@pytest.mark.parametrize("flag", ["pneumoniamnist", "pneumoniamnist_64"])
def test_official_sets_of_medmnist_have_theirs(tmp_path, flag):
    arrays = {
        f"{part}_{kind}": value
        for part in ("train", "test")
        for kind, value in (
            ("images", np.zeros((4, 28, 28), dtype=np.uint8)),
            ("labels", np.zeros((4, 1), dtype=np.uint8)),
        )
    }
    np.savez(tmp_path / f"{flag}.npz", **arrays)
    assert load(f"medmnist:{flag}", tmp_path).train.classes == 2
    np.savez(tmp_path / "toymnist.npz", **arrays)
    with pytest.raises(InvalidDataError, match="key 'classes'"):
        load("medmnist:toymnist", tmp_path)
    assert load("medmnist:toymnist", tmp_path, own=OwnData(classes=7)).train.classes == 7


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"classes": "1"}, "2 to 65536 classes"),
        ({"classes": 300_000_000}, "2 to 65536 classes"),
        ({"classes": "cat"}, "2 to 65536 classes"),
        ({"classes": "cat,cat"}, "different names"),
        ({"classes": "cat,"}, "different names"),
        ({"classes": ["cat", "d\nog"]}, "printable"),
        ({"id_pattern": "("}, "regular expression"),
        ({"id_pattern": "abc"}, "one group"),
        ({"id_pattern": "(a)(b)"}, "one group"),
        ({"bit_depth": 17}, "less than or equal to 16"),
        ({"max_gib": 0}, "greater than 0"),
    ],
)
def test_settings_are_checked(values, words):
    with pytest.raises(ValidationError, match=words):
        OwnData.model_validate(values)
