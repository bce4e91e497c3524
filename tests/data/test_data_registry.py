import bz2
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedtranscribe import data
from fedtranscribe.data import available, is_published, load
from fedtranscribe.errors import DataNotFoundError, InvalidDataError


def test_public_names_are_exactly_these():
    assert sorted(data.__all__) == [
        "DataSplit",
        "DrawnFrom",
        "ImageSet",
        "NamedData",
        "assign_shards",
        "augment",
        "available",
        "dirichlet_partition",
        "draw_shapes",
        "expect_public",
        "folder_of",
        "from_memory",
        "has_own_ids",
        "held_out",
        "is_benchmark",
        "is_published",
        "load",
        "load_public",
        "share_records",
    ]


def test_an_unknown_name_suggests_close_ones():
    with pytest.raises(DataNotFoundError, match="did you mean mnist"):
        load("mnits")
    with pytest.raises(DataNotFoundError, match="known: digits"):
        load("qqqqqq")
    assert "fashion-mnist" in available()


def test_importing_the_package_imports_no_extra():
    script = (
        "import sys, fedtranscribe.data, fedtranscribe.models; "
        "print([m for m in ('torchvision', 'mlxtend', 'sklearn', 'PIL', 'medmnist') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


class FakeCifar:
    def __init__(self, root, train, download):
        if not train and download:
            raise RuntimeError("no network")
        self.data = np.zeros((4, 32, 32, 3), dtype=np.uint8)
        self.targets = [0, 1, 2, 9]


def test_torchvision_sets(monkeypatch, tmp_path):
    monkeypatch.setattr("torchvision.datasets.CIFAR10", FakeCifar)
    split = load("cifar10", tmp_path)
    assert torch.equal(split.train.labels, torch.tensor([0, 1, 2, 9]))
    assert split.test.ids[0] == "cifar10-test-0"
    with pytest.raises(DataNotFoundError, match="check the network"):
        load("cifar10", tmp_path, download=True)


def usps_file(path, labels):
    """A file of USPS: pixels are -1 (0) but for the record's own place, which is 1 (255)."""
    lines = [
        f"{label + 1} " + " ".join(f"{j}:{1 if j == i + 1 else -1}" for j in range(1, 257))
        for i, label in enumerate(labels)
    ]
    path.write_bytes(bz2.compress("\n".join(lines).encode()))


def test_usps_reads_torchvisions_files_and_refuses_damaged_ones(tmp_path):
    usps_file(tmp_path / "usps.bz2", [0, 9, 4])
    usps_file(tmp_path / "usps.t.bz2", [3])
    split = load("usps", tmp_path)
    assert split.train.pixels.shape == (3, 1, 16, 16)
    assert split.train.labels.tolist() == [0, 9, 4]
    assert split.train.pixels.flatten(1).nonzero().tolist() == [[0, 0], [1, 1], [2, 2]]
    assert (split.test.ids, split.test.labels.tolist()) == (("usps-test-0",), [3])
    whole = (tmp_path / "usps.bz2").read_bytes()
    for damaged in (whole[: len(whole) // 2], bz2.compress(b"1 1:0.5\n2 1:abc")):
        (tmp_path / "usps.bz2").write_bytes(damaged)
        with pytest.raises(InvalidDataError, match=r"Cannot read usps .* fetch its files again"):
            load("usps", tmp_path)


def test_absent_torchvision_sets_say_how_to_get_them(monkeypatch, tmp_path):
    with pytest.raises(DataNotFoundError, match="--data-root"):
        load("cifar10")
    with pytest.raises(DataNotFoundError, match="add --download"):
        load("cifar10", tmp_path)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(DataNotFoundError, match=r"fedtranscribe\[vision\]"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("specs", "published"),
    [
        ("digits", True),
        ("mnist, digits", True),
        ("medmnist:pneumoniamnist", True),
        ("scans.npz", False),
        ("mnist, /data/absent-scans", False),
    ],
)
def test_only_known_benchmarks_are_public_whether_or_not_files_are_there(specs, published):
    assert is_published(specs) is published
