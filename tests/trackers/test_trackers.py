"""MLflow and Weights & Biases: what they get, and that a resumed run goes on as the same one.

With the packages themselves where they are installed, and with stand-ins everywhere.
"""

import importlib
import sys
import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tomli_w

from fedtranscribe.config import TrackingOptions
from fedtranscribe.errors import ConfigError, PrivacyError
from fedtranscribe.results import progress as tracking
from fedtranscribe.results.progress import Tracker

ROOT = Path(__file__).parents[2]
ENTRIES = [
    {"stage": "sums over records", "done": done, "total": 2, "epsilon": 1.5 * done, "bytes": None}
    for done in (1, 2)
]
SETTINGS = {
    "run": "run-1",
    "data": "/clinic/ward-seven.npz",
    "ledger": "/clinic/book.sqlite",
    "device": "cuda:1",
    "epsilon": 10.0,
    "dpsd": {"rows": 400},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text(tomli_w.dumps(SETTINGS))
    return folder


def points() -> EntryPoints:
    """As the project file declares them: what an installed package offers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = project["entry-points"][tracking.TRACKERS]
    return EntryPoints(EntryPoint(n, v, tracking.TRACKERS) for n, v in declared.items())


@pytest.fixture(autouse=True)
def installed(monkeypatch) -> None:
    monkeypatch.setattr(tracking, "entry_points", lambda group: points())


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """Modules that were imported over a stand-in."""
    yield
    for name in ("mlflow", "wandb"):
        sys.modules.pop(f"fedtranscribe.trackers.{name}", None)


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_what_is_missing_is_named_with_its_extra(name, monkeypatch):
    for module in [m for m in sys.modules if m.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"tracker={name} needs {name}.*fedtranscribe\[{name}\]"):
        tracking.check_tracking(TrackingOptions(tracker=name))


# ---------------------------------------------------------------- stand-ins


class Client:
    """As `mlflow.MlflowClient`, for all runs of a process."""

    runs: dict[str, dict[str, Any]]

    def get_experiment_by_name(self, name: str) -> None:
        assert name == "fedtranscribe"

    def create_experiment(self, name: str) -> str:
        return "1"

    def search_runs(self, experiments: list[str], query: str, max_results: int) -> list[Any]:
        found = [run for run, kept in self.runs.items() if f"'{kept['tag']}'" in query]
        return [_info(run) for run in found]

    def create_run(self, experiment: str, tags: dict[str, str], run_name: str) -> Any:
        self.runs["m1"] = {
            "tag": tags["fedtranscribe.run"],
            "status": "RUNNING",
            "params": {},
            "metrics": [],
        }
        return _info("m1")

    def log_param(self, run: str, key: str, value: str) -> None:
        self.runs[run]["params"][key] = value

    def log_metric(self, run: str, key: str, value: float, step: int) -> None:
        self.runs[run]["metrics"].append((key, value, step))

    def set_terminated(self, run: str) -> None:
        self.runs[run]["status"] = "FINISHED"

    def update_run(self, run: str, status: str) -> None:
        self.runs[run]["status"] = status


def _info(run: str) -> Any:
    class Info:
        run_id = run

    class Found:
        info = Info

    return Found


def stand_in(monkeypatch, name: str, **members: Any) -> None:
    module = ModuleType(name)
    for member, value in members.items():
        setattr(module, member, value)
    monkeypatch.setitem(sys.modules, name, module)
    sys.modules.pop(f"fedtranscribe.trackers.{name}", None)


def test_mlflow_gets_public_settings_and_allowed_numbers(run, monkeypatch):
    Client.runs = {}
    stand_in(monkeypatch, "mlflow", MlflowClient=Client)
    stand_in(monkeypatch, "mlflow.exceptions", MlflowException=RuntimeError)
    track = Tracker(run, TrackingOptions(tracker="mlflow"))
    track(ENTRIES[0])
    assert Client.runs["m1"]["status"] == "RUNNING"
    with pytest.raises(PrivacyError):
        track({**ENTRIES[1], "loss_on_records": 0.1})
    # Interrupted, and resumed.
    Tracker(run, TrackingOptions(tracker="mlflow"))(ENTRIES[1])
    assert Client.runs == {
        "m1": {
            "tag": "run-1",
            "status": "FINISHED",
            "params": {"epsilon": "10", "dpsd.rows": "400"},
            "metrics": [
                ("sums-over-records/epsilon", 1.5, 1),
                ("sums-over-records/epsilon", 3.0, 2),
            ],
        }
    }


def test_weights_and_biases_gets_the_same_and_nothing_of_the_machine(run, monkeypatch):
    begun: list[dict[str, Any]] = []
    logged: list[dict[str, Any]] = []

    class Run:
        def define_metric(self, name: str, step_metric: str) -> None:
            assert (name, step_metric) == ("sums-over-records/*", "sums-over-records/done")

        def log(self, values: dict[str, Any]) -> None:
            logged.append(values)

    def init(**given: Any) -> Run:
        begun.append(given)
        return Run()

    class FailureError(Exception):
        pass

    stand_in(monkeypatch, "wandb", init=init, Settings=dict, Error=FailureError)
    for entry in ENTRIES:
        Tracker(run, TrackingOptions(tracker="wandb"))(entry)
    assert [each["id"] for each in begun] == ["run-1", "run-1"]
    assert {each["resume"] for each in begun} == {"allow"}
    assert begun[0]["config"] == {"epsilon": "10", "dpsd.rows": "400"}
    off = begun[0]["settings"]
    assert off["console"] == "off"
    assert off["x_disable_meta"]
    assert off["disable_git"]
    assert off["save_code"] is False
    assert logged == [
        {"sums-over-records/epsilon": 1.5, "sums-over-records/done": 1},
        {"sums-over-records/epsilon": 3.0, "sums-over-records/done": 2},
    ]


# ---------------------------------------------------------------- the packages themselves


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_mlflow_itself(run, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    for entry in ENTRIES:
        Tracker(run, TrackingOptions(tracker="mlflow"))(entry)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("fedtranscribe")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.data.params == {"epsilon": "10", "dpsd.rows": "400"}
    assert found.info.status == "FINISHED"
    steps = client.get_metric_history(found.info.run_id, "sums-over-records/epsilon")
    assert [(each.step, each.value) for each in steps] == [(1, 1.5), (2, 3.0)]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://example")
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_URI"):
        importlib.import_module("fedtranscribe.results.mlflow").track(run)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_itself(run, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    for entry in ENTRIES:
        Tracker(run, TrackingOptions(tracker="wandb"))(entry)
        wandb.finish()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*.wandb"))
    assert b"sums-over-records/epsilon" in written
    assert b"run-1" in written
    assert b"clinic" not in written
    assert b"pytest" not in written
