import pytest
from PIL import Image

from fedtranscribe.config import OwnData
from fedtranscribe.data import load
from fedtranscribe.data.array_folders import pack
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


def test_deeper_folders_are_read(tmp_path):
    """A folder per patient; its images were left out without a word."""
    for patient in range(9):
        for folder in (f"cat/P{patient}", f"dog/P{patient}/left"):
            (tmp_path / folder).mkdir(parents=True)
            for number in range(3):
                Image.new("L", (8, 8)).save(tmp_path / folder / f"{number}.png")
    assert len(set(all_ids(load(str(tmp_path))))) == 54
    assert {"cat/P1/0.png", "dog/P8/left/2.png"} < set(all_ids(load(str(tmp_path))))
    split = load(str(tmp_path), own=OwnData(id_pattern=r"/(P\d)/"))
    assert set(all_ids(split)) == {f"P{patient}" for patient in range(9)}
    patients = len(set(split.train.ids))
    assert split.words == (
        f"{6 * patients} images of {patients} ids to learn from, {54 - 6 * patients} held out",
    )


def test_what_is_left_out_is_counted_by_kind(tmp_path):
    fill(tmp_path, n=200)
    Image.new("L", (8, 8)).save(tmp_path / "cat" / "z.webp")
    ledger, marker = "folder_x.ledger.sqlite", "folder_x.ledger.place"
    for name in ("cat/a.nii", "cat/b.NII", "readme", "dog/.DS_Store", "Thumbs.db", ledger, marker):
        (tmp_path / name).write_bytes(b"?")
    (tmp_path / "gone.txt").symlink_to("gone.txt")
    table = tmp_path / "ids.csv"
    split = load(str(tmp_path))
    assert len(all_ids(split)) == 401
    (note,) = split.notes
    assert note == f"left out of '{tmp_path}': 2 hidden, 2 .nii, 1 .txt, 1 without a suffix"
    table.write_text("\n".join(f"{path},{path}" for path in all_ids(split)))
    assert load(str(tmp_path), own=OwnData(ids=table)).notes == split.notes
    table.unlink()
    assert split.words[1:] == split.notes
    (tmp_path / "cat" / "c.nii").write_bytes(b"?")
    with pytest.raises(InvalidDataError, match=r"5 of 406 files .*3 \.nii.*'cat/a\.nii'.*--allow"):
        load(str(tmp_path))
    assert "3 .nii" in load(str(tmp_path), own=OwnData(allow_skipped=True)).notes[0]


def test_links_to_folders_are_followed_once(tmp_path):
    """One that led back, or to what is read anyway, would make two records of an image."""
    fill(tmp_path / "store", n=30, classes=("cat", "P1"))
    fill(tmp_path / "pets", n=2, classes=("dog",))
    (tmp_path / "pets" / "cat").symlink_to(tmp_path / "store" / "cat")
    link = tmp_path / "pets" / "dog" / "P1"
    link.symlink_to(tmp_path / "store" / "P1")
    split = load(str(tmp_path / "pets"))
    assert (len(all_ids(split)), split.notes, split.train.classes) == (62, (), 2)
    assert "dog/P1/P100.png" in all_ids(split)
    for target in (tmp_path / "pets", tmp_path, tmp_path / "store" / "cat", tmp_path / "store"):
        link.unlink()
        link.symlink_to(target)
        with pytest.raises(InvalidDataError, match=r"dog/P1' is a link to .* remove the link"):
            load(str(tmp_path / "pets"))


def test_parts_are_no_classes(tmp_path):
    """`train` alone, with its classes one level deeper, would be one class."""
    fill(tmp_path / "train")
    fill(tmp_path / "val")
    with pytest.raises(InvalidDataError, match="found 'train', 'val'; name the two parts"):
        load(str(tmp_path))
    (tmp_path / "val").rename(tmp_path / "test")
    fill(tmp_path / "other")
    with pytest.raises(InvalidDataError, match=r"24 of 72 files .*'other/cat/cat00\.png'"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    "parts",
    [("Training", "Testing"), ("train", "holdout"), ("seg_train", "seg_test")],
)
def test_parts_of_other_names_are_no_classes_either(tmp_path, parts):
    for part in parts:
        fill(tmp_path / part)
    with pytest.raises(InvalidDataError, match="name the two parts train and test"):
        load(str(tmp_path))
    assert load(str(tmp_path), own=OwnData(classes=parts)).train.class_names == parts


def test_a_part_beside_another_folder_is_no_class(tmp_path):
    fill(tmp_path / "train")
    fill(tmp_path, classes=("notes",))
    with pytest.raises(InvalidDataError, match="found 'notes', 'train'; name the two parts"):
        load(str(tmp_path))
    # A class may bear the name of a part.
    fill(tmp_path / "vehicles", classes=("train", "bus"))
    assert load(str(tmp_path / "vehicles")).train.class_names == ("bus", "train")


@pytest.mark.parametrize("file", ["config.toml", "images.npy", "privacy.json"])
def test_results_between_the_images_are_no_class(tmp_path, file):
    fill(tmp_path)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / file).write_bytes(b"")
    with pytest.raises(InvalidDataError, match="runs/a', which looks like the output of fedt"):
        load(str(tmp_path))


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_links_to_images_make_no_second_record(tmp_path, link):
    fill(tmp_path / "train")
    fill(tmp_path / "test")
    twice = tmp_path / "test" / "cat" / "again.png"
    getattr(twice, link)(tmp_path / "train" / "cat" / "cat00.png")
    with pytest.raises(InvalidDataError, match=r"again\.png' and .*cat00\.png' are links to one"):
        load(str(tmp_path))


def test_grey_and_colour_do_not_mix(tmp_path):
    fill(tmp_path)
    fill(tmp_path, mode="RGB", classes=("emu",))
    with pytest.raises(InvalidDataError, match=r"cat00\.png' is grey and .*emu00\.png' is colour"):
        load(str(tmp_path))
    for channels in (1, 3):
        assert load(str(tmp_path), own=OwnData(channels=channels)).train.channels == channels
    grey = load(str(tmp_path), own=OwnData(channels=1, classes=("cat", "dog", "emu")))
    luminance = round(0.299 * 100 + 0.587 * 0)
    assert set(grey.train.images[grey.train.labels == 2].flatten().tolist()) == {luminance}


def test_colour_files_of_equal_channels_are_grey_among_grey_ones(tmp_path):
    fill(tmp_path)
    Image.new("RGB", (8, 8), (7, 7, 7)).save(tmp_path / "cat" / "a.png")
    split = load(str(tmp_path))
    assert split.train.channels == 1
    value = dict(zip(all_ids(split), [*split.train.images, *split.test.images], strict=True))
    assert set(value["cat/a.png"].flatten().tolist()) == {7}


@pytest.mark.parametrize("grey", ["train", "test"])
def test_one_part_may_be_grey_and_the_other_grey_in_colour(tmp_path, grey):
    (colour,) = {"train", "test"} - {grey}
    fill(tmp_path / "pets" / grey)
    for name in ("cat", "dog"):
        (tmp_path / "pets" / colour / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), (7, 7, 7)).save(tmp_path / "pets" / colour / name / "a.png")
    split = load(str(tmp_path / "pets"))
    part = split.train if colour == "train" else split.test
    assert (part.channels, set(part.images.flatten().tolist())) == (1, {7})
    pack(tmp_path / "pets", tmp_path / "packed")
    packed = load(str(tmp_path / "packed"))
    assert packed.train.images.equal(split.train.images)
    assert packed.test.images.equal(split.test.images)
    Image.new("RGB", (8, 8), (7, 7, 8)).save(tmp_path / "pets" / colour / "dog" / "a.png")
    words = rf"'{grey}/cat/cat00\.png' is grey and '{colour}/dog/a\.png' is colour.*--channels 1"
    with pytest.raises(InvalidDataError, match=words):
        load(str(tmp_path / "pets"))


@pytest.mark.parametrize("name", ["digits", "x.npz", "medmnist:bloodmnist"])
def test_channels_are_for_image_files(name):
    with pytest.raises(ConfigError, match="no --channels"):
        load(name, own=OwnData(channels=1))


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
