"""`synthesize` and `sample` as a user types them: output, errors in one line, nothing spent."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedtranscribe.cli import run
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.trainers.dp_promise import DpPromise

QUICK = (
    *("--size", "tiny", "--sampling-steps", "2", "--samples", "60", "--physical-batch", "4"),
    *("--phase1-batch", "4", "--phase1-epochs", "0.2", "--boundary", "980", "--no-evaluate"),
    *("--phase2-batch", "4", "--phase2-epochs", "0.2"),
)


@pytest.fixture(autouse=True)
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtranscribe.trainers.synthesize.figures_available", lambda: False)


@pytest.fixture
def finished(tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A finished run without noise."""
    out = tmp_path / "run"
    arguments = ["synthesize", "--data", str(tiny_data), "--no-noise", *QUICK, "--out", str(out)]
    assert run(arguments) == 0
    capsys.readouterr()
    return out


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Run `synthesize` with arguments; its error line after the common checks."""

    def check(*arguments: str, code: int, out: Path | None = None) -> str:
        exit_code = run(["synthesize", "--out", str(out or tmp_path / "never"), *arguments])
        error = capsys.readouterr().err
        lines = [line for line in error.splitlines() if line.startswith("error: ")]
        assert exit_code == code, error
        assert len(lines) == 1, error
        assert "Traceback" not in error
        assert not list(tmp_path.rglob("*.ledger.sqlite")), "nothing was spent"
        return lines[0]

    return check


@pytest.mark.long
def test_a_private_run_as_json_and_its_samples(
    tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "run"
    arguments = ["synthesize", "--data", str(tiny_data), "--epsilon", "1", *QUICK]
    assert run([*arguments, "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result) >= {
        *("method", "epsilon", "delta", "unit", "adjacency", "accountant", "sound", "published"),
        *("private", "caveats", "stamp", "sigma", "steps", "ledger", "run", "data", "public_data"),
        *("sampling", "accuracy", "accuracy_on", "settings", "resolved", "sha256"),
    }
    assert result["private"] is True
    assert 0.99 < result["epsilon"] <= 1
    assert list(tmp_path.glob("*.ledger.sqlite")), "the budget book lies beside the data"
    samples = tmp_path / "samples.npz"
    assert run(["sample", str(out), "--num", "5", "--out", str(samples), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["images"], told["shape"], told["private"]) == (5, "1x28x28", True)
    assert told["epsilon"] == pytest.approx(result["epsilon"])
    with np.load(samples) as arrays:
        assert arrays["images"].shape == (5, 1, 28, 28)
        assert arrays["labels"].tolist() == [0, 1, 2, 0, 1]


def test_what_is_not_private_says_so_wherever_it_is_seen(
    finished: Path, tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["synthesize", "--resume", "--out", str(finished)]) == 0
    shown = capsys.readouterr()
    assert "NOT PRIVATE" in shown.out
    assert "NOT PRIVATE" in shown.err
    assert "infinite: no guarantee" in shown.out
    assert run(["sample", str(finished), "--num", "2", "--out", str(tmp_path / "two.npz")]) == 0
    assert "NOT PRIVATE" in capsys.readouterr().err


def test_algorithm_1_as_printed_prints_both_figures(
    tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ["synthesize", "--data", str(tiny_data), "--calibrate-by", "published", *QUICK]
    assert run([*arguments, "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr()
    assert "published formula, no guarantee" in shown.out
    assert "infinite: no guarantee" in shown.out
    assert "NOT PRIVATE: Phase I as published" in " ".join(shown.err.split())
    assert not list(tmp_path.rglob("*.sqlite"))


def test_samples_in_folders_by_label(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ["sample", str(finished), "--num", "4", "--labels", "2,0", "--steps", "1"]
    assert run([*arguments, "--guidance", "1", "--seed", "3", "--out", str(tmp_path / "out")]) == 0
    assert {p.parent.name for p in (tmp_path / "out").rglob("*.png")} == {"0", "2"}
    assert run([*arguments, "--out", str(tmp_path / "out")]) == 7
    assert "exists already" in capsys.readouterr().err


def test_samples_that_cannot_be_drawn(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for option, value, named in (
        ("--num", "0", "num=0"),
        ("--labels", "3", "'3'"),
        ("--steps", "0", "steps=0"),
        ("--guidance", "-1", "guidance=-1"),
        ("--device", "nonsense", "nonsense"),
        ("--out", "samples.csv", "samples.csv"),
    ):
        given = {"--num": "1", "--out": str(tmp_path / "x.npz"), option: value}
        words = [word for pair in given.items() for word in pair]
        assert run(["sample", str(finished), *words]) == 2
        assert named in capsys.readouterr().err
    assert not (tmp_path / "x.npz").exists()


def transcribed(data: Path, folder: Path, *words: str) -> Path:
    """A run on sums; its ledger lies beside the data."""
    arguments = ["transcribe", "--data", str(data), "--epsilon", "50", "--budget", "200", "--force"]
    assert run([*arguments, *words, "--out", str(folder)]) == 0
    return folder


@pytest.mark.long
def test_samples_of_a_mixture_are_of_the_classes_that_were_asked_for(
    tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    made = transcribed(tiny_data, tmp_path / "run")
    capsys.readouterr()
    out = tmp_path / "samples.npz"
    assert run(["sample", str(made), "--num", "6", "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["classes"], told["steps"], told["shape"]) == (3, None, "1x28x28")
    with np.load(out) as archive:
        assert archive["labels"].tolist() == [0, 1, 2, 0, 1, 2]
        assert archive["images"].shape == (6, 1, 28, 28)
        first = archive["images"].copy()
    again = tmp_path / "again.npz"
    assert run(["sample", str(made), "--num", "6", "--out", str(again)]) == 0
    with np.load(again) as archive:
        assert (archive["images"] == first).all()
    only = ["sample", str(made), "--num", "4", "--labels", "2", "--out", str(tmp_path / "two.npz")]
    assert run(only) == 0
    with np.load(tmp_path / "two.npz") as archive:
        assert archive["labels"].tolist() == [2] * 4
    capsys.readouterr()
    steps = ["sample", str(made), "--num", "4", "--steps", "3", "--out", str(tmp_path / "x.npz")]
    assert run(steps) == 2
    assert "only diffusion models have this option" in " ".join(capsys.readouterr().err.split())


@pytest.mark.long
def test_samples_of_a_network_are_labelled_by_the_student(
    tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    few = tmp_path / "few.toml"
    few.write_text("[dpsd]\nmoments_steps = 1\npretrain_steps = 1\n")
    made = transcribed(tiny_data, tmp_path / "run", "--mixture-share", "0", "--config", str(few))
    out = tmp_path / "samples.npz"
    assert run(["sample", str(made), "--num", "5", "--out", str(out)]) == 0
    finished = FinishedRun.open(made)
    images, labels = finished.synthesise(5, seed=0)
    with np.load(out) as archive:
        assert (archive["images"] == images.numpy()).all()
        assert (archive["labels"] == labels.numpy()).all()
    capsys.readouterr()
    asked = ["sample", str(made), "--num", "5", "--labels", "1", "--out", str(tmp_path / "x.npz")]
    assert run(asked) == 2
    assert "knows no classes" in " ".join(capsys.readouterr().err.split())
    none = transcribed(tiny_data, tmp_path / "none", "--no-generator")
    capsys.readouterr()
    assert run(["sample", str(none), "--num", "5", "--out", str(tmp_path / "x.npz")]) == 2
    assert "has no generator" in " ".join(capsys.readouterr().err.split())


def test_no_run_to_sample_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = str(tmp_path / "x.npz")
    assert run(["sample", str(tmp_path / "absent"), "--num", "1", "--out", out]) == 7
    assert "No run" in capsys.readouterr().err


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--boundary", "0"), "boundary=0"),
        (("--boundary", "1002"), "S=1002 in 1..1001"),
        (("--boundary", "950", "--no-phase1"), "boundary=950"),
        (("--boundary", "300", "--noisy-images", "cached"), "boundary=300 >="),
        (("--copies", "0"), "copies=0"),
        (("--phase1-batch", "61"), "phase1_batch=61"),
        (("--phase2-batch", "100000"), "phase2_batch=100000"),
        (("--epsilon", "-1"), "epsilon=-1"),
        (("--epsilon", "inf"), "epsilon=inf"),
        (("--delta", "1"), "delta=1"),
        (("--epsilon", "1", "--no-noise"), "epsilon=1.0 or no noise"),
        (("--method", "dp-bad"), "method='dp-bad'"),
        (("--batch", "8"), "--method dp-sad"),
        (("--method", "dp-sad", "--boundary", "900"), "--method dp-promise"),
        (("--profile", "fast"), "profile='fast'"),
        (("--size", "huge"), "size='huge'"),
        (("--samples", "5"), "samples=5"),
        (("--physical-batch", "0"), "physical_batch=0"),
        (("--device", "nonsense"), "nonsense"),
        (("--config", "absent.toml"), "absent.toml"),
        (("--phase2-epochs", "0"), "phase2_epochs=0"),
    ],
)
def test_bad_values_are_named(fails, tiny_data: Path, arguments: tuple[str, ...], named: str):
    assert named in fails("--data", str(tiny_data), *arguments, code=2)


def test_absent_data(fails, tmp_path: Path):
    assert "digitz" in fails("--data", "digitz", code=3)
    assert "mnist" in fails("--data", "mnist", "--data-root", str(tmp_path), code=3)
    assert "shapez" in fails("--pretrain-data", "shapez", "--no-noise", code=3)


def test_a_settings_file_with_both_tables(fails, tiny_data: Path, tmp_path: Path):
    config = tmp_path / "settings.toml"
    config.write_text("noise = false\n[dp_promise]\nphase2_lr = -1\n[dp_sad]\nlambda = 2\n")
    error = fails("--data", str(tiny_data), "--config", str(config), code=2)
    assert "dp_promise.phase2_lr=-1" in error
    assert "dp_sad.lambda" in error
    config.write_text("dp_promise = 3\n")
    assert "as a table" in fails("--data", str(tiny_data), "--config", str(config), code=2)


def test_output_that_cannot_be_written(fails, tiny_data: Path, tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    arguments = ("--data", str(tiny_data), "--no-noise", *QUICK)
    assert "file" in fails(*arguments, code=7, out=blocked / "run")
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "notes.txt").write_text("mine")
    assert "not empty" in fails(*arguments, code=7, out=taken)


def test_resume_without_a_run(fails, tiny_data: Path, tmp_path: Path):
    arguments = ("--resume", "--data", str(tiny_data), "--no-noise", *QUICK)
    assert "No run" in fails(*arguments, code=7, out=tmp_path / "nowhere")


def test_an_interrupt_says_how_to_go_on_and_other_settings_do_not(
    tiny_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    out = tmp_path / "run"
    arguments = ["synthesize", "--data", str(tiny_data), "--no-noise", *QUICK, "--out", str(out)]
    with monkeypatch.context() as patch:
        patch.setattr(
            DpPromise, "_phase2_step", lambda self: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        assert run(arguments) == 130
    assert "--resume --out" in " ".join(capsys.readouterr().err.split())
    assert run(["synthesize", "--resume", "--out", str(out), "--copies", "3"]) == 2
    assert "dp_promise=" in capsys.readouterr().err
    assert run(["synthesize", "--resume", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["dp_promise"]["boundary"] == 980


def test_memory_that_ran_out_names_the_setting(
    tiny_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    import torch

    def full(self: DpPromise) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(DpPromise, "_phase2_step", full)
    arguments = ["synthesize", "--data", str(tiny_data), "--no-noise", *QUICK]
    assert run([*arguments, "--out", str(tmp_path / "run")]) == 2
    assert "lower physical_batch" in capsys.readouterr().err
