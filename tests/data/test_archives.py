import io

import numpy as np
import pytest

from fedtranscribe.data import load
from fedtranscribe.errors import DataNotFoundError, InvalidDataError


def arrays(n=40, classes=4, **more):
    rng = np.random.default_rng(0)
    return {
        "images": rng.integers(0, 256, (n, 8, 8), dtype=np.uint8),
        "labels": np.arange(n) % classes,
        "classes": np.array(classes),
        **more,
    }


def saved(tmp_path, content, name="ward.npz"):
    np.savez(tmp_path / name, **content)
    return str(tmp_path / name)


def test_one_in_five_is_held_out_by_id(tmp_path):
    content = arrays(ids=np.array([f"patient-{i // 2}" for i in range(40)]))
    split = load(saved(tmp_path, content))
    assert len(split.train) + len(split.test) == 40
    assert set(split.train.ids).isdisjoint(split.test.ids)
    assert (split.train.data_id, split.train.folder) == ("npz:ward", tmp_path)


def test_the_data_id_survives_an_edited_record(tmp_path):
    content = arrays()
    before = load(saved(tmp_path, content)).train
    content["images"][3] = 0
    after = load(saved(tmp_path, content)).train
    assert before.data_id == after.data_id
    assert before.positional


def test_a_link_to_the_data_is_no_other_data_set(tmp_path):
    """The link's name would start a ledger of its own beside the first."""
    saved(tmp_path, arrays())
    (tmp_path / "alias.npz").symlink_to("ward.npz")
    assert load(str(tmp_path / "alias.npz")).train.data_id == "npz:ward"


def test_optional_keys(tmp_path):
    content = arrays(
        classes=np.array(7),
        data_id=np.array("ward 12"),
        test_images=np.zeros((3, 8, 8), dtype=np.uint8),
        test_labels=np.array([0, 1, 6]),
    )
    content["labels"] = np.arange(40) % 4
    split = load(saved(tmp_path, content))
    assert (len(split.train), len(split.test)) == (40, 3)
    assert (split.train.classes, split.train.data_id) == (7, "ward 12")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": np.full((40, 8, 8), np.nan)}, "NaN"),
        ({"labels": np.zeros(39, dtype=np.int64)}, "one value per image"),
        ({"labels": np.full(40, -1)}, r"within 0\.\.3"),
        ({"classes": np.array(1)}, "classes=1"),
        ({"classes": np.array(3)}, r"labels in .*ward\.npz' within 0\.\.2.* --classes"),
        ({"classes": np.array([3, 4])}, "one whole number"),
        ({"ids": np.array(["a"])}, "one value per image"),
    ],
)
def test_unusable_content_is_refused(tmp_path, changes, words):
    with pytest.raises(InvalidDataError, match=words):
        load(saved(tmp_path, {**arrays(), **changes}))


def test_missing_keys_and_broken_files_are_named(tmp_path):
    with pytest.raises(InvalidDataError, match="'labels'"):
        load(saved(tmp_path, {"images": np.zeros((4, 8, 8), dtype=np.uint8)}))
    with pytest.raises(DataNotFoundError, match=r"nowhere\.npz"):
        load(str(tmp_path / "nowhere.npz"))
    whole = (tmp_path / "ward.npz").read_bytes()
    for content in (b"", b"not an archive", whole[: len(whole) // 2]):
        (tmp_path / "broken.npz").write_bytes(content)
        with pytest.raises(InvalidDataError, match=r"broken\.npz"):
            load(str(tmp_path / "broken.npz"))
    single = io.BytesIO()
    np.save(single, np.zeros(3))
    (tmp_path / "single.npz").write_bytes(single.getvalue())
    with pytest.raises(InvalidDataError, match="one array"):
        load(str(tmp_path / "single.npz"))


def test_pickled_objects_are_never_run(tmp_path):
    content = arrays()
    content["labels"] = np.array([object()] * 40)
    with pytest.raises(InvalidDataError, match="plain arrays"):
        load(saved(tmp_path, content))


def test_too_few_records_to_hold_out_any(tmp_path):
    with pytest.raises(InvalidDataError, match="hold out"):
        load(saved(tmp_path, {**arrays(n=2, classes=2), "ids": np.array(["same", "same"])}))


def medmnist_arrays():
    return {"classes": np.array(3)} | {
        f"{part}_{kind}": array
        for part, n in (("train", 9), ("val", 3), ("test", 5))
        for kind, array in (
            ("images", np.zeros((n, 28, 28, 3), dtype=np.uint8)),
            ("labels", (np.arange(n) % 3)[:, None]),
        )
    }


def test_medmnist_by_name_or_path_is_the_same_set(tmp_path):
    (tmp_path / "medmnist").mkdir()
    path = saved(tmp_path / "medmnist", medmnist_arrays(), "toymnist.npz")
    by_name, by_path = load("medmnist:toymnist", tmp_path), load(path)
    for split in (by_name, by_path):
        assert (len(split.train), len(split.test), split.train.classes) == (9, 5, 3)
        assert split.train.channels == 3
    assert by_name.train.data_id == by_path.train.data_id == "medmnist:toymnist"


def test_a_link_to_a_medmnist_archive_is_no_other_data_set(tmp_path):
    (tmp_path / "store").mkdir()
    saved(tmp_path / "store", medmnist_arrays(), "toymnist.npz")
    (tmp_path / "alias.npz").symlink_to("store/toymnist.npz")
    split = load(str(tmp_path / "alias.npz"))
    assert split.train.data_id == "medmnist:toymnist"
    assert split.train.ids[0] == "toymnist-train-0"
    assert load("medmnist:alias", tmp_path).train.data_id == "medmnist:alias", "named, not a path"


def test_absent_medmnist_says_how_to_get_it(tmp_path):
    with pytest.raises(DataNotFoundError, match="--data-root"):
        load("medmnist:pathmnist")
    with pytest.raises(DataNotFoundError, match="--download"):
        load("medmnist:pathmnist", tmp_path)
    with pytest.raises(DataNotFoundError, match=r"no set 'nomnist'.* pathmnist"):
        load("medmnist:nomnist", tmp_path, download=True)


def jpeg_arrays(n):
    from PIL import Image

    files = []
    for i in range(n):
        stream = io.BytesIO()
        Image.new("RGB", (32, 32), (10 * i, 0, 200)).save(stream, "JPEG")
        files.append(stream.getvalue())
    return {
        "jpeg": np.frombuffer(b"".join(files), dtype=np.uint8),
        "offsets": np.cumsum([0, *map(len, files)]),
        "labels": np.arange(n, dtype=np.uint8) % 10,
    }


def test_cifar10_as_jpeg(tmp_path):
    (tmp_path / "cifar10").mkdir()
    for part, n in (("train", 6), ("test", 3)):
        saved(tmp_path / "cifar10", jpeg_arrays(n), f"cifar10_jpeg_{part}.npz")
    split = load("cifar10-jpeg", tmp_path)
    assert split.train.images.shape == (6, 3, 32, 32)
    assert abs(int(split.train.images[5, 0, 9, 9]) - 50) <= 3
    assert split.test.labels.tolist() == [0, 1, 2]


def test_broken_or_absent_cifar10_jpeg(tmp_path):
    with pytest.raises(DataNotFoundError, match="--data-root"):
        load("cifar10-jpeg")
    with pytest.raises(DataNotFoundError, match="cifar10_jpeg_"):
        load("cifar10-jpeg", tmp_path)
    content = jpeg_arrays(3)
    content["jpeg"] = np.zeros_like(content["jpeg"])
    saved(tmp_path, content, "cifar10_jpeg_train.npz")
    with pytest.raises(InvalidDataError, match="decode"):
        load("cifar10-jpeg", tmp_path)
