import subprocess
import sys

import numpy as np
import pytest
import torch

from fedtranscribe import data
from fedtranscribe.data import available, is_published, load
from fedtranscribe.errors import DataNotFoundError


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
