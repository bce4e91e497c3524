"""One run measured, and what of it may be told."""

import importlib.util
import json

import numpy as np
import pytest
import torch

from fedtranscribe.cli import run as cli
from fedtranscribe.config.evaluation import EvaluationSettings
from fedtranscribe.errors import ConfigError, DataNotFoundError
from fedtranscribe.evaluation.evaluate import (
    OWN_RECORDS,
    STAMP,
    check_libraries,
    evaluate,
    nearest,
    pixels,
)
from fedtranscribe.models.inference import accuracy
from fedtranscribe.runs.finished import FinishedRun
from tests.evaluation.conftest import TINY, make_run

pytestmark = pytest.mark.usefixtures("quick_features")


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_run_on_declared_public_images(public_run):
    result = evaluate(public_run, TINY)
    assert read(public_run.path / "evaluation.json") == result
    assert set(result) == {
        *("run", "data", "real", "student", "downstream", "fidelity", "synthetic"),
        *("samples", "seed", "date"),
    }
    test = public_run.data().test
    expected = accuracy(public_run.student, test.images, test.labels)
    assert result["student"]["accuracy"] == pytest.approx(expected)
    confusion = torch.tensor(result["student"]["confusion"])
    assert confusion.sum() == len(test)
    assert confusion.sum(1).tolist() == torch.bincount(test.labels).tolist()
    per_class = result["student"]["per_class"]
    assert per_class[3] == pytest.approx(int(confusion[3, 3]) / int(confusion[3].sum()))
    assert {"mlp", "lda", "gaussian-nb", "mean_sklearn"} <= set(result["downstream"])
    assert result["fidelity"]["fid"] > 0
    assert result["fidelity"]["samples"] == result["samples"] == 120
    assert result["fidelity"]["real"] == len(test)
    assert sum(result["synthetic"]["class_shares"]) == pytest.approx(1, abs=1e-4)
    assert (public_run.path / "samples.png").exists()
    assert (public_run.private / "neighbours.png").exists()
    assert list(public_run.path.rglob("neighbours*")) == [public_run.private / "neighbours.png"]
    assert not (public_run.private / "evaluation.json").exists()


def test_a_second_evaluation_gives_the_same_figures_over_the_first(public_run):
    first = evaluate(public_run, TINY)
    second = evaluate(public_run, TINY)
    assert read(public_run.path / "evaluation.json") == second
    first.pop("date")
    second.pop("date")
    assert first == second


def test_whatever_rests_on_own_records_stays_private(transcribed):
    result = evaluate(transcribed, TINY)
    told = read(transcribed.path / "evaluation.json")
    assert set(told) == {
        *("run", "data", "real", "synthetic", "fidelity", "samples", "seed", "date")
    }
    assert told["real"] == OWN_RECORDS
    assert set(told["fidelity"]) == {
        *("inception_score", "inception_score_std", "features", "samples")
    }
    full = read(transcribed.private / "evaluation.json")
    assert full["real"] == STAMP
    assert "NOT PRIVATE" in STAMP
    assert {"student", "downstream", "fidelity"} <= set(full)
    assert full["fidelity"]["fid"] is not None
    assert result["private"]["student"] == full["student"]
    assert "private" not in told


def test_told_figures_do_not_move_with_the_own_records(own_run, monkeypatch):
    """Measured against other records, the public file is the same to the byte but for the date."""
    evaluate(own_run, TINY)
    told = read(own_run.path / "evaluation.json")
    private = read(own_run.private / "evaluation.json")
    split = own_run.data()
    test = split.test
    flipped = type(split)(
        split.train,
        type(test)(test.name, test.data_id, 255 - test.images, test.labels.flip(0), test.classes),
    )
    monkeypatch.setattr(FinishedRun, "data", lambda *_: flipped)
    evaluate(own_run, TINY)
    again = read(own_run.path / "evaluation.json")
    told.pop("date")
    again.pop("date")
    assert told == again
    assert private["fidelity"] != read(own_run.private / "evaluation.json")["fidelity"]


def test_a_baseline_without_generator_has_its_accuracy_only(tmp_path):
    run = make_run(tmp_path / "fedavg", generator=False, run={"method": "fedavg"})
    result = evaluate(run, TINY)
    assert "no generator" in result["note"]
    assert result["samples"] == 0
    assert "downstream" not in result
    assert result["student"]["accuracy"] >= 0
    assert not (run.path / "samples.png").exists()


def test_fidelity_and_classifiers_can_be_left_out(public_run):
    settings = EvaluationSettings(samples=60, classifiers=(), fidelity=False, device="cpu")
    result = evaluate(public_run, settings)
    assert "fidelity" not in result
    assert result["downstream"]["mean_sklearn"] is None


def test_the_operating_point_of_own_records_is_private(tmp_path, capsys):
    rng = np.random.default_rng(0)
    labels, data = np.arange(200) % 2, tmp_path / "scans.npz"
    images = rng.integers(0, 256, (200, 28, 28)).astype(np.uint8)
    np.savez(data, images=images, labels=labels, classes=2, ids=np.arange(200))
    made = {"run": {"accuracy": None}, "classes": 2, "data": str(data), "generator": False}
    run = make_run(tmp_path / "run", **made)
    run.private.mkdir()
    (run.private / "accuracy.json").write_text('{"student": 0.5}')
    assert cli(["evaluate", str(run.path), "--at", "sensitivity=0.95"]) == 0
    assert "specificity at sensitivity=0.95" in capsys.readouterr().out
    point = read(run.private / "evaluation.json")["student"]["operating_point"]
    assert "student" not in read(run.path / "evaluation.json")
    test = run.data().test
    named = run.student(test.images.float() / 255).softmax(1)[:, 1] >= point["threshold"]
    ill = test.labels == 1
    assert float(named[ill].double().mean()) == pytest.approx(point["sensitivity"])
    assert float((~named[~ill]).double().mean()) == pytest.approx(point["specificity"])
    assert point["sensitivity"] >= 0.95


def test_absent_data_are_named_before_any_work(own_run, tiny_data):
    tiny_data.unlink()
    with pytest.raises(DataNotFoundError):
        evaluate(own_run, TINY)
    assert not (own_run.path / "evaluation.json").exists()


@pytest.mark.parametrize(
    ("missing", "settings"),
    [
        ("torch_fidelity", TINY),
        ("sklearn", TINY),
        ("xgboost", TINY.model_copy(update={"classifiers": ("xgboost",)})),
    ],
)
def test_missing_libraries_are_named_with_their_extra(missing, settings, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else find(name)
    )
    with pytest.raises(ConfigError, match=rf"{missing}.*fedtranscribe\[evaluation\]"):
        check_libraries(settings)
    check_libraries(EvaluationSettings(fidelity=False, classifiers=("mlp", "cnn")))


def test_nearest_neighbours_are_the_nearest():
    rng = torch.Generator().manual_seed(0)
    records = torch.randint(0, 256, (1_200, 1, 4, 4), generator=rng).to(torch.uint8)
    queries = torch.cat([records[[700, 3]], 255 - records[[9]]])
    rows = nearest(queries, records, 3, pixels)
    distance = torch.cdist(pixels(queries), pixels(records))
    assert rows[:2, 0].tolist() == [700, 3]
    expected = distance.sort(1).values[:, :3]
    torch.testing.assert_close(distance.gather(1, rows), expected, atol=1e-3, rtol=1e-4)
    assert nearest(queries, records[:2], 3, pixels).shape == (3, 2)


# ---------------------------------------------------------------- command line

FAST = ["--samples", "60", "--classifiers", "lda", "--device", "cpu"]


@pytest.mark.long
def test_json_is_one_object_for_one_run_and_a_list_for_several(public_run, tmp_path, capsys):
    assert cli(["evaluate", str(public_run.path), *FAST, "--no-fidelity", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"] == "digits"
    other = make_run(tmp_path / "other", seed=1)
    both = [str(public_run.path), str(other.path)]
    assert cli(["evaluate", *both, *FAST, "--no-fidelity", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["run"] for entry in found] == [public_run.result.run, other.result.run]


def test_the_terminal_stamps_private_figures(own_run, capsys):
    assert cli(["evaluate", str(own_run.path), *FAST]) == 0
    out = capsys.readouterr().out
    told, private = " ".join(out.split()).split("NOT PRIVATE", 1)
    assert "accuracy" not in told
    assert "Inception Score" in told
    assert not any(figure in told.split("real images")[0] for figure in ("FID", "recall", "lda"))
    assert all(figure in private for figure in ("student's accuracy", "FID", "lda"))
    assert "do not release" in private


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("--samples", "5"), 2, "samples=5"),
        (("--classifiers", "cnnn"), 2, "cnnn"),
        (("--max-train", "1"), 2, "max_train=1"),
        (("--inception", "absent.pth"), 4, "absent.pth"),
        (("--device", "abacus"), 2, "abacus"),
        (("--data-root",), 2, "--data-root"),
        (("--at", "sensitivity"), 2, "at='sensitivity'"),
        (("--at", "sensitivity=0"), 2, "sensitivity=SHARE"),
        (("--at", "recall=0.9"), 2, "at='recall=0.9'"),
        (("--at", "sensitivity=0.95"), 2, "a student of two classes"),
    ],
)
def test_mistakes_end_as_one_line(public_run, capsys, arguments, code, named):
    assert cli(["evaluate", str(public_run.path), *arguments]) == code
    error = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(error) == 1
    assert named in error[0]
    assert not (public_run.path / "evaluation.json").exists()


def test_what_is_no_finished_run_is_named(public_run, tmp_path, capsys):
    assert cli(["evaluate", str(public_run.path), str(tmp_path / "absent")]) == 7
    assert "No run in" in capsys.readouterr().err
    assert not (public_run.path / "evaluation.json").exists(), "nothing was begun"
    (public_run.path / "metrics.json").unlink()
    assert cli(["evaluate", str(public_run.path)]) == 7
    assert "not finished" in capsys.readouterr().err
