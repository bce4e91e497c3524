import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtranscribe.config import OwnData
from fedtranscribe.data import NamedData, expect_public, folder_of, load
from fedtranscribe.data.npz import NpyFile
from fedtranscribe.data.registry import ledger_of
from fedtranscribe.data.stored import StoredPixels
from fedtranscribe.errors import ConfigError, DataNotFoundError, InvalidDataError

N = 60
IDS = np.array([f"patient-{i // 2}" for i in range(N)])


def arrays(**more):
    rng = np.random.default_rng(0)
    return {
        "images": rng.integers(0, 256, (N, 8, 8), dtype=np.uint8),
        "labels": np.arange(N) % 4,
        "ids": IDS,
        "classes": np.array(4),
        **more,
    }


def folder(tmp_path: Path, content, name="ward"):
    """A folder of arrays, as `unzip` makes it of an archive."""
    tmp_path.mkdir(exist_ok=True)
    np.savez(tmp_path / f"{name}.npz", **content)
    with zipfile.ZipFile(tmp_path / f"{name}.npz") as archive:
        archive.extractall(tmp_path / name)
    return tmp_path / name


def same(one, other):
    assert torch.equal(one.images, other.images)
    assert torch.equal(one.labels, other.labels)
    assert list(one.ids) == list(other.ids)
    assert (one.data_id, one.classes, one.folder) == (other.data_id, other.classes, other.folder)
    assert (one.positional, one.class_names) == (other.positional, other.class_names)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"ids": np.arange(N) + 5},
        {"images": np.zeros((N, 8, 8, 3), dtype=np.uint8) + np.arange(3, dtype=np.uint8)},
        {"images": np.zeros((N, 1, 8, 8), dtype=np.uint8)},
        {"data_id": np.array("ward 12"), "class_names": np.array(list("abcd"))},
        {"test_images": np.ones((3, 8, 8), dtype=np.uint8), "test_labels": np.arange(3)},
        {"labels": np.array(list("abcd") * 15), "class_names": np.array(list("abcd"))},
    ],
)
def test_an_unpacked_archive_is_the_same_data_set(tmp_path: Path, more):
    path = folder(tmp_path, arrays(**more))
    unpacked, archive = load(str(path)), load(f"{path}.npz")
    for part in ("train", "test"):
        same(getattr(unpacked, part), getattr(archive, part))
    assert isinstance(unpacked.train.pixels, StoredPixels)
    assert ledger_of(unpacked.train, str(path), None) == ledger_of(
        archive.train, f"{path}.npz", None
    )
    assert folder_of(str(path)) == folder_of(f"{path}.npz")


def test_records_without_ids_are_known_by_row(tmp_path: Path):
    content = arrays()
    del content["ids"]
    path = folder(tmp_path, content)
    same(load(str(path)).train, load(f"{path}.npz").train)
    assert load(str(path)).train.positional


def test_parts_of_parts_are_read_in_their_order(tmp_path: Path):
    path = folder(tmp_path, arrays())
    stored, plain = load(str(path)).train, load(f"{path}.npz").train
    for rows in (torch.tensor([5, 3, 3, 40, 0]), torch.arange(20)):
        same(stored.subset(rows), plain.subset(rows))
        same(stored.subset(rows).subset([2, 1]), plain.subset(rows).subset([2, 1]))
        assert torch.equal(stored.pixels[rows], plain.images[rows])
    assert torch.equal(torch.cat(list(stored.blocks(7))), plain.images)
    assert stored.ids[3] == plain.ids[3]
    assert tuple(stored.ids[-2:]) == tuple(plain.ids[-2:])


def test_only_near_rows_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """However many rows there are, memory holds a few blocks of them."""
    rows, width = 5_000, 40_000
    with (tmp_path / "wide.npy").open("wb") as stream:
        header = {"descr": "|u1", "fortran_order": False, "shape": (rows, width)}
        np.lib.format.write_array_header_1_0(stream, header)
        stream.truncate(stream.tell() + rows * width)  # sparse
    sizes: list[int] = []
    pread = os.pread

    def counted(descriptor: int, size: int, start: int) -> bytes:
        sizes.append(size)
        return pread(descriptor, size, start)

    file = NpyFile(tmp_path / "wide.npy")
    monkeypatch.setattr(os, "pread", counted)
    file.rows(np.array([0, 4_999, 2_500, 2_501]))
    assert sorted(sizes) == [width, width, 2 * width]
    sizes.clear()
    assert file.rows(np.arange(0, 2_000))[1_999].sum() == 0
    assert max(sizes) <= 2**24
    assert sum(sizes) == 2_000 * width


def test_a_whole_set_is_read_only_within_max_gib(tmp_path: Path):
    path = folder(tmp_path, arrays())
    train = load(str(path), own=OwnData(max_gib=2e-6)).train
    assert train.pixels[:3].shape == (3, 1, 8, 8)
    with pytest.raises(InvalidDataError, match=r"GiB: teachers.* --max-gib"):
        _ = train.images
    with pytest.raises(InvalidDataError, match=r"labels.* --max-gib"):
        load(str(path), own=OwnData(max_gib=1e-8))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": np.zeros((N, 8, 8))}, "as uint8, got float64"),
        ({"images": np.zeros((N, 8), dtype=np.uint8)}, "got shape"),
        (
            {"images": np.zeros((0, 8, 8), np.uint8), "labels": np.zeros(0, int), "ids": IDS[:0]},
            "Expected at least one record, got none: images",
        ),
        ({"patient_id": IDS}, "without 'patient_id', which would not be read"),
        ({"images": np.asfortranarray(np.zeros((N, 8, 8), dtype=np.uint8))}, "Fortran"),
        ({"labels": np.zeros(N - 1, dtype=np.int64)}, "one label per image"),
        ({"labels": np.full(N, 4)}, r"within 0\.\.3"),
        ({"labels": np.full(N, np.nan)}, "whole, finite"),
        ({"ids": np.array(["a"])}, "one value per image"),
        ({"ids": np.zeros(N)}, "strings or whole numbers"),
        ({"ids": np.array([""] * N)}, r"0 bytes|non-empty|plain array"),
        ({"ids": np.array(["a", *[""] * (N - 1)])}, "non-empty"),
        ({"classes": np.array([3, 4])}, "one whole number"),
    ],
)
def test_unusable_content_is_refused(tmp_path: Path, changes, words):
    with pytest.raises(InvalidDataError, match=words):
        load(str(folder(tmp_path, arrays(**changes))))


def test_what_is_absent_is_named(tmp_path: Path):
    path = folder(tmp_path, arrays())
    (path / "classes.npy").unlink()
    with pytest.raises(InvalidDataError, match=r"np\.save\('.*classes\.npy', N\)"):
        load(str(path))
    assert load(str(path), own=OwnData(classes=4)).train.classes == 4
    with pytest.raises(ConfigError, match="--ids"):
        load(str(path), own=OwnData(classes=4, id_pattern="(.)"))
    with pytest.raises(ConfigError, match="no --channels"):
        load(str(path), own=OwnData(classes=4, channels=1))
    (path / "ids.npy").rename(path / "ids.csv")
    with pytest.raises(InvalidDataError, match=r"without 'ids\.csv'"):
        load(str(path), own=OwnData(classes=4))
    (path / "ids.csv").unlink()
    (path / "labels.npy").unlink()
    with pytest.raises(InvalidDataError, match="'labels'"):
        load(str(path), own=OwnData(classes=4))
    with pytest.raises(DataNotFoundError):
        NpyFile(path / "labels.npy")


def header(descr: str, shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    content = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, content)
    return stream.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no array",
        b"\x93NUMPY\x01\x00",
        b"\x93NUMPY\x09\x00" + b"\0" * 100,
        header("|O", (4,)) + b"\0" * 32,
        header("|u1", (10**12, 28, 28)) + b"\0" * 100,
        header("|u1", (-1, 8, 8)) + b"\0" * 64,
        header("<U0", (10**12,)),
        header("|V0", (10**12,)),
        header("|u1", (4,)) + b"\0" * 5,
    ],
)
@pytest.mark.parametrize("key", ["images", "labels", "ids", "data_id"])
def test_hostile_files_are_refused_by_their_header(tmp_path: Path, content: bytes, key: str):
    path = folder(tmp_path, arrays())
    (path / f"{key}.npy").write_bytes(content)
    with pytest.raises(InvalidDataError, match=rf"{key}\.npy"):
        load(str(path))


def test_pickled_objects_are_never_run(tmp_path: Path):
    path = folder(tmp_path, arrays())
    np.save(path / "labels.npy", np.array([object()] * N), allow_pickle=True)
    with pytest.raises(InvalidDataError, match="Python objects"):
        load(str(path))


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    path = folder(tmp_path, arrays())
    (path / "labels.npy").unlink()
    os.mkfifo(path / "labels.npy")
    with pytest.raises(InvalidDataError, match="regular file"):
        load(str(path))


def test_a_file_that_becomes_shorter_is_an_error(tmp_path: Path):
    """Were it mapped, the process would be killed."""
    path = folder(tmp_path, arrays())
    train = load(str(path)).train
    os.truncate(path / "images.npy", 200)
    with pytest.raises(InvalidDataError, match="became shorter"):
        _ = train.pixels[:]


def test_the_private_records_are_not_public_as_a_folder(tmp_path: Path):
    content = arrays()
    private = folder(tmp_path / "a", content)
    order = np.random.default_rng(1).permutation(N)
    moved = {key: content[key][order] for key in ("images", "labels", "ids")}
    public = folder(tmp_path / "b", {**content, **moved}, "other")
    named = [NamedData.of(str(path), load(str(path))) for path in (public, private)]
    with pytest.raises(ConfigError, match="exactly those of"):
        expect_public("public_data", *named)
    changed = content["images"].copy()
    changed[0, 0, 0] ^= 1
    other = folder(tmp_path / "c", {**content, "images": changed}, "third")
    expect_public("public_data", NamedData.of(str(other), load(str(other))), named[1])
