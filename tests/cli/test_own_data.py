"""Own images through the command line: what is stated is kept, what is wrong costs nothing."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedtranscribe
from fedtranscribe.cli import run
from fedtranscribe.config import OwnData, TranscribeSettings
from fedtranscribe.data import load
from fedtranscribe.data.registry import ledger_of
from fedtranscribe.errors import ConfigError, DataNotFoundError, InvalidDataError
from fedtranscribe.evaluation.canaries import plant, save_planted
from fedtranscribe.flower.apps import settings_from
from fedtranscribe.holder.holder_file import HolderFile
from fedtranscribe.holder.holding import Holding
from fedtranscribe.models.teachers import load_manifest
from fedtranscribe.privacy.budget import Budget, note_path, settle
from fedtranscribe.privacy.events import Gaussian
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.releases import make_release, verify
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from fedtranscribe.trainers.preparation import prepare as prepare_synthesis
from tests.data.test_hostile_files import CONTENT, archive, npy
from tests.data.test_pictures import png


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """60 grey pictures of 30 patients in two classes; both classes have the same file names."""
    rng = np.random.default_rng(0)
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(30):
            pixels = rng.integers(60 * label, 60 * label + 80, (28, 28)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"p{i}.png")
    return tmp_path / "pets"


@pytest.fixture
def unstated(tiny_data: Path) -> Path:
    """An archive that does not say how many classes there are."""
    with np.load(tiny_data) as arrays:
        kept = {key: arrays[key] for key in arrays.files if key != "classes"}
    np.savez(tiny_data, **kept)
    return tiny_data


@pytest.mark.usefixtures("without_onnx")
def test_classes_and_patients_of_a_folder_reach_the_release(
    pets: Path, tiny_settings: TranscribeSettings, tmp_path: Path
):
    stated = {"data": str(pets), "id_pattern": r"/(p\d+)\.png$", "shards": 5}
    settings = tiny_settings.model_copy(update=stated)
    prepared = prepare(settings)
    patients = len(set(prepared.split.train.ids))
    assert prepared.plan.facts.records == patients < len(prepared.split.train)
    result = transcribe(prepared, tmp_path / "run", force=True).to_json()
    assert result["class_names"] == ["cat", "dog"]
    again = FinishedRun.open(tmp_path / "run").data()
    assert again.train.ids == prepared.split.train.ids
    folder = make_release(tmp_path / "run").folder
    assert verify(folder).ok
    assert "- Classes, from 0: cat, dog\n" in (folder / "card.md").read_text(encoding="utf-8")
    release = fedtranscribe.load(folder)
    images = prepared.split.test.images
    names = release.predict(images, names=True)
    assert names == [("cat", "dog")[label] for label in release.predict(images).tolist()]


def test_teachers_remember_how_their_data_are_read(unstated: Path, tmp_path: Path):
    config = tmp_path / "quick.toml"
    config.write_text("[teachers]\nsteps = 1\nbatch = 4\n")
    arguments = ["teacher", "train", "--data", str(unstated), "--shards", "2"]
    arguments += ["--arch", "cnn-small", "--config", str(config)]
    assert run([*arguments, "--out", str(tmp_path / "never")]) == 3
    assert not (tmp_path / "never").exists()
    assert run([*arguments, "--classes", "a,b,c", "--out", str(tmp_path / "t")]) == 0
    manifest = load_manifest(tmp_path / "t")
    assert manifest.own_data == OwnData(classes=("a", "b", "c"))
    for data in (None, str(unstated)):
        prepared = prepare(TranscribeSettings(teacher=str(tmp_path / "t"), data=data))
        assert prepared.split.train.class_names == ("a", "b", "c")


def test_a_holders_records_are_read_as_its_teachers_were(unstated: Path, tmp_path: Path):
    def file(lines: str = "") -> HolderFile:
        policy = tmp_path / "policy.toml"
        policy.write_text(
            'epsilon = 10.0\ntrainers = ["dp-promise"]\n[holder]\nname = "h"\nteachers = "t"\n'
            f'records = "{unstated.name}"\nledger = "l.sqlite"\nsocket = "s"\n{lines}'
        )
        return HolderFile.read(policy)

    quick = tmp_path / "quick.toml"
    quick.write_text("[teachers]\nsteps = 1\nbatch = 4\n")
    arguments = ["teacher", "train", "--data", str(unstated), "--shards", "2", "--classes", "3"]
    arguments += ["--arch", "cnn-small", "--config", str(quick), "--out", str(tmp_path / "t")]
    assert run(arguments) == 0
    assert Holding.open(file()).records.classes == 3  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"classes=3, as the teachers have; .* has 4"):
        Holding.open(file("classes = 4\n"))
    assert file('ids = "x.csv"\n').holder.ids == tmp_path / "x.csv"

    manifest = load_manifest(tmp_path / "t").model_copy(update={"own_data": OwnData()})
    manifest.save(tmp_path / "t")
    assert Holding.open(file("classes = 3\n")).records.classes == 3  # type: ignore[union-attr]
    with pytest.raises(InvalidDataError, match="key 'classes'"):
        Holding.open(file())


PATIENTS = ["--id-pattern", r"/(p\d+)\.png$"]


@pytest.mark.long
@pytest.mark.parametrize(("first", "then"), [(PATIENTS, []), ([], PATIENTS)])
@pytest.mark.parametrize("command", ["transcribe", "synthesize"])
def test_what_a_record_is_stays_what_it_was(
    pets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command, first, then
):
    """Ids of each image would let one patient be behind many of the records that ε hides."""
    images = load(str(pets), own=OwnData(id_pattern=first[1] if first else None)).train
    place = ledger_of(images, str(pets), None)
    note = note_path(place.path)
    with Ledger.open(place.path, place.data_id) as ledger:
        settle(place.path, images.ids_by)
        ledger.set_budget(Budget(20.0, 1e-5, Unit.RECORD, Adjacency.ZERO_OUT))
        event = {Unit.RECORD: {Adjacency.ZERO_OUT: Gaussian(0.1)}}
        ledger.reserve("q", "h", MechanismRelease("noisy-moments", 1, event), "run")
        head = ledger.head
    arguments = [command, "--data", str(pets), "--epsilon", "10", *then]
    arguments += ["--force"] * (command == "transcribe")
    assert run([*arguments, "--out", str(tmp_path / "run")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "Expected records as for the ledger" in said
    assert str(note) in said
    assert not list(tmp_path.glob("run/*")), "its folder is free again"
    with Ledger.open_read_only(place.path) as ledger:
        assert ledger.head == head


def test_every_entry_asks_for_classes(unstated: Path, tmp_path: Path, tiny_settings):
    for command in ("transcribe", "synthesize"):
        arguments = [command, "--data", str(unstated), "--out", str(tmp_path / "never")]
        assert run(arguments) == 3
    assert run(["plant", str(unstated), "--out", str(tmp_path / "never")]) == 3
    assert run(["plant", str(unstated), "--out", str(tmp_path / "p"), "--classes", "3"]) == 0
    assert load(str(tmp_path / "p" / "planted.npz")).train.classes == 3
    with pytest.raises(InvalidDataError, match="key 'classes'"):
        prepare(tiny_settings.model_copy(update={"public_data": str(unstated), "classes": 3}))
    from fedtranscribe.config import SynthesizeSettings

    with pytest.raises(InvalidDataError, match="key 'classes'"):
        prepare_synthesis(SynthesizeSettings(data=str(unstated)))
    assert not list(tmp_path.rglob("*.ledger.sqlite"))


def test_settings_of_flower_apps_state_them_too():
    unset = {"classes": "", "ids": "", "id-pattern": "", "image-size": 0, "bit-depth": 0}
    assert settings_from(unset).own_data == OwnData()
    stated = settings_from({**unset, "classes": "cat, dog", "bit-depth": 12})
    assert stated.own_data == OwnData(classes=("cat", "dog"), bit_depth=12)


def test_names_survive_planting(pets: Path, tmp_path: Path):
    split = load(str(pets))
    planted, canaries = plant(split.train, 10)
    save_planted(split, planted, canaries, tmp_path / "p")
    assert load(str(tmp_path / "p" / "planted.npz")).train.class_names == ("cat", "dog")


# -------------------------------------------------------------------- hostile files


def pipe(folder: Path) -> str:
    os.mkfifo(folder / "cat" / "x.png")
    return str(folder)


def not_utf8(folder: Path) -> str:
    (folder / "cat" / "p0.png").rename(folder / "cat" / os.fsdecode(b"\xff.png"))
    return str(folder)


def huge(folder: Path) -> str:
    (folder / "cat" / "x.png").write_bytes(png(20_000, 20_000, 8, 0, b"\0" * 20_000))
    return str(folder)


def deep(folder: Path) -> str:
    Image.new("I;16", (28, 28), 4_000).save(folder / "cat" / "x.png")
    return str(folder)


def tebibytes(folder: Path) -> str:
    return archive(folder / "x.npz", images=npy(CONTENT["images"], (10**9, 280, 280)))


def odd_labels(folder: Path) -> str:
    return archive(folder / "x.npz", labels=npy(np.full(40, 300_000_000)))


def odd_id(folder: Path) -> str:
    return archive(folder / "x.npz", data_id=npy(np.array("ward\n12")))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (pipe, "no regular file"),
        (not_utf8, "UTF-8"),
        (huge, "scale it down"),
        (deep, "--bit-depth"),
        (tebibytes, "claims 78,400,000,000,000 bytes"),
        (odd_labels, "--classes"),
        (odd_id, "printable"),
    ],
)
@pytest.mark.parametrize("command", ["transcribe", "synthesize", "teacher"])
def test_hostile_files_end_as_one_line(pets: Path, tmp_path: Path, capsys, command, make, words):
    arguments = ["teacher", "train"] if command == "teacher" else [command]
    code = run([*arguments, "--data", make(pets), "--out", str(tmp_path / "never")])
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if line.startswith("error: ")]
    assert (code, len(lines)) == (3, 1), error
    assert words in lines[0]
    assert "Traceback" not in error
    assert "300000000" not in error
    assert not list(tmp_path.rglob("*.ledger.sqlite"))
    assert not (tmp_path / "never").exists()


def test_a_path_that_is_no_utf8(tmp_path: Path, capsys):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.npz")
    assert run(["transcribe", "--data", odd, "--out", str(tmp_path / "never")]) in (2, 3)
    assert "Traceback" not in capsys.readouterr().err


def test_an_absent_file_of_ids(pets: Path):
    with pytest.raises(DataNotFoundError, match=r"absent\.csv"):
        load(str(pets), own=OwnData(ids=Path("absent.csv")))


def test_results_are_json(pets: Path, tiny_settings: TranscribeSettings, tmp_path: Path):
    settings = tiny_settings.model_copy(update={"data": str(pets), "classes": ("dog", "cat")})
    result = transcribe(prepare(settings), tmp_path / "run", force=True).to_json()
    stored = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert stored["class_names"] == result["class_names"] == ["dog", "cat"]
    # A run is resumed by the settings that it was started with.
    assert run(["transcribe", "--resume", "--out", str(tmp_path / "run")]) == 0
