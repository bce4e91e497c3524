import pytest
from PIL import Image

from fedtranscribe.config import OwnData
from fedtranscribe.data import load
from fedtranscribe.errors import ConfigError, DataNotFoundError, InvalidDataError


def fill(folder, n=12, size=(8, 8), mode="L", classes=("cat", "dog")):
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(n):
            Image.new(mode, size, 100 + label if mode == "L" else (100, label, 0)).save(
                folder / name / f"{name}{i:02d}.png"
            )


def test_class_subfolders_with_a_fixed_held_out_part(tmp_path):
    fill(tmp_path / "pets")
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("not an image")
    split = load(str(tmp_path / "pets"))
    assert len(split.train) + len(split.test) == 24
    assert (split.train.classes, split.train.channels, split.train.size) == (2, 1, 8)
    assert split.train.data_id == "folder:pets"
    assert split.train.folder == tmp_path / "pets"
    colours = split.train.images[:, 0, 0, 0].tolist()
    assert colours == [100 + label for label in split.train.labels.tolist()]


def all_ids(split):
    return [*split.train.ids, *split.test.ids]


def test_equal_file_names_in_two_classes_are_two_records(tmp_path):
    for name in ("a", "b"):
        fill(tmp_path, classes=(name,))
        for file in (tmp_path / name).iterdir():
            file.rename(file.with_name(file.name.removeprefix(name)))
    ids = all_ids(load(str(tmp_path)))
    assert len(set(ids)) == len(ids) == 24
    assert {"a/00.png", "b/00.png"} < set(ids)


def test_ids_of_a_test_part_name_the_part(tmp_path):
    fill(tmp_path / "train", n=2)
    fill(tmp_path / "test", n=2)
    split = load(str(tmp_path))
    assert split.train.ids[0] == "train/cat/cat00.png"
    assert split.test.ids[0] == "test/cat/cat00.png"


def test_a_file_says_whose_images_they_are(tmp_path):
    fill(tmp_path / "pets")
    rows = [f"{c}/{c}{i:02d}.png,patient-{i % 5}" for c in ("cat", "dog") for i in range(12)]
    table = tmp_path / "ids.csv"
    table.write_text("path,id\n" + "\n".join(rows))
    split = load(str(tmp_path / "pets"), own=OwnData(ids=table))
    assert set(all_ids(split)) == {f"patient-{i}" for i in range(5)}
    assert set(split.train.ids).isdisjoint(split.test.ids)
    table.write_text("\n".join(rows[1:]))
    with pytest.raises(InvalidDataError, match=r"1 have none, such as 'cat/cat00\.png'"):
        load(str(tmp_path / "pets"), own=OwnData(ids=table))


def test_a_pattern_says_whose_images_they_are(tmp_path):
    fill(tmp_path)
    split = load(str(tmp_path), own=OwnData(id_pattern=r"(\d\d)\.png$"))
    assert sorted(all_ids(split)) == sorted(2 * [f"{i:02d}" for i in range(12)])
    both = OwnData(id_pattern=r"(\d\d)", ids=tmp_path / "ids.csv")
    with pytest.raises(ConfigError, match="not both"):
        load(str(tmp_path), own=both)
    with pytest.raises(InvalidDataError, match="12 have none"):
        load(str(tmp_path), own=OwnData(id_pattern=r"dog(\d)"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"cat/cat00.png\n", "row 1"),
        (b"cat/cat00.png,a,b\n", "row 1"),
        (b"path,id\ncat/cat00.png, \n", "row 1"),
        (b"cat/cat00.png,a\ncat/cat00.png,b\n", "found two"),
        (b'cat/cat00.png,"a', "CSV"),
        (b"cat/cat00.png,\xff\n", "CSV in UTF-8"),
    ],
)
def test_unusable_files_of_ids(tmp_path, content, words):
    fill(tmp_path / "pets")
    (tmp_path / "ids.csv").write_bytes(content)
    with pytest.raises(InvalidDataError, match=words):
        load(str(tmp_path / "pets"), own=OwnData(ids=tmp_path / "ids.csv"))
    with pytest.raises(DataNotFoundError, match="--ids"):
        load(str(tmp_path / "pets"), own=OwnData(ids=tmp_path / "absent.csv"))


def test_class_names_are_kept_and_an_empty_class_is_fine(tmp_path):
    fill(tmp_path)
    (tmp_path / "emu").mkdir()
    split = load(str(tmp_path))
    assert split.train.class_names == split.test.class_names == ("cat", "dog", "emu")
    assert split.train.classes == 3
    named = load(str(tmp_path), own=OwnData(classes=("emu", "dog", "cat", "gnu")))
    assert (named.train.classes, named.train.class_names[2]) == (4, "cat")
    assert {int(label) for label in named.train.labels} == {1, 2}
    with pytest.raises(ConfigError, match="classes=2 to be the 3 classes"):
        load(str(tmp_path), own=OwnData(classes=2))
    with pytest.raises(InvalidDataError, match="found also 'emu'"):
        load(str(tmp_path), own=OwnData(classes=("cat", "dog")))


def test_a_given_test_part_is_used(tmp_path):
    fill(tmp_path / "train", n=5, mode="RGB")
    fill(tmp_path / "test", n=2, mode="RGB")
    split = load(str(tmp_path))
    assert (len(split.train), len(split.test), split.train.channels) == (10, 4, 3)


def test_size_brings_all_images_to_one(tmp_path):
    fill(tmp_path, n=6)
    fill(tmp_path, n=2, size=(30, 20), classes=("emu",))
    with pytest.raises(InvalidDataError, match="--image-size"):
        load(str(tmp_path))
    assert load(str(tmp_path), own=OwnData(image_size=16)).train.images.shape[1:] == (1, 16, 16)


def test_grey_and_colour_do_not_mix(tmp_path):
    fill(tmp_path)
    fill(tmp_path, mode="RGB", classes=("emu",))
    with pytest.raises(InvalidDataError, match="all to be colour"):
        load(str(tmp_path))


def test_unusable_folders_are_named(tmp_path):
    with pytest.raises(DataNotFoundError, match="No class subfolders"):
        load(str(tmp_path))
    (tmp_path / "cat").mkdir()
    (tmp_path / "dog").mkdir()
    with pytest.raises(DataNotFoundError, match="No images"):
        load(str(tmp_path))
    (tmp_path / "cat" / "bad.png").write_bytes(b"not a picture")
    with pytest.raises(InvalidDataError, match=r"bad\.png"):
        load(str(tmp_path))


def test_one_class_is_too_few(tmp_path):
    fill(tmp_path, classes=("cat",))
    with pytest.raises(InvalidDataError, match="classes=1"):
        load(str(tmp_path))


def test_a_class_of_the_test_part_alone_is_refused(tmp_path):
    fill(tmp_path / "train")
    fill(tmp_path / "test", classes=("cat", "emu"))
    with pytest.raises(InvalidDataError, match="emu"):
        load(str(tmp_path))
