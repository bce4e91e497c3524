"""`simulate --plan`: what the same run then books, and nothing left behind."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedtranscribe import cli
from fedtranscribe.errors import ConfigError, FedtranscribeError
from fedtranscribe.flower import superlink
from fedtranscribe.flower.apps import settings_from
from fedtranscribe.flower.simulated import _serve, show_plan, simulated_client_app
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from tests.federation.local_grid import LocalGrid

pytestmark = pytest.mark.usefixtures("coarse_grid")

TINY = {
    "holders": 3,
    "alpha": 10.0,
    "shards": 2,
    "teacher": "cnn-small",
    "rows": 20,
    "force": True,
    "device": "cpu",
    "teachers.steps": 2,
    "dpsd.round-rows": 10,
    "dpsd.student-steps": 1,
    "dpsd.finish-steps": 1,
    "dpsd.generator-steps": 1,
    "dpsd.moments-steps": 1,
    "dpsd.pretrain-steps": 1,
    "dpsd.batch": 8,
    "baseline.rounds": 1,
    "baseline.local-steps": 1,
}
TEACHERS = {"student": "cnn-small", "start": "none"}
TRAINING = {
    "method": "dp-promise",
    "trainer": "all",
    "training.size": "tiny",
    "training.sampling-steps": 2,
    "training.start": "none",
    "training.pretrain-data": "none",
    "training.dp-promise.phase1": False,
    "training.dp-promise.phase2-batch": 4,
    "training.dp-promise.phase2-epochs": 0.25,
    "training.dp-promise.copies": 1,
}


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def serve(config: dict[str, Any]) -> None:
    grid = LocalGrid(simulated_client_app("toy"), {1: {}, 2: {}, 3: {}}, config)
    _serve(grid, settings_from(config), Path(config["out"]))


@pytest.fixture
def config(tiny_data: Path, tmp_path: Path) -> dict[str, Any]:
    return {**TINY, "data": str(tiny_data), "out": str(tmp_path / "run")}


@pytest.mark.parametrize(
    "changes",
    [
        {**TEACHERS, "noise": "central"},
        {**TEACHERS, "noise": "local", "privacy": "data", "unit": "holder"},
        {**TEACHERS, "noise": "local", "privacy": "label"},
        pytest.param(
            {"noise": "secagg", "with-generator": False, "descent-rounds": 1},
            marks=pytest.mark.long,
        ),
        {"noise": "local", "teachers-share": 0.5, "descent-rounds": 0},
        {"method": "fedavg"},
        pytest.param(TRAINING, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_plan_costs_what_the_run_books_and_leaves_nothing(config, tmp_path, changes):
    config |= changes
    before, lines = files(tmp_path), []
    plan = show_plan(config, lines.append)
    assert files(tmp_path) == before
    assert lines[-1] == plan.cost or plan.published is None
    settings, out = settings_from(config), tmp_path / "run"
    serve(config)
    result = json.loads((out / "metrics.json").read_text())
    assert plan.to_json() == {key: result[key] for key in plan.to_json()}
    booked = []
    for ledger in out.rglob("ledger.sqlite"):
        with Ledger.open_read_only(ledger) as opened:
            spent = opened.total(settings.delta, Unit(settings.unit), Adjacency.ZERO_OUT)
            booked.append(spent.epsilon)
    assert max(booked, default=None) == pytest.approx(plan.epsilon)


def test_the_command_prints_the_plan_and_starts_nothing(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(superlink, "PrivateSuperLink", None)
    monkeypatch.chdir(tmp_path)
    before = files(tmp_path)
    pairs = [f"data={config['data']}", "shards=2", "rows=20", "dpsd.round-rows=10", "force=true"]
    plan = ["simulate", "dirichlet_mnist", *pairs, "alpha=10", "--holders", "3", "--plan"]
    assert cli.run([*plan, "start=none", "student=cnn-small", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["epsilon"] == pytest.approx(10)
    assert "to learn from" in planned["plan"][0]
    assert "3 holders with records: " in planned["plan"][1]
    asked = next(line for line in planned["plan"] if line.startswith("each of 3 holders"))
    assert "20 rows of its teachers (privacy=vote), in 2 rounds; noise=central, std" in asked
    assert cli.run(plan) == 0
    assert "nothing was spent; leave out --plan" in " ".join(capsys.readouterr().err.split())
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": -1.0},
        {"student": "cnnn"},
        {"teacher": "cnnn"},
        {"holders": 40},
        {"epsilon": 1e-3, "force": False},
        {"method": "feddf", "public-data": "none"},
        {"dropouts": 2, "noise": "secagg"},
    ],
    ids=str,
)
def test_a_plan_refuses_what_the_run_refuses(config, changes):
    config |= changes
    with pytest.raises(FedtranscribeError) as planned:
        show_plan(config, lambda _: None)
    with pytest.raises(FedtranscribeError) as run:
        serve(config)
    assert (type(planned.value), str(planned.value)) == (type(run.value), str(run.value))


def test_an_app_of_ones_own_has_no_plan(capsys):
    toy = Path(__file__).parent / "toy_app"
    assert cli.run(["simulate", str(toy), "--plan"]) == ConfigError.exit_code
    assert "Expected a packaged app with --plan" in capsys.readouterr().err
