"""Holder services that have records and no teachers: the default run asks for nothing else."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedtranscribe.cli import run
from fedtranscribe.config import FederationSettings, OwnData
from fedtranscribe.data.array_folders import pack
from fedtranscribe.errors import (
    ConfigError,
    InvalidDataError,
    ModelMismatchError,
    QuorumError,
    StorageError,
)
from fedtranscribe.files import who_may_reach
from fedtranscribe.holder.holder_file import HolderFile
from fedtranscribe.holder.holding import Holding
from fedtranscribe.holder.node import Node
from fedtranscribe.holder.readiness import examine
from fedtranscribe.holder.service import open_node
from fedtranscribe.models.backbones import NO_BACKBONES
from fedtranscribe.models.teachers import load_manifest
from fedtranscribe.privacy.events import Gaussian
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions.question import Kind
from fedtranscribe.runs.transports import InProcess
from tests.federation.runs import go, start

SUMS = (Kind.MOMENTS, Kind.MIXTURE, Kind.DESCENT, Kind.CLASS_MOMENTS)


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


@pytest.mark.long
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
        ('unit = "holder"\ntrainers = ["dp-sad"]\n', None, "no training is allowed"),
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
    assert told["answers"] == (True, "moments, mixture, descent, class-moments")
    assert told["records"] == (
        True,
        "3 classes of 1x28, ids that the data have",
    )
    assert told["records' files"] == (True, "closed to other users")
    assert told["device"] == (True, "cpu")
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


# ---------------------------------------------------------------- what one record is


def patients(home: Home, pattern: str = "") -> None:
    """The records as a folder: five patients with four images each, named after both."""
    folder = home.path / "book" / "scans"
    for label in range(3):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        for number in range(20):
            image = np.full((28, 28), 60 * label + number, np.uint8)
            name = f"p{number % 5}_{label}_{number}.png"
            Image.fromarray(image).save(folder / str(label) / name)
    home.write(holder=f'records = "book/scans"\nclasses = 3\n{pattern}')


PATTERN = "id_pattern = '(p[0-9]+)_[^/]*$'\n"
OTHER = "id_pattern = 'p([0-9]+_[0-9]+)_[^/]*$'\n"


def ask(home: Home) -> None:
    """A question for moments, so that something is booked."""
    file = HolderFile.read(home.policy)
    with Ledger.open(file.holder.ledger, Holding.open(file).data_id) as ledger:
        event = {Unit.RECORD: {Adjacency.ZERO_OUT: Gaussian(0.1)}}
        ledger.reserve("q", "h", MechanismRelease("noisy-moments", 1, event), "run")


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        (PATTERN, "", "with ids by id_pattern .* now they come with each image's path"),
        ("", PATTERN, "with each image's path as its id; now they come with ids by id_pattern"),
        (
            PATTERN,
            "id_pattern = 'p([0-9]+_[0-9]+)_[^/]*$'\n",
            "now they come with ids by id_pattern",
        ),
    ],
)
def test_what_a_record_is_does_not_change_unnoticed(home: Home, first, then, words):
    """Ids of each image would let one patient be behind many of the records that ε hides."""
    patients(home, first)
    node_of(home)
    ask(home)
    note = home.records.with_name("ledger.sqlite.record")
    noted = note.read_text()
    node_of(home)
    patients(home, then)
    head = home.records.with_name("ledger.sqlite.head").read_bytes()
    with pytest.raises(ConfigError, match=words):
        node_of(home)
    ok, said = found(home)["ledger"]
    assert not ok
    assert f"to the list in {note}" in said
    assert note.read_text() == noted
    assert home.records.with_name("ledger.sqlite.head").read_bytes() == head
    note.unlink()
    node_of(home)
    assert note.read_text() != noted


def test_a_pattern_is_told_from_paths_that_it_finds(home: Home):
    """Its ids end like pictures, too; those of all classes share them."""
    patients(home)
    node_of(home)
    ask(home)
    patients(home, "id_pattern = '([^/]*png)$'\n")
    with pytest.raises(ConfigError, match="now they come with ids by id_pattern"):
        node_of(home)


def test_a_pattern_of_two_lines_stays_one(home: Home):
    pattern = 'id_pattern = "(p[0-9]+)_(?:x|\\n)?[^/]*$"\n'
    patients(home, pattern)
    node_of(home)
    ask(home)
    node_of(home)


def test_a_mistake_before_anything_is_booked_may_be_corrected(home: Home):
    """But not unasked: a run that is under way may book later."""
    patients(home)
    node_of(home)
    patients(home, PATTERN)
    note = home.records.with_name("ledger.sqlite.record")
    with pytest.raises(ConfigError, match=r"no run is under way, remove that file\.$"):
        node_of(home)
    note.unlink()
    node_of(home)
    assert json.loads(note.read_text()) == ["id_pattern (p[0-9]+)_[^/]*$"]


def test_a_refused_start_changes_no_limit(home: Home):
    patients(home)
    node_of(home)
    patients(home, PATTERN)
    home.policy.write_text(home.policy.read_text().replace("epsilon = 10.0", "epsilon = 50.0"))
    with pytest.raises(ConfigError, match="now they come with"):
        node_of(home)
    with Ledger.open_read_only(home.records.with_name("ledger.sqlite")) as ledger:
        assert ledger.highest is not None
        assert ledger.highest.epsilon == 10


def test_another_way_to_make_the_same_ids_can_be_added(home: Home):
    patients(home)
    node_of(home)
    patients(home, PATTERN)
    note = home.records.with_name("ledger.sqlite.record")
    note.write_text(json.dumps([*json.loads(note.read_text()), "id_pattern (p[0-9]+)_[^/]*$"]))
    node_of(home)
    patients(home)
    node_of(home)


def test_ids_that_came_with_teachers_are_missed_without_them(home: Home, tmp_path: Path):
    patients(home, PATTERN)
    quick = tmp_path / "quick.toml"
    quick.write_text("[teachers]\nsteps = 1\nbatch = 4\n")
    scans, teachers = home.path / "book" / "scans", home.path / "teachers"
    arguments = ["teacher", "train", "--data", str(scans), "--shards", "2", "--classes", "3"]
    arguments += ["--id-pattern", "(p[0-9]+)_[^/]*$", "--arch", "cnn-small", "--channels", "1"]
    assert run([*arguments, "--config", str(quick), "--out", str(teachers)]) == 0
    home.write(holder='teachers = "teachers"\nrecords = "book/scans"\n')
    assert node_of(home).facts.shards == 2
    ask(home)
    home.write(holder='records = "book/scans"\nclasses = 3\n')
    with pytest.raises(ConfigError, match="now they come with each image's path"):
        node_of(home)
    patients(home, PATTERN)
    assert node_of(home).facts.shards == 0
    home.write('kinds = ["vote"]\n', holder='teachers = "teachers"\n')
    assert node_of(home).facts.shards == 2, "teachers say how ids were made"
    own = OwnData(classes=3, id_pattern="(p[0-9]+)_[^/]*$", channels=1)
    ledger = HolderFile.read(home.policy).holder.ledger
    pack(scans, scans.with_name("packed"), own, ledger=ledger)
    home.write(holder='teachers = "teachers"\nrecords = "book/packed"\n')
    assert node_of(home).facts.shards == 2, "and so does a packed copy"


@pytest.mark.parametrize("old", [False, True])
def test_teachers_of_other_ids_are_refused(home: Home, tmp_path: Path, old: bool):
    """One patient would be behind several teachers, whatever is stated beside them."""
    patients(home, PATTERN)
    node_of(home)
    quick = tmp_path / "quick.toml"
    quick.write_text("[teachers]\nsteps = 1\nbatch = 4\n")
    scans, teachers = home.path / "book" / "scans", home.path / "teachers"
    arguments = ["teacher", "train", "--data", str(scans), "--shards", "2", "--classes", "3"]
    arguments += ["--arch", "cnn-small", "--config", str(quick), "--out", str(teachers)]
    assert run(arguments) == 0
    if old:
        manifest = load_manifest(teachers)
        manifest.model_copy(update={"ids_made": None}).save(teachers)
    home.write('kinds = ["vote"]\n', holder='teachers = "teachers"\n')
    with pytest.raises(ConfigError, match="now they come with"):
        node_of(home)
    home.write(holder=f'teachers = "teachers"\nrecords = "book/scans"\n{PATTERN}')
    with pytest.raises(ModelMismatchError, match=r"learned from records with .* come with ids by"):
        node_of(home)
    asked = ["transcribe", "--teacher", str(teachers), "--id-pattern", "(p[0-9]+)_[^/]*$"]
    assert run([*asked, "--out", str(tmp_path / "run"), "--force"]) == ModelMismatchError.exit_code
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", ["", "own", '{"own": 1}', "[1]", "[]", None])
def test_a_note_that_cannot_be_read_is_no_leave(home: Home, content):
    node_of(home)
    note = home.records.with_name("ledger.sqlite.record")
    note.unlink()
    if content is None:
        note.mkdir()
    else:
        note.write_text(content)
    with pytest.raises(StorageError, match="restore it from a copy"):
        node_of(home)


# ---------------------------------------------------------------- what the check sees


def test_records_that_others_may_read_are_found(home: Home):
    home.records.chmod(0o644)
    assert found(home)["records' files"] == (True, "closed to other users"), "by a folder above"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "parents", [])
        ok, words = found(home)["records' files"]
    assert not ok
    assert words == f"{home.records} is open to all users; chmod -R go= {home.records}."


def test_who_may_reach_a_file(tmp_path: Path):
    file = tmp_path / "closed" / "file"
    file.parent.mkdir(mode=0o700)
    file.touch(mode=0o644)
    assert who_may_reach(file) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "parents", [])
        assert who_may_reach(file) == "all users"
        file.chmod(0o640)
        assert who_may_reach(file) == "its group"
        file.chmod(0o600)
        assert who_may_reach(file) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_folder_of_another_user_closes_nothing_to_its_group(tmp_path: Path):
    """The SuperNode's user may be in that group."""
    folder = tmp_path / "shared"
    folder.mkdir()
    file = folder / "file"
    file.touch(mode=0o644)
    os.chown(folder, 12_345, 54_321)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "parents", property(lambda path: [] if path == folder else [folder]))
        for mode, who in ((0o755, "all users"), (0o750, "its group"), (0o700, None)):
            folder.chmod(mode)
            assert who_may_reach(file) == who


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another group")
@pytest.mark.parametrize(
    ("owner", "mode", "mount", "who"),
    [
        (0, 0o2770, True, None),
        (0, 0o2770, False, "its group"),
        (12_345, 0o2770, True, "its group"),
        (0, 0o2775, True, "all users"),
    ],
    ids=["a volume", "a shared folder", "a colleague's", "open"],
)
def test_only_a_clusters_volume_is_let_off(tmp_path: Path, owner, mode, mount, who):
    """A group's shared folder has the same mode and owner, but is mounted by nobody."""
    folder = tmp_path / "shared"
    folder.mkdir()
    file = folder / "file"
    file.touch(mode=0o644)
    os.chown(folder, owner, 54_321)
    folder.chmod(mode)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "parents", property(lambda path: [folder]))
        patch.setattr(Path, "is_mount", lambda path: mount and path == folder)
        patch.setattr(os, "geteuid", lambda: 1_000)
        patch.setattr(os, "getgroups", lambda: [54_321])
        assert who_may_reach(file) == who


@pytest.mark.parametrize(("sums", "folder"), [(True, "moments"), (False, "dp-sad")])
def test_a_device_that_is_not_there_is_said_before_a_ledger_is_made(home: Home, sums, folder):
    more = f'kinds = ["{folder}"]\n' if sums else f'kinds = []\ntrainers = ["{folder}"]\n'
    home.write(more)
    home.policy.write_text(home.policy.read_text().replace('"cpu"', '"cuda:99"'))
    ok, words = found(home)["device"]
    assert not ok
    assert "cuda:99 is not available" in words
    with pytest.raises(ConfigError, match="cuda:99 is not available"):
        node_of(home)
    assert not home.records.with_name("ledger.sqlite").exists()


def test_records_that_no_server_would_accept_are_not_served(home: Home, monkeypatch):
    monkeypatch.setattr("fedtranscribe.config.facts.MOST_SIDE", 20)
    ok, words = found(home)["records"]
    assert not ok
    assert "(3, 1, 28, 0) are more than" in words
    with pytest.raises(ConfigError, match=r"records that a server accepts: .* \(3, 1, 28, 0\)"):
        node_of(home)
    assert not home.records.with_name("ledger.sqlite").exists()


def test_records_that_may_not_be_read_are_a_finding(home: Home, monkeypatch):
    def closed(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(home.records))

    monkeypatch.setattr("fedtranscribe.holder.holding.load", closed)
    ok, words = found(home)["records"]
    assert not ok
    assert words == (
        f"Cannot read [holder] records: {home.records}: Permission denied. Give the files to the "
        "service's user."
    )


def test_a_holder_that_counts_by_holder_offers_no_training(home: Home):
    home.write('trainers = ["dp-sad"]\n')
    node = node_of(home)
    assert node.facts.trainers == ("dp-sad",)
    node.policy = node.policy.model_copy(update={"unit": Unit.HOLDER})
    assert node.facts.trainers == ()
