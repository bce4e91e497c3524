import pytest
import torch

from fedtranscribe.data import DataSplit, ImageSet
from fedtranscribe.errors import InvalidDataError


def make(n=6, channels=1, size=8, classes=3, **changes):
    facts = {
        "name": "toy",
        "data_id": "toy",
        "pixels": torch.zeros(n, channels, size, size, dtype=torch.uint8),
        "labels": torch.arange(n) % classes,
        "classes": classes,
    }
    return ImageSet(**{**facts, **changes})


def test_a_valid_set_tells_its_shape_and_ids():
    data = make(channels=3)
    assert (len(data), data.channels, data.size, data.positional) == (6, 3, 8, True)
    assert data.ids[:2] == ("row-0", "row-1")


def test_subset_keeps_persistent_ids():
    data = make(record_ids=tuple("abcdef"))
    part = data.subset([4, 1])
    assert part.ids == ("e", "b")
    assert not part.positional
    assert make(class_names=("cat", "dog", "emu")).subset([4, 1]).class_names == (
        *("cat", "dog", "emu"),
    )
    assert part.labels.tolist() == [data.labels[4], data.labels[1]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pixels": torch.zeros(6, 1, 8, 8)}, "uint8"),
        ({"pixels": torch.zeros(0, 1, 8, 8, dtype=torch.uint8)}, "n > 0"),
        ({"pixels": torch.zeros(6, 1, 8, 9, dtype=torch.uint8)}, "square"),
        ({"pixels": torch.zeros(6, 2, 8, 8, dtype=torch.uint8)}, "1 or 3 channels"),
        ({"labels": torch.zeros(5, dtype=torch.int64)}, "one per image"),
        ({"labels": torch.zeros(6)}, "int64"),
        ({"labels": torch.tensor([0, 1, 2, 3, 0, 0])}, r"within 0\.\.2"),
        ({"labels": torch.tensor([0, 1, 2, -1, 0, 0])}, r"within 0\.\.2"),
        ({"classes": 1}, "2 <= classes=1"),
        ({"classes": 300_000_000}, "classes=300000000 <= "),
        ({"class_names": ("cat", "dog")}, "each of 3 classes"),
        ({"class_names": ("cat", "dog", "dog")}, "each of 3 classes"),
        ({"class_names": ("cat", "dog", "e\nmu")}, r"'e\\nmu'.* printable"),
        ({"class_names": ("cat", "dog", "e" * 201)}, "200 printable"),
        ({"data_id": "ward\n12"}, r"'ward\\n12'.* printable"),
        ({"data_id": "w" * 201}, "200 printable"),
        ({"data_id": ""}, "printable"),
        ({"record_ids": ("a",)}, "got 1 ids for 6"),
        ({"record_ids": ("a", "b", "", "d", "e", "f")}, "non-empty"),
        ({"record_ids": ("a", "b", "c", "d", "e", "\udcff")}, "UTF-8"),
    ],
)
def test_unusable_content_is_refused(changes, words):
    with pytest.raises(InvalidDataError, match=words):
        make(**changes)


def test_both_parts_must_describe_one_task():
    with pytest.raises(InvalidDataError, match="agree"):
        DataSplit(make(), make(size=9))
