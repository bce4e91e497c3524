"""Every mistake ends as one line that names value and fix, exit code ≠ 0, nothing spent."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtranscribe.cli import run
from fedtranscribe.config import TeacherSettings, TranscribeSettings
from fedtranscribe.data import load
from fedtranscribe.models import build, save
from fedtranscribe.models.teacher_training import train_teachers
from fedtranscribe.runs.preparation import make_manifest


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Run `transcribe` with arguments; returns its error line after the common checks."""

    def check(*arguments: str, code: int | None = None, out: Path | None = None) -> str:
        folder = out or tmp_path / "never"
        exit_code = run(["transcribe", "--out", str(folder), *arguments])
        error = capsys.readouterr().err
        lines = [line for line in error.splitlines() if line.startswith("error: ")]
        assert exit_code != 0, error
        if code is not None:
            assert exit_code == code, error
        assert len(lines) == 1, error
        assert "Traceback" not in error
        assert not list(tmp_path.rglob("*.ledger.sqlite")), "nothing was spent"
        return lines[0]

    return check


@pytest.fixture
def teachers(tiny_data: Path, tmp_path: Path) -> Path:
    """Two teachers on the tiny data."""
    images = load(str(tiny_data)).train
    settings = TranscribeSettings(
        data=str(tiny_data), teacher="cnn-small", teachers=TeacherSettings(steps=1, batch=4)
    )
    folder = tmp_path / "teachers"
    manifest = make_manifest(settings, images, 2, "full")
    train_teachers(
        images,
        manifest,
        folder,
        device=torch.device("cpu"),
        progress=lambda done, total: None,
    )
    return folder


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--epsilon", "0"), "epsilon=0"),
        (("--epsilon", "-3"), "epsilon=-3"),
        (("--epsilon", "nan"), "epsilon=nan"),
        (("--delta", "0"), "delta=0"),
        (("--delta", "1"), "delta=1"),
        (("--rows", "0"), "rows=0"),
        (("--shards", "0"), "shards=0"),
        (("--privacy", "both"), "privacy='both'"),
        (("--unit", "patient"), "unit='patient'"),
        (("--device", "abacus"), "abacus"),
        (("--config", "absent.toml"), "absent.toml"),
    ],
)
def test_values_out_of_range(fails, tiny_data: Path, arguments: tuple[str, ...], named: str):
    assert named in fails("--data", str(tiny_data), *arguments, code=2)


def test_all_wrong_values_are_named_at_once(fails, tiny_data: Path):
    error = fails("--data", str(tiny_data), "--epsilon", "0", "--delta", "2", "--rows", "-1")
    assert all(name in error for name in ("epsilon=0", "delta=2", "rows=-1"))


def test_top_k_beyond_the_classes(fails, tiny_data: Path):
    assert "top-k=4 <= 3 classes" in fails("--data", str(tiny_data), "--top-k", "4", code=2)


def test_more_shards_than_records(fails, tiny_data: Path):
    error = fails("--data", str(tiny_data), "--shards", "1000", code=2)
    assert "shards=1000" in error
    assert "records" in error


def test_absent_and_unknown_data(fails, tmp_path: Path):
    assert "mnist" in fails("--data", "mnist", "--data-root", str(tmp_path), code=3)
    assert "digitz" in fails("--data", "digitz", code=3)


def test_nan_images(fails, tmp_path: Path):
    images = np.full((30, 28, 28), np.nan, dtype=np.float32)
    np.savez(tmp_path / "bad.npz", images=images, labels=np.arange(30) % 3, classes=3)
    assert "bad.npz" in fails("--data", str(tmp_path / "bad.npz"), code=3)


def test_unknown_architectures(fails, tiny_data: Path):
    error = fails("--data", str(tiny_data), "--teacher", "resnet5", code=4)
    assert "resnet5" in error
    assert "resnet50" in error
    assert "cnnn" in fails("--data", str(tiny_data), "--student", "cnnn", code=4)


VOUCHED = ("--teacher-weights-declared-by", "J. Doe")


def test_missing_weights(fails, tiny_data: Path):
    given = ("--data", str(tiny_data), "--teacher-weights", "absent.safetensors")
    error = fails(*given, *VOUCHED, code=4)
    assert "absent.safetensors" in error


def test_weights_without_a_network(fails, tiny_data: Path, monkeypatch: pytest.MonkeyPatch):
    def offline(*_: object, **__: object) -> None:
        raise OSError("no network here")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", offline)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    error = fails(
        *("--data", str(tiny_data), "--teacher", "squeezenet1_1", "--teacher-weights", "imagenet"),
        *VOUCHED,
        code=4,
    )
    assert "squeezenet1_1" in error


def test_truncated_and_nan_weights(fails, tiny_data: Path, tmp_path: Path):
    network = build("cnn", 3, 1, 28)
    path = tmp_path / "weights.safetensors"
    save(network, path)
    path.write_bytes(path.read_bytes()[:-100])
    given = ("--data", str(tiny_data), "--teacher", "cnn", "--teacher-weights", str(path))
    arguments = (*given, *VOUCHED)
    assert "weights.safetensors" in fails(*arguments, code=4)
    torch.nn.init.constant_(network.head.weight, float("nan"))
    save(network, path)
    assert "weights.safetensors" in fails(*arguments, code=4)


def test_a_truncated_shard_of_given_teachers(fails, teachers: Path):
    shard = teachers / "shard-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:50])
    assert "shard-00001" in fails("--teacher", str(teachers), "--force", code=4)


def test_shards_that_the_given_teachers_do_not_have(fails, teachers: Path):
    assert "shards=2" in fails("--teacher", str(teachers), "--shards", "3", "--force", code=2)


def test_teachers_of_another_shape_than_the_data(fails, teachers: Path, tmp_path: Path):
    colour = tmp_path / "colour.npz"
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (30, 32, 32, 3), dtype=np.uint8)
    np.savez(colour, images=images, labels=np.arange(30) % 4, classes=4)
    error = fails("--teacher", str(teachers), "--data", str(colour), code=4)
    assert "3 classes of 1x28x28" in error
    assert "4 classes of 3x32x32" in error


def test_a_folder_without_teachers(fails, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    error = fails("--teacher", str(tmp_path / "empty"), code=7)
    assert "teacher train" in error


def test_corrupt_and_foreign_ledgers(fails, teachers: Path, tmp_path: Path):
    ledger = tmp_path / "book.sqlite"
    ledger.write_bytes(b"this is no database" * 100)
    arguments = ("--teacher", str(teachers), "--ledger", str(ledger), "--force", "--rows", "10")
    assert "book.sqlite" in fails(*arguments, code=6, out=tmp_path / "one")
    ledger.unlink()
    with sqlite3.connect(ledger) as other:
        other.execute("CREATE TABLE somebody_elses (x)")
    other.close()
    assert "book.sqlite" in fails(*arguments, code=6, out=tmp_path / "two")


def test_a_ledger_of_other_data(fails, teachers: Path, tmp_path: Path):
    from fedtranscribe.privacy.ledger import Ledger

    ledger = tmp_path / "book.sqlite"
    Ledger.open(ledger, "other data").close()
    arguments = ("--teacher", str(teachers), "--ledger", str(ledger), "--force", "--rows", "10")
    assert "other data" in fails(*arguments, code=6)


def test_output_that_cannot_be_written(fails, teachers: Path, tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    arguments = ("--teacher", str(teachers), "--force", "--rows", "10")
    assert "file" in fails(*arguments, code=7, out=blocked / "run")


def test_output_that_holds_something_else(fails, teachers: Path, tmp_path: Path):
    arguments = ("--teacher", str(teachers), "--force", "--rows", "10")
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "notes.txt").write_text("mine")
    assert "not empty" in fails(*arguments, code=7, out=taken)
    (taken / "config.toml").write_text('run = "run-1"\n')
    assert "another run" in fails(*arguments, code=7, out=taken)


def test_a_full_disk(fails, teachers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    error = fails("--teacher", str(teachers), "--force", "--rows", "10", code=7)
    assert "No space left" in error


def test_resume_without_a_run(fails, tmp_path: Path):
    assert "No run" in fails("--resume", code=7, out=tmp_path / "nowhere")


def test_a_hopeless_plan_names_force(fails, teachers: Path):
    assert "--force" in fails("--teacher", str(teachers), "--epsilon", "0.5", code=5)


def test_teacher_commands(capsys: pytest.CaptureFixture[str], teachers: Path, tiny_data: Path):
    assert run(["teacher", "info", str(teachers), "--json"]) == 0
    described = capsys.readouterr().out
    assert '"shards": 2' in described
    assert "key" not in described
    assert "accuracy" not in described
    arguments = ["teacher", "train", "--data", str(tiny_data), "--out", str(teachers)]
    assert run([*arguments, "--shards", "3", "--arch", "cnn-small"]) == 7
    assert "other teachers" in " ".join(capsys.readouterr().err.split())
