"""Holder services that have records and no teachers: the default run asks for nothing else."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedtranscribe.config import FederationSettings
from fedtranscribe.errors import ConfigError, InvalidDataError, QuorumError
from fedtranscribe.holder.node import Node
from fedtranscribe.models.backbones import NO_BACKBONES
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.query import Kind
from fedtranscribe.runs.in_process import InProcess
from fedtranscribe.service.holder_file import HolderFile
from fedtranscribe.service.holding import Holding
from fedtranscribe.service.readiness import examine
from fedtranscribe.service.service import open_node
from tests.federation.runs import go, start

SUMS = (Kind.MOMENTS, Kind.MIXTURE, Kind.DESCENT)


@dataclass(frozen=True)
class Home:
    """A holder's folder."""

    path: Path

    @property
    def policy(self) -> Path:
        return self.path / "policy.toml"

    @property
    def records(self) -> Path:
        return self.path / "book" / "records.npz"

    def write(self, more: str = "", holder: str = 'records = "book/records.npz"\n') -> Path:
        self.policy.write_text(
            f'epsilon = 10.0\n{more}[holder]\nname = "{self.path.name}"\n{holder}'
            'ledger = "book/ledger.sqlite"\nsocket = "h.sock"\ndevice = "cpu"\n'
        )
        return self.policy


@pytest.fixture
def homes(tiny_data: Path, tmp_path: Path) -> list[Home]:
    """Three holders, each with a third of the records."""
    with np.load(tiny_data) as whole:
        arrays = {name: whole[name] for name in ("images", "labels", "ids")}
    made = []
    for number in range(3):
        home = Home(tmp_path / f"holder-{number}")
        home.records.parent.mkdir(parents=True, mode=0o700)
        part = {name: array[number::3] for name, array in arrays.items()}
        # Every third image is of one class: the classes are stated, never counted.
        np.savez(home.records, **part, classes=3)
        home.write()
        made.append(home)
    return made


@pytest.fixture
def home(homes: list[Home]) -> Home:
    return homes[0]


def node_of(home: Home) -> Node:
    node, _ = open_node(HolderFile.read(home.policy))
    return node


def test_it_states_its_records_and_gives_sums(home: Home):
    facts = node_of(home).capabilities()
    assert (facts.shards, facts.classes, facts.channels, facts.size) == (0, 3, 1, 28)
    assert set(facts.kinds) == set(SUMS)
    assert not facts.positional_ids
    assert facts.records == 0, "how many there are is not stated"


def test_a_run_needs_no_teachers(
    homes: list[Home], settings: FederationSettings, tmp_path: Path
) -> None:
    chosen = settings.model_copy(update={"student": None, "noise": "local"})
    nodes = [node_of(home) for home in homes]
    result = go(chosen, InProcess(nodes), start(tmp_path / "run", chosen))
    assert (result["privacy"], result["start"]) == ("moments", "moments")
    assert result["shards"] == {f"holder-{i}": 0 for i in range(3)}
    assert 9.9 < result["epsilon"] <= 10.0 * (1 + 1e-6)
    for home in homes:
        with Ledger.open_read_only(home.records.with_name("ledger.sqlite"), "npz:records") as book:
            total = book.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
            assert total.epsilon == pytest.approx(result["epsilon"], rel=1e-6)


def test_a_run_that_asks_teachers_leaves_it_out(
    homes: list[Home], settings: FederationSettings, tmp_path: Path
) -> None:
    asked = {"student": None, "noise": "local", "start": "none", "privacy": "vote"}
    chosen = settings.model_copy(update=asked)
    nodes = [node_of(home) for home in homes]
    with pytest.raises(QuorumError, match="Only 0 of 3"):
        go(chosen, InProcess(nodes), start(tmp_path / "run", chosen))
    chosen = chosen.model_copy(update={"start": "moments", "teachers_share": 0.5})
    with pytest.raises(ConfigError, match="gives no vote answers; set teachers_share=0"):
        go(chosen, InProcess(nodes), start(tmp_path / "other", chosen))


def test_a_training_needs_no_teachers(home: Home):
    home.write('trainers = ["dp-sad"]\nkinds = []\n')
    node = node_of(home)
    assert node.facts.trainers == ("dp-sad",)
    assert node.facts.kinds == ()


@pytest.mark.parametrize(
    ("more", "holder", "words"),
    [
        ("", "", r"\[holder\] records or \[holder\] teachers"),
        ('kinds = ["vote"]\n', None, r"\[holder\] teachers with unit=record and kinds=vote"),
        ('unit = "holder"\n', None, r"\[holder\] teachers with unit=holder"),
        ("kinds = []\n", None, "kinds=none"),
        ('trainers = ["dp-sad"]\n', 'teachers = "t"\n', r"\[holder\] records with trainers"),
    ],
)
def test_a_policy_that_could_answer_nothing_is_refused(home: Home, more, holder, words):
    home.write(more, *([holder] if holder is not None else []))
    with pytest.raises(ConfigError, match=words):
        HolderFile.read(home.policy)


def found(home: Home) -> dict[str, tuple[bool, str]]:
    return {finding.name: (finding.ok, finding.words) for finding in examine(home.policy)}


def test_the_check_says_what_the_records_are(home: Home):
    told = found(home)
    assert all(ok for ok, _ in told.values())
    assert told["answers"] == (True, "moments, mixture, descent")
    assert told["records"] == (True, "3 classes of 1x28, with ids")
    assert not any(name.startswith("teachers") for name in told)


def test_records_without_ids_are_said_and_stated(home: Home):
    with np.load(home.records) as whole:
        arrays = {name: whole[name] for name in ("images", "labels", "classes")}
    np.savez(home.records, **arrays)
    assert found(home)["records"] == (
        True,
        "3 classes of 1x28, no ids: each image counts as a record",
    )
    assert node_of(home).facts.positional_ids


def test_records_that_cannot_be_used_open_nothing(home: Home):
    home.records.write_bytes(b"none")
    ok, words = found(home)["records"]
    assert not ok
    assert str(home.records) in words
    assert "ledger" not in found(home), "whose it would be is not known"
    with pytest.raises(InvalidDataError):
        node_of(home)
    assert not home.records.with_name("ledger.sqlite").exists()


def test_another_ledger_of_the_records_is_found(home: Home, tmp_path: Path):
    """A second ledger would begin at nothing: where it lies beside the data, it is seen."""
    elsewhere = tmp_path / "records"
    elsewhere.mkdir()
    shutil.move(home.records, elsewhere / "records.npz")
    Ledger.open(elsewhere / "npz%3Arecords.ledger.sqlite", "npz:records").close()
    home.write(holder=f'records = "{elsewhere / "records.npz"}"\n')
    ok, words = found(home)["ledger"]
    assert not ok
    assert "npz%3Arecords.ledger.sqlite" in words


def test_records_alone_are_read_as_the_file_says(home: Home):
    with np.load(home.records) as whole:
        arrays = {name: whole[name] for name in ("images", "labels", "ids")}
    np.savez(home.records, **arrays)
    with pytest.raises(InvalidDataError, match="classes"):
        Holding.open(HolderFile.read(home.policy))
    home.write(holder='records = "book/records.npz"\nclasses = ["cat", "dog", "cow"]\n')
    holding = Holding.open(HolderFile.read(home.policy))
    assert holding.facts(NO_BACKBONES).classes == 3
    assert holding.data_id == "npz:records"
