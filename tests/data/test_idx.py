import gzip
import struct

import numpy as np
import pytest

from fedtranscribe.data import load
from fedtranscribe.data.named_sets import read_idx
from fedtranscribe.errors import DataNotFoundError, InvalidDataError


def idx_bytes(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_set(folder, zipped=False, n=20):
    folder.mkdir(parents=True, exist_ok=True)
    for part, size in (("train", n), ("t10k", n // 2)):
        images = np.arange(size * 784).reshape(size, 28, 28) % 251
        for kind, array in (
            ("images-idx3", images),
            ("labels-idx1", np.arange(size) % 10),
        ):
            name, content = f"{part}-{kind}-ubyte", idx_bytes(array)
            if zipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("below", ["FashionMNIST/raw", "raw", "."])
def test_three_layouts_plain_or_gzipped(tmp_path, zipped, below):
    write_set(tmp_path / below, zipped)
    split = load("fashion-mnist", tmp_path)
    assert split.train.images.shape == (20, 1, 28, 28)
    assert split.test.labels.tolist() == list(range(10))
    assert split.train.images[1].flatten()[:3].tolist() == [784 % 251, 785 % 251, 786 % 251]
    assert split.train.ids[3] == "fashion-mnist-train-3"
    assert split.train.folder == tmp_path / below


def test_one_set_is_never_read_as_another(tmp_path):
    write_set(tmp_path / "MNIST" / "raw")
    assert len(load("mnist", tmp_path).train) == 20
    for root in (tmp_path, tmp_path / "MNIST", tmp_path / "MNIST" / "raw"):
        with pytest.raises(DataNotFoundError, match="No fashion-mnist in"):
            load("fashion-mnist", root)


def test_absent_files_say_how_to_get_them(tmp_path):
    with pytest.raises(DataNotFoundError, match="--data-root"):
        load("mnist")
    with pytest.raises(DataNotFoundError, match="--download"):
        load("mnist", tmp_path)
    write_set(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataNotFoundError, match="t10k-labels"):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "IDX file"),
        (b"\0\0\x0d\x01\0\0\0\0", "IDX file"),
        (b"\0\0\x08\x03\0\0", "cut off"),
        (idx_bytes(np.zeros((3, 2)))[:-1], "Expected 6 values .* got 5"),
        (idx_bytes(np.zeros((3, 2))) + b"x", "Expected 6 values .* got 7"),
    ],
)
def test_broken_files_are_refused(tmp_path, content, words):
    path = tmp_path / "broken"
    path.write_bytes(content)
    with pytest.raises(InvalidDataError, match=words):
        read_idx(path)


def test_a_truncated_gzip_is_refused(tmp_path):
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.arange(999)))[:-20])
    with pytest.raises(InvalidDataError, match="fetch it again"):
        read_idx(path)
