import io

import numpy as np
import pytest

from fedtranscribe.config import OwnData
from fedtranscribe.data import DrawnFrom, load
from fedtranscribe.errors import DataNotFoundError, InvalidDataError
from fedtranscribe.privacy.budget import TRAIN_IDS


def arrays(n=40, classes=4, **more):
    rng = np.random.default_rng(0)
    return {
        "images": rng.integers(0, 256, (n, 8, 8), dtype=np.uint8),
        "labels": np.arange(n) % classes,
        "classes": np.array(classes),
        **more,
    }


IDS = np.array([f"patient-{i // 2}" for i in range(40)])


def saved(tmp_path, content, name="ward.npz"):
    np.savez(tmp_path / name, **content)
    return str(tmp_path / name)


def test_one_in_five_is_held_out_by_id(tmp_path):
    content = arrays(ids=IDS, val_ids=IDS, note="read by nobody", valid=np.ones(40), grid=7)
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
        ({"labels": np.zeros(39, dtype=np.int64)}, "one label per image"),
        ({"labels": np.full(40, -1)}, r"within 0\.\.3"),
        ({"classes": np.array(1)}, "classes=1"),
        ({"classes": np.array(3)}, r"labels in .*ward\.npz' within 0\.\.2.* --classes"),
        ({"classes": np.array([3, 4])}, "one whole number"),
        ({"ids": np.array(["a"])}, "one value per image"),
        ({"images": np.zeros((0, 8, 8)), "labels": np.zeros(0, int)}, "one record, got none: ward"),
        ({"ids": np.array(["a"] * 40)}, "more than 1 record in .* all 40 images share one id"),
        ({"labels": np.array(["cat"] * 40)}, "key 'class_names'"),
        ({"test_ids": IDS}, "without 'test_ids', which would not be read: .*'images', 'labels'"),
        ({"test_labels": np.zeros(40)}, "without 'test_labels'"),
        ({"train_ids": IDS}, "without 'train_ids'"),
        ({"id": IDS, "Label": np.zeros(40)}, "without 'id', 'Label'"),
        *(({key: IDS}, f"without '{key}'") for key in ("patient", "SubjectID", "mrn", "image_ids")),
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


def test_ids_in_medmnists_layout_are_read(tmp_path):
    ids = {"train_ids": np.arange(9) // 3, "test_ids": np.array(list("abcde"))}
    content = {**medmnist_arrays(), **ids, "data_id": np.array("ward 12")}
    content |= {"drawn_from": np.array("runs/a"), "ids_made": np.array("id_pattern (.)")}
    path = saved(tmp_path, content, "pneumoniamnist.npz")
    own = OwnData(classes=3)
    for name in (path, "medmnist:pneumoniamnist"):
        train, test = (getattr(load(name, tmp_path, own=own), part) for part in ("train", "test"))
        assert train.ids == tuple("000111222")
        assert test.ids == tuple("abcde")
        assert (train.data_id, train.ids_by) == ("ward 12", "id_pattern (.)")
        assert train.drawn_from == DrawnFrom("runs/a", None)
    del content["ids_made"]
    assert load(saved(tmp_path, content, "toymnist.npz")).train.ids_by == TRAIN_IDS
    for key in ("ids", "id", "labels", "train_id", "patient"):
        saved(tmp_path, {**medmnist_arrays(), key: np.arange(9)}, "other.npz")
        with pytest.raises(InvalidDataError, match=f"without '{key}', .*'train_ids'"):
            load(str(tmp_path / "other.npz"))


def test_row_numbers_are_lasting_only_in_official_sets_by_name(tmp_path):
    content = {**medmnist_arrays(), "classes": np.array(2), "val_ids": np.arange(3)}
    content |= {f"{part}_labels": np.zeros(n) for part, n in (("train", 9), ("test", 5))}
    names = ["pneumoniamnist", "pneumoniamnist_64", "pneumoniamnist_mine", "toymnist"]
    paths = {name: saved(tmp_path, content, f"{name}.npz") for name in names}
    lasting = [name for name in names if not load(f"medmnist:{name}", tmp_path).train.positional]
    assert lasting == names[:2]
    assert load("medmnist:pneumoniamnist", tmp_path).train.ids[8] == "pneumoniamnist-train-8"
    for path in (*paths.values(), f"medmnist:{paths['pneumoniamnist'].removesuffix('.npz')}"):
        train = load(path, tmp_path).train
        assert (train.positional, train.ids_by) == (True, "position")


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
