import pytest
from PIL import Image

from fedtranscribe.data import load
from fedtranscribe.errors import DataNotFoundError, InvalidDataError


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


def test_ids_do_not_depend_on_the_label(tmp_path):
    fill(tmp_path / "a")
    moved = tmp_path / "a" / "dog" / "dog03.png"
    before = load(str(tmp_path / "a"))
    moved.rename(tmp_path / "a" / "cat" / "dog03.png")
    after = load(str(tmp_path / "a"))
    assert set(before.test.ids) == set(after.test.ids)
    assert "dog03.png" in {*after.train.ids, *after.test.ids}


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
    assert load(str(tmp_path), size=16).train.images.shape[1:] == (1, 16, 16)


def test_grey_and_colour_do_not_mix(tmp_path):
    fill(tmp_path)
    fill(tmp_path, mode="RGB", classes=("emu",))
    with pytest.raises(InvalidDataError, match="all to be colour"):
        load(str(tmp_path))


def test_unusable_folders_are_named(tmp_path):
    with pytest.raises(DataNotFoundError, match="No class subfolders"):
        load(str(tmp_path))
    (tmp_path / "cat").mkdir()
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
