"""A table of image files: what it says, and all of its mistakes at once."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedtranscribe.config import OwnData
from fedtranscribe.data import load
from fedtranscribe.data.array_folders import pack
from fedtranscribe.errors import ConfigError, DataNotFoundError, InvalidDataError

NAMES = ("ill", "well")


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Twelve pictures in one folder; the i-th is all of brightness i."""
    folder = tmp_path / "scans"
    (folder / "deep").mkdir(parents=True)
    for i in range(12):
        name = f"deep/{i}.png" if i % 2 else f"{i}.png"
        Image.fromarray(np.full((8, 8), i, dtype=np.uint8)).save(folder / name)
    return folder


def rows(*changes: tuple[int, str]) -> list[str]:
    """A line per picture: path, label, patient, part; with some of them changed."""
    lines = [
        f"{f'deep/{i}.png' if i % 2 else f'{i}.png'},{NAMES[i % 3 > 0]},P{i // 2},"
        f"{'test' if i >= 8 else 'train'}"
        for i in range(12)
    ]
    for i, line in changes:
        lines[i] = line
    return lines


def table(scans: Path, lines: list[str], titles: str = "path,label,patient,split") -> OwnData:
    file = scans.parent / "labels.csv"
    file.write_text("\n".join([titles, *lines]), encoding="utf-8")
    return OwnData(table=file, classes=NAMES)


def test_it_says_labels_ids_and_parts(scans: Path):
    split = load(str(scans), own=table(scans, rows()))
    assert split.train.images[:, 0, 0, 0].tolist() == list(range(8)), "in the table's order"
    assert split.test.images[:, 0, 0, 0].tolist() == [8, 9, 10, 11]
    assert split.train.labels.tolist() == [0, 1, 1, 0, 1, 1, 0, 1]
    assert list(split.train.ids) == [f"P{i // 2}" for i in range(8)]
    assert split.train.class_names == NAMES
    assert split.train.ids_made == "id_column patient"
    assert not split.notes


def test_without_parts_and_ids_one_record_in_five_is_held_out(scans: Path):
    lines = [",".join(line.split(",")[:2]) for line in rows()]
    split = load(str(scans), own=table(scans, lines, "path,label"))
    assert len(split.train) + len(split.test) == 12
    assert {*split.train.ids, *split.test.ids} == {line.split(",")[0] for line in lines}


def test_columns_of_other_names_are_named_and_tabs_separate_a_tsv(scans: Path):
    lines = [line.replace(",", "\t") for line in rows()]
    file = scans.parent / "labels.tsv"
    file.write_text("\n".join(["a\tb\tc\td", *lines]), encoding="utf-8")
    columns = {"image_column": "a", "label_column": "b", "id_column": "c", "split_column": "d"}
    split = load(str(scans), own=OwnData(table=file, classes=NAMES, **columns))
    assert len(split.train) == 8
    assert list(split.test.ids) == ["P4", "P4", "P5", "P5"]


def test_usual_names_are_found_however_they_are_written(scans: Path):
    split = load(str(scans), own=table(scans, rows(), "Image Index,Finding Labels,Patient ID,Set"))
    assert split.train.labels.tolist() == [0, 1, 1, 0, 1, 1, 0, 1]
    assert split.train.ids[3] == "P1"


def test_numbers_are_labels_where_classes_are_counted(scans: Path):
    lines = [line.replace("ill", "0").replace("well", "1") for line in rows()]
    own = table(scans, lines)
    split = load(str(scans), own=own.model_copy(update={"classes": 3}))
    assert split.train.classes == 3
    assert split.train.labels.tolist() == [0, 1, 1, 0, 1, 1, 0, 1]


def test_what_is_not_used_is_counted(scans: Path):
    lines = rows((0, "0.png,ill,P0,val"), (1, "deep/1.png,well,P0,"))
    (note,) = load(str(scans), own=table(scans, lines[:-1])).notes
    assert note == (
        f"left out of '{scans}': 1 rows of the part 'val', 1 rows without a part, "
        "3 images that the table does not name"
    )


def test_all_mistakes_are_named_at_once_with_their_lines(scans: Path):
    own = table(
        scans,
        rows(
            (0, "0.png,ill,P0"),
            (1, "deep/1.png,sick,P0,train"),
            (2, "../secret.png,ill,P1,train"),
            (3, "none.png,ill,P1,train"),
            (4, "4.png,ill,,train"),
            (5, "4.png,well,P2,train"),
            (6, "deep/5.png,well,P3,holdout"),
            (7, ",well,P3,train"),
            (8, "deep/9.png,well,P3,train"),
            (9, "8.png,well,P3,test"),
            (10, "8.png,ill,P3,test"),
        ),
    )
    with pytest.raises(InvalidDataError) as error:
        load(str(scans), own=own)
    assert str(error.value).splitlines()[1:] == [
        "  line 2: 3 columns instead of 4",
        "  line 3: a label that is none of the classes",
        "  line 4: path '../secret.png' leads out of the folder",
        "  line 5: no file 'none.png'",
        "  line 6: no id",
        "  line 8: part 'holdout', not train, test or val",
        "  line 9: no path",
        "  line 11: its id is in the other part in line 10",
        "  line 12: path '8.png' is in line 11, too",
    ]


def test_of_many_mistakes_the_first_are_shown(scans: Path):
    lines = [f"none{i}.png,ill,P0,train" for i in range(30)]
    with pytest.raises(InvalidDataError, match=r"found 30 mistakes[\s\S]*line 21: [\s\S]*10 more"):
        load(str(scans), own=table(scans, lines))


@pytest.mark.parametrize(
    ("titles", "message"),
    [
        ("a,label,patient,split", "a column of paths in .*'a', 'label'.*--image-column NAME"),
        ("path,b,patient,split", "a column of labels in .*--label-column NAME"),
        ("path,label,class,split", "one column for --label-column .*'label' and 'class'"),
        ("path,label,label,split", "different titles in .*'label' twice"),
    ],
)
def test_columns_that_are_not_clear_are_refused(scans: Path, titles: str, message: str):
    with pytest.raises((ConfigError, InvalidDataError), match=message):
        load(str(scans), own=table(scans, rows(), titles))


def test_classes_are_stated_and_not_counted(scans: Path):
    own = table(scans, rows()).model_copy(update={"classes": None})
    with pytest.raises(ConfigError, match=r"stated, not counted.*--classes benign,malignant"):
        load(str(scans), own=own)


def test_other_refusals(scans: Path, tmp_path: Path):
    own = table(scans, rows())
    alone = [line for line in rows() if line.endswith("train")]
    with pytest.raises(InvalidDataError, match="found train alone; correct the column"):
        load(str(scans), own=table(scans, alone))
    with pytest.raises(InvalidDataError, match=r"Expected images in .*found none"):
        load(str(scans), own=table(scans, []))
    with pytest.raises(DataNotFoundError, match="check --table"):
        load(str(scans), own=own.model_copy(update={"table": tmp_path / "none.csv"}))
    (scans / "note.txt").write_text("x")
    with pytest.raises(InvalidDataError, match=r"'note\.txt' in line 13; convert it"):
        load(str(scans), own=table(scans, rows((11, "note.txt,ill,P5,test"))))
    with pytest.raises(ConfigError, match="from the column 'patient' of"):
        load(str(scans), own=table(scans, rows()).model_copy(update={"id_pattern": "(.)"}))
    with pytest.raises(ConfigError, match="no --table for data='digits'"):
        load("digits", own=own)
    with pytest.raises(ConfigError, match="Expected --table with --split-column"):
        load(str(scans), own=OwnData(split_column="split"))


def test_a_packed_table_has_the_same_records(scans: Path, tmp_path: Path):
    own = table(scans, rows())
    pack(scans, tmp_path / "packed", own)
    packed, read = load(str(tmp_path / "packed")), load(str(scans), own=own)
    for one, other in ((packed.train, read.train), (packed.test, read.test)):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
        assert list(one.ids) == list(other.ids)


def test_nobody_is_in_both_parts_of_a_folder(tmp_path: Path):
    for part, name in (("train", "p1_a"), ("train", "p2_a"), ("test", "p1_b")):
        folder = tmp_path / part / "ill"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(folder / f"{name}.png")
    own = OwnData(classes=NAMES, id_pattern=r"(p\d+)_")
    with pytest.raises(InvalidDataError, match=r"1 ids are in train and test;"):
        load(str(tmp_path), own=own)
