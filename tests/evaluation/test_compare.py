"""Finished runs side by side."""

import json
from pathlib import Path

import pytest
from scipy.stats import ttest_1samp

from fedtranscribe.cli import run as cli
from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.evaluation.comparison import compare
from tests.evaluation.conftest import make_run


def with_seeds(folder: Path, accuracies: list[float], **settings) -> list[Path]:
    """Runs that differ by their seed alone."""
    paths = []
    for seed, value in enumerate(accuracies):
        path = folder / f"{settings.get('epsilon', 10)}-{seed}"
        make_run(path, run={"accuracy": {"student": value}}, seed=seed, **settings)
        paths.append(path)
    return paths


def evaluated(path: Path, cnn: float, fid: float, features: str) -> None:
    told = {"downstream": {"cnn": cnn}, "fidelity": {"fid": fid, "features": features}}
    (path / "evaluation.json").write_text(json.dumps(told))


def test_seeds_become_one_row_with_an_interval(tmp_path):
    values = [0.90, 0.93, 0.96]
    (group,) = compare(with_seeds(tmp_path, values)).groups
    assert group.accuracy is not None
    assert group.accuracy.mean == pytest.approx(0.93)
    assert (group.accuracy.low, group.accuracy.high) == (0.90, 0.96)
    interval = ttest_1samp(values, 0).confidence_interval(0.95)
    assert group.accuracy.interval == pytest.approx((interval.low, interval.high))
    assert [run.seed for run in group.runs] == [0, 1, 2]


def test_a_single_run_has_no_interval(tmp_path):
    (group,) = compare(with_seeds(tmp_path, [0.9])).groups
    assert group.accuracy is not None
    assert group.accuracy.interval is None


def test_other_settings_are_other_rows_in_the_order_of_epsilon(tmp_path):
    paths = with_seeds(tmp_path, [0.9, 0.92], epsilon=10)
    paths += with_seeds(tmp_path, [0.5, 0.6], epsilon=1)
    comparison = compare(paths)
    assert [group.epsilon for group in comparison.groups] == [1, 10]
    assert [len(group.runs) for group in comparison.groups] == [2, 2]
    ((label, points),) = comparison.curves().items()
    assert label == "dpsd, digits, record, vote"
    assert [(point.epsilon, point.low, point.high) for point in points] == [
        (1, 0.5, 0.6),
        (10, 0.9, 0.92),
    ]


def test_place_and_device_are_no_settings(tmp_path):
    make_run(tmp_path / "a", seed=0, data_root=tmp_path, ledger=tmp_path / "a.sqlite")
    make_run(tmp_path / "b", seed=1, device="auto")
    assert len(compare([tmp_path / "a", tmp_path / "b"]).groups) == 1


def test_the_same_run_twice_is_refused(tmp_path):
    (path,) = with_seeds(tmp_path, [0.9])
    with pytest.raises(ConfigError, match="give it once"):
        compare([path, path])


def test_what_is_no_finished_run_is_named(tmp_path):
    with pytest.raises(StorageError, match="No run in"):
        compare([tmp_path / "absent"])


def test_evaluations_are_joined_unless_features_differ(tmp_path):
    paths = with_seeds(tmp_path, [0.9, 0.9])
    evaluated(paths[0], 0.8, 10.0, "cnn")
    evaluated(paths[1], 0.9, 20.0, "cnn")
    (group,) = compare(paths).groups
    assert group.cnn is not None
    assert group.cnn.mean == pytest.approx(0.85)
    assert group.fid is not None
    assert group.fid.mean == pytest.approx(15)
    evaluated(paths[1], 0.9, 20.0, "Inception")
    assert compare(paths).groups[0].fid is None


def test_baselines_and_seeded_noise_have_no_epsilon(tmp_path):
    make_run(
        tmp_path / "fedavg",
        generator=False,
        run={"method": "fedavg", "epsilon": None, "private": False},
    )
    make_run(tmp_path / "seeded", run={"private": False})
    comparison = compare([tmp_path / "fedavg", tmp_path / "seeded"])
    assert [group.epsilon for group in comparison.groups] == [None, None]
    assert "| none |" in comparison.to_markdown()
    assert set(comparison.curves()) == {"dpsd, digits", "fedavg, digits"}


def test_files_and_figure_are_written(tmp_path, capsys):
    paths = with_seeds(tmp_path, [0.90, 0.93, 0.96], epsilon=10)
    paths += with_seeds(tmp_path, [0.5], epsilon=1)
    make_run(
        tmp_path / "fedavg",
        generator=False,
        run={"method": "fedavg", "epsilon": None, "private": False},
    )
    paths.append(tmp_path / "fedavg")
    out = tmp_path / "out"
    assert cli(["compare", *map(str, paths), "--out", str(out)]) == 0
    assert "93.0 (90.0–96.0)" in " ".join(capsys.readouterr().out.split())
    assert sorted(path.name for path in out.iterdir()) == [
        "compare.json",
        "compare.md",
        "curve.png",
    ]
    assert (out / "curve.png").stat().st_size > 1_000
    groups = json.loads((out / "compare.json").read_text())["groups"]
    assert set(groups[0]) == {
        *("method", "data", "privacy", "unit", "epsilon", "delta", "noise", "rows"),
        *("accuracy", "downstream_cnn", "fid", "features", "runs"),
    }
    assert "93.0 (90.0–96.0) ± 7.5" in (out / "compare.md").read_text()


def test_accuracy_on_own_records_is_shown_but_in_no_file(transcribed, tmp_path, capsys):
    transcribed.private.joinpath("accuracy.json").write_text('{"student": 0.8765}')
    out = tmp_path / "out"
    assert cli(["compare", str(transcribed.path), "--out", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "87.6" in shown
    assert "NOT PRIVATE" in shown
    assert sorted(path.name for path in out.iterdir()) == ["compare.json", "compare.md"]
    for path in out.iterdir():
        text = path.read_text()
        assert "private" in text
        assert "87" not in text.replace(transcribed.result.run, "")
    assert cli(["compare", str(transcribed.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"][0]["accuracy"] == "private"


def test_private_accuracy_that_strayed_into_metrics_is_not_told(own_run):
    metrics = own_run.path / "metrics.json"
    result = json.loads(metrics.read_text())
    metrics.write_text(json.dumps(result | {"accuracy": {"student": 0.7}}))
    (group,) = compare([own_run.path]).groups
    assert group.accuracy is None
    assert group.private
