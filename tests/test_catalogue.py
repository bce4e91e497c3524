import re
import subprocess
import sys
from pathlib import Path

import pytest
from torchvision import models as zoo

from fedtranscribe import catalogue, data, models
from fedtranscribe.catalogue import DATA_SETS, LAYOUT, absent_data, expect_root, files_of
from fedtranscribe.data.idx import IDX_SETS
from fedtranscribe.data.registry import PACKAGED
from fedtranscribe.data.torchvision_sets import TORCHVISION_SETS
from fedtranscribe.errors import DataNotFoundError, UnknownArchitectureError
from fedtranscribe.models.fixed_features import FIXED
from fedtranscribe.models.small import WIDTHS


def test_the_names_are_those_that_can_be_loaded():
    known = {*PACKAGED, *IDX_SETS, *TORCHVISION_SETS, "cifar10-jpeg", "medmnist:<name>"}
    assert set(catalogue.DATA_SETS) == known
    assert data.available() == list(catalogue.DATA_SETS)
    assert set(catalogue.NETWORKS) == {*WIDTHS, *FIXED}


def test_torchvisions_networks_are_read_from_its_source():
    assert list(catalogue.torchvision_networks()) == zoo.list_models(module=zoo)
    assert models.available() == [*catalogue.NETWORKS, *zoo.list_models(module=zoo)]


def test_unknown_names_are_refused_and_close_ones_suggested(tmp_path):
    catalogue.expect_data(str(tmp_path))
    catalogue.expect_network("resnet50")
    with pytest.raises(DataNotFoundError, match="did you mean mnist or kmnist"):
        catalogue.expect_data("mnst")
    with pytest.raises(UnknownArchitectureError, match="did you mean resnet"):
        catalogue.expect_network("resnet51")


_HEAVY = """
import sys
from fedtranscribe import cli
code = cli.run(sys.argv[1:])
heavy = sorted({"dp_accounting", "scipy.stats", "torch", "torchvision"} & set(sys.modules))
print("code", code, "heavy", *heavy)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code", "heavy"),
    [
        ("--help", 0, ""),
        ("--version", 0, ""),
        ("transcribe --help", 0, ""),
        ("transcribe --epsilon -1", 2, ""),
        ("transcribe --teacher resnet999", 4, ""),
        ("transcribe --student nothing", 4, ""),
        ("transcribe --data nothing", 3, ""),
        ("synthesize --data nothing", 3, ""),
        ("teacher train --arch resnet999 --out t --data digits", 4, ""),
        ("simulate nothing", 2, ""),
        ("privacy account dpsd --noise-std 1 --rows 10 --teachers 10", 0, ""),
        (
            "privacy account dp-sgd --records 1000 --batch 50 --epochs 1 --sigma 2",
            0,
            "dp_accounting scipy.stats",
        ),
    ],
)
def test_who_only_asks_does_not_wait_for_torch(command, code, heavy):
    done = subprocess.run(
        [sys.executable, "-c", _HEAVY, *command.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.count("Traceback") == 0, done.stderr
    last = done.stdout.splitlines()[-1].split()
    assert int(last[1]) == code, done.stderr
    assert " ".join(last[3:]) == heavy


def test_the_guide_has_the_layout_of_every_set_in_one_table() -> None:
    guide = (Path(__file__).parents[1] / "docs" / "guide.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.+) \| .* \|$", guide, re.MULTILINE))
    assert {*DATA_SETS} <= {*rows}
    for name, files in LAYOUT.items():
        assert rows[name].startswith(f"`{files}`")
    assert {name for name in DATA_SETS if rows[name].startswith("none: ")} == {*PACKAGED}


@pytest.mark.parametrize("name", [*LAYOUT, "medmnist:pneumoniamnist"])
def test_absent_files_are_named_with_where_they_go(name: str) -> None:
    for root in (None, Path("/data")):
        words = str(absent_data(name, root))
        assert str(files_of(name)) in words
        assert ("--data-root DIR" in words) is (root is None)
        assert ("--download (download=true)" in words) is (name != "cifar10-jpeg")
    for there in ("", None):
        with pytest.raises(DataNotFoundError, match="needs a folder"):
            expect_root(name, there)
    expect_root(name, "/data")
    expect_root("digits", None)
    expect_root("none", "")
