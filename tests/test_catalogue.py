import re
import subprocess
import sys
from pathlib import Path

import pytest
from torchvision import models as zoo

from fedtranscribe import data, models
from fedtranscribe.config import catalogue
from fedtranscribe.config.catalogue import DATA_SETS, LAYOUT, absent_data, expect_root, files_of
from fedtranscribe.data.named_sets import IDX_SETS, TORCHVISION_SETS
from fedtranscribe.data.registry import PACKAGED
from fedtranscribe.errors import DataNotFoundError, UnknownArchitectureError
from fedtranscribe.models.classifier import WIDTHS
from fedtranscribe.models.fixed_features import FIXED


def test_the_names_are_those_that_can_be_loaded():
    known = {*PACKAGED, *IDX_SETS, *TORCHVISION_SETS, "cifar10-jpeg", "medmnist:<name>"}
    assert set(catalogue.DATA_SETS) == known
    assert data.available() == list(catalogue.DATA_SETS)
    assert set(catalogue.NETWORKS) == {*WIDTHS, *FIXED}


def test_torchvisions_networks_are_read_from_its_source():
    assert list(catalogue.torchvision_networks()) == zoo.list_models(module=zoo)
    assert models.available() == [*catalogue.NETWORKS, *zoo.list_models(module=zoo)]


def test_unknown_names_are_refused_and_close_ones_suggested(tmp_path):
    (tmp_path / "class").mkdir()
    catalogue.expect_data(str(tmp_path))
    catalogue.expect_network("resnet50")
    with pytest.raises(DataNotFoundError, match="did you mean mnist or kmnist"):
        catalogue.expect_data("mnst")
    with pytest.raises(UnknownArchitectureError, match="did you mean resnet"):
        catalogue.expect_network("resnet51")


_HEAVY = """
import sys
from fedtranscribe import cli
for line in sys.stdin:
    code = cli.run(line.split())
    heavy = {"dp_accounting", "flwr", "scipy.stats", "torch", "torchvision"} & set(sys.modules)
    print("\\ncode", code, *sorted(heavy), flush=True)
"""


def codes(*commands: str, folder: Path) -> list[str]:
    """Exit code of each command line, and what heavy it has loaded; one process runs them all."""
    done = subprocess.run(
        [sys.executable, "-c", _HEAVY],
        input="\n".join(commands),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
        cwd=folder,
    )
    lines = done.stdout.splitlines()
    return [line.removeprefix("code ") for line in lines if line.startswith("code ")]


def test_refusals_do_not_wait_for_torch(tmp_path: Path) -> None:
    """Whatever names, paths and settings show is refused before torch or Flower are imported."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("no data", encoding="utf-8")
    (tmp_path / "file.npz").write_text("no archive", encoding="utf-8")
    refused = {
        "transcribe --epsilon -1": 2,
        "transcribe --data digits --id-column patient": 2,
        "transcribe --data digits --ids ids.csv": 2,
        "transcribe --data digits --tracker absent": 2,
        "transcribe --data absent": 3,
        "transcribe --data file.txt": 3,
        "transcribe --data file.npz": 3,
        "transcribe --data empty": 3,
        "transcribe --data mnist": 3,
        "transcribe --data mnist --data-root empty": 3,
        "transcribe --public-data absent": 3,
        "transcribe --teacher resnet999": 4,
        "transcribe --student absent": 4,
        "transcribe --teacher empty": 7,
        "transcribe --generator empty": 7,
        "transcribe --out .": 7,
        "synthesize --data file.txt": 3,
        "synthesize --pretrain-data absent": 3,
        "synthesize --out .": 7,
        "simulate absent": 2,
        "simulate dirichlet_mnist data=digits epsilon=-1": 2,
        "simulate dirichlet_mnist data=absent": 3,
        "simulate dirichlet_mnist data-root=empty": 3,
        "teacher train --data digits --arch resnet999 --out t": 4,
        "teacher train --data file.txt --out t": 3,
        "teacher info empty": 7,
        "teacher import": 2,
        "teacher import empty": 2,
        "teacher import file.txt": 2,
        "teacher import absent": 4,
        "data pack absent --out packed": 3,
        "data pack . --out .": 7,
        "plant file.txt --out planted": 3,
        "plant digits --out planted --kind absent": 2,
        "report absent": 7,
        "evaluate empty": 7,
        "audit absent": 7,
        "compare absent": 7,
        "sample absent --num 1 --out samples.npz": 7,
        "release absent": 7,
        "release verify empty": 7,
        "release push empty owner/name": 7,
        "release push empty name": 2,
        "holder status": 2,
        "holder serve": 2,
        "holder ledger show absent": 7,
    }
    found = codes(*refused, folder=tmp_path)
    assert dict(zip(refused, found, strict=True)) == {k: str(v) for k, v in refused.items()}
    assert {entry.name for entry in tmp_path.iterdir()} == {"empty", "file.txt", "file.npz"}


def test_who_only_asks_does_not_wait_for_torch(tmp_path: Path) -> None:
    asked = {
        "--help": "0",
        "--version": "0",
        "transcribe --help": "0",
        "privacy account dpsd --noise-std 1 --rows 10 --teachers 10": "0",
        "privacy account dp-sgd --records 1000 --batch 50 --epochs 1 --sigma 2": (
            "0 dp_accounting scipy.stats"
        ),
    }
    assert codes(*asked, folder=tmp_path) == [*asked.values()]


def test_the_guide_has_the_layout_of_every_set_in_one_table() -> None:
    guide = (Path(__file__).parents[1] / "docs" / "guide.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.+) \| .* \|$", guide, re.MULTILINE))
    assert {*DATA_SETS} <= {*rows}
    for name, files in LAYOUT.items():
        assert rows[name].startswith(f"`{files}`")
    assert {name for name in DATA_SETS if rows[name].startswith("none: ")} == {*PACKAGED}


@pytest.mark.parametrize("name", [*LAYOUT, "medmnist:pneumoniamnist"])
def test_absent_files_are_named_with_where_they_go(name: str, tmp_path: Path) -> None:
    for root in (None, Path("/data")):
        words = str(absent_data(name, root))
        assert str(files_of(name)) in words
        assert ("--data-root DIR" in words) is (root is None)
        assert ("--download (download=true)" in words) is (name != "cifar10-jpeg")
    for there in ("", None):
        with pytest.raises(DataNotFoundError, match="needs a folder"):
            expect_root(name, there)
    with pytest.raises(DataNotFoundError, match="No "):
        expect_root(name, tmp_path)
    expect_root(name, tmp_path, download=True)
    (tmp_path / "some").touch()
    expect_root(name, tmp_path)
    expect_root("digits", None)
    expect_root("none", "")
