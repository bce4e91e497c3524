"""Broken and hostile files end as one clear error: no traceback, no waiting, no gigabytes."""

import io
import os
import resource
import socket
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedtranscribe.config import OwnData
from fedtranscribe.data import load
from fedtranscribe.data.npz import read_arrays
from fedtranscribe.errors import DataError, DataNotFoundError, InvalidDataError
from tests.data.test_pictures import png

CONTENT = {
    "images": np.zeros((40, 8, 8), dtype=np.uint8),
    "labels": np.arange(40) % 3,
    "ids": np.array([f"patient-{i}" for i in range(40)]),
    "classes": np.array(3),
}


def npy(array, shape=None):
    """An array as bytes, whose header may claim another shape."""
    stream = io.BytesIO()
    header = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_1_0(stream, {**header, "shape": shape or array.shape})
    return stream.getvalue() + array.tobytes()


def archive(path: Path, **members: bytes) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as whole:
        for key, value in CONTENT.items():
            if key not in members:
                whole.writestr(f"{key}.npy", npy(np.asarray(value)))
        for key, content in members.items():
            whole.writestr(f"{key}.npy", content)
    return str(path)


@pytest.fixture
def little_memory():
    """Whoever believes a header runs out of memory here."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def test_a_header_that_claims_71_tib(tmp_path, little_memory):
    path = archive(tmp_path / "x.npz", images=npy(CONTENT["images"], (10**9, 280, 280)))
    with pytest.raises(InvalidDataError, match=r"'images' in .*claims 78,400,000,000,000 bytes"):
        load(path)


@pytest.mark.parametrize("shape", [(-40, -8, 8), (40, 8), (2**70, 8, 8)])
def test_headers_that_do_not_agree_with_the_file(tmp_path, shape):
    with pytest.raises(InvalidDataError, match="the archive holds 2,560"):
        load(archive(tmp_path / "x.npz", images=npy(CONTENT["images"], shape)))


def test_a_member_that_claims_to_be_larger_than_it_is(tmp_path):
    path = Path(archive(tmp_path / "x.npz"))
    content, claimed = bytearray(path.read_bytes()), 2**31
    entry = content.rfind(b"images.npy") - 46
    content[entry + 24 : entry + 28] = struct.pack("<I", claimed)
    path.write_bytes(content)
    with pytest.raises(InvalidDataError, match=r"x\.npz"):
        load(str(path))


def test_a_bomb_in_an_unused_key_is_not_read(tmp_path, little_memory):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as whole:
        for key, value in CONTENT.items():
            whole.writestr(f"{key}.npy", npy(np.asarray(value)))
        with whole.open("bomb.npy", "w", force_zip64=True) as member:
            member.write(npy(np.zeros(0, dtype=np.uint8), (3 * 2**28,)))
            for _ in range(3 * 2**8):
                member.write(bytes(2**20))
    assert path.stat().st_size < 2**25
    assert len(load(str(path)).train) > 20


def test_a_bomb_in_a_key_that_is_needed_meets_the_limit(tmp_path):
    path = archive(tmp_path / "x.npz", ids=npy(np.zeros(2**24, dtype=np.uint8)))
    with pytest.raises(InvalidDataError, match=r"at most 0\.01 GiB.* --max-gib"):
        load(path, own=OwnData(max_gib=0.01))
    with pytest.raises(InvalidDataError, match="one value per image under key 'ids'"):
        load(path)


def test_values_of_no_size_count_too(tmp_path):
    with pytest.raises(InvalidDataError, match="--max-gib"):
        load(archive(tmp_path / "x.npz", ids=npy(np.zeros(1, dtype="V0"), (10**12,))))


@pytest.mark.parametrize(
    "member",
    [
        b"",
        b"no array",
        b"\x93NUMPY\x01\x00\xff\xff",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        b"\x93NUMPY\x09\x00\x10\x00",
        b"\x93NUMPY\x01\x00\x10\x27" + b"(" * 10_000,
    ],
)
def test_broken_members(tmp_path, member):
    with pytest.raises(InvalidDataError, match=r"x\.npz' as \.npz of plain arrays"):
        load(archive(tmp_path / "x.npz", labels=member))


def test_an_encrypted_member(tmp_path):
    path = Path(archive(tmp_path / "x.npz"))
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(mark)
        while at >= 0:
            content[at + offset] |= 1
            at = content.find(mark, at + 4)
    path.write_bytes(content)
    with pytest.raises(InvalidDataError, match="RuntimeError"):
        load(str(path))


@pytest.mark.parametrize(
    "labels",
    [
        np.full(40, 300_000_000),
        np.full(40, 2**63, dtype=np.uint64),
        np.full(40, 1e300),
        np.full(40, np.nan),
        np.full(40, -np.inf, dtype=np.float16),
        np.full(40, -1),
        np.zeros(40, dtype=bool),
        np.zeros(40, dtype=complex),
        np.array(["cat"] * 40),
        np.array([b"cat"] * 40),
        np.zeros(40, dtype="datetime64[s]"),
        np.zeros(40, dtype=[("a", "i4")]),
        np.array(0),
        np.zeros((40, 2)),
    ],
)
def test_odd_labels(tmp_path, labels):
    np.savez(tmp_path / "x.npz", **{**CONTENT, "labels": labels})
    with pytest.raises(InvalidDataError, match="labels"):
        load(str(tmp_path / "x.npz"))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("data_id", np.array("ward\n12"), r"data id 'ward\\n12'"),
        ("data_id", np.array(["ward", "12"]), "'data_id' .*as one string"),
        ("data_id", np.array(["ward"]), "'data_id' .*as one string"),
        ("data_id", np.array(1.5), "'data_id' .*as one string"),
        ("data_id", np.array(b"ward"), "'data_id' .*as one string"),
        ("data_id", np.array("w" * 201), "200 printable"),
        ("data_id", np.array(""), "200 printable"),
        ("ids", np.linspace(0, 1, 40), "'ids' .*strings or whole numbers"),
        ("ids", np.zeros(40, dtype=bool), "'ids' .*strings or whole numbers"),
        ("ids", np.zeros((2, 20), dtype=int), "one value per image under key 'ids'"),
        ("ids", np.array(7), "one value per image under key 'ids'"),
        ("classes", np.array(3.0), "'classes' .*one whole number"),
        ("classes", np.array("3"), "'classes' .*one whole number"),
        ("classes", np.array(300_000_000), "classes=300000000 <= 65536"),
        ("images", np.array(3), "one image per label under key 'images'"),
        ("images", np.zeros((40, 8, 8), dtype=complex), "numeric"),
        ("images", np.full((40, 8, 8), 2**64 - 1, dtype=np.uint64), r"within \[0, 255\]"),
    ],
)
def test_odd_keys(tmp_path, key, value, words):
    np.savez(tmp_path / "x.npz", **{**CONTENT, key: value})
    with pytest.raises(InvalidDataError, match=words):
        load(str(tmp_path / "x.npz"))


def test_only_what_is_asked_for_is_read(tmp_path):
    path = Path(archive(tmp_path / "x.npz"))
    assert set(read_arrays(path, ["labels", "absent"])) == {"labels"}


# -------------------------------------------------------------------- files of images


@pytest.fixture
def folder(tmp_path):
    for label in ("cat", "dog"):
        (tmp_path / "pets" / label).mkdir(parents=True)
        for i in range(12):
            Image.new("L", (8, 8), i).save(tmp_path / "pets" / label / f"{i}.png")
    return tmp_path / "pets"


def make_socket(path: Path) -> None:
    here = Path.cwd()
    # The address of a socket is short, and temporary folders are not.
    os.chdir(path.parent)
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        pytest.param(make_socket, marks=pytest.mark.filterwarnings("ignore::ResourceWarning")),
    ],
    ids=["pipe", "device", "socket"],
)
def test_what_is_no_file_is_never_opened(folder, make):
    make(folder / "cat" / "x.png")
    with pytest.raises(InvalidDataError, match=r"x\.png' is no regular file; remove it"):
        load(str(folder))


def test_links(folder):
    (folder / "dog" / "0.png").rename(folder.parent / "0.png")
    (folder / "cat" / "x.png").symlink_to(folder.parent / "0.png")
    assert "cat/x.png" in {*load(str(folder)).train.ids, *load(str(folder)).test.ids}
    (folder / "cat" / "y.png").symlink_to(folder / "absent.png")
    with pytest.raises(InvalidDataError, match=r"y\.png' cannot be read"):
        load(str(folder))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["pipe", "folder"])
def test_an_archive_that_is_no_file(tmp_path, make):
    make(tmp_path / "x.npz")
    with pytest.raises(DataNotFoundError, match=r"x\.npz"):
        load(str(tmp_path / "x.npz"))


@pytest.mark.parametrize("side", [20_000, 2**31 - 1])
def test_400_megapixels(folder, side, little_memory):
    (folder / "cat" / "huge.png").write_bytes(png(side, side, 8, 0, bytes(side // 10**6)))
    with pytest.raises(InvalidDataError, match=r"huge\.png' has .*pixels.*; scale it down"):
        load(str(folder))


def test_ninety_megapixels_warn_nobody_but_are_refused(folder):
    (folder / "cat" / "huge.png").write_bytes(png(9_500, 9_500, 8, 0, bytes(9_500)))
    with pytest.raises(InvalidDataError, match="has 9500x9500 pixels, 89,000,000 are allowed"):
        load(str(folder))


def test_a_folder_that_takes_too_much_memory(folder):
    with pytest.raises(InvalidDataError, match="--max-gib"):
        load(str(folder), own=OwnData(max_gib=1e-6))


def test_a_cut_file(folder):
    whole = (folder / "cat" / "1.png").read_bytes()
    # Check sums and an end mark follow the pixels.
    for length in range(len(whole) - 24):
        (folder / "cat" / "1.png").write_bytes(whole[:length])
        with pytest.raises(InvalidDataError, match=r"1\.png"):
            load(str(folder))


def test_names_that_are_no_utf8(folder):
    target = os.fsencode(folder / "cat") + b"/\xff.png"
    os.rename(folder / "cat" / "0.png", target)  # noqa: PTH104 (bytes)
    with pytest.raises(InvalidDataError, match="UTF-8; rename the file"):
        load(str(folder))
    os.unlink(target)  # noqa: PTH108 (bytes)
    os.rename(folder / "cat", os.fsencode(folder) + b"/\xff")  # noqa: PTH104 (bytes)
    with pytest.raises(InvalidDataError, match=r"class name .* printable"):
        load(str(folder))


def test_a_folder_whose_name_cannot_name_a_ledger(folder):
    odd = folder.rename(folder.with_name("pe\nts"))
    with pytest.raises(DataError, match=r"data id 'folder:pe\\nts'.* rename"):
        load(str(odd))
