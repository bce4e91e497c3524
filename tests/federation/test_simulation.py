"""Settings, folders and data of a simulation, and the private method through its real apps."""

import json
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from fedtranscribe.config import FederationSettings
from fedtranscribe.config.catalogue import files_of
from fedtranscribe.data import DataSplit, load, overlap
from fedtranscribe.errors import ConfigError, DataNotFoundError, StorageError
from fedtranscribe.flower import deployed
from fedtranscribe.flower.apps import find_app, known_apps, settings_from
from fedtranscribe.flower.server_apps import run_folder
from fedtranscribe.flower.simulated import _serve, simulated_client_app
from fedtranscribe.runs.simulation import load_data, partitions
from tests.federation.local_grid import LocalGrid

APPS = sorted((Path(__file__).parents[2] / "simulations").iterdir())


@pytest.mark.parametrize("app", APPS, ids=lambda path: path.name)
def test_every_app_has_settings_that_fit_and_needs_nothing_installed(app):
    project = tomllib.loads((app / "pyproject.toml").read_text())
    flat = _flat(project["tool"]["flwr"]["app"]["config"])
    settings = settings_from(flat)
    assert settings.holders == (5 if settings.method == "feddpsd" else 1)
    assert settings.out is None
    assert settings.rows is None
    assert project["project"]["dependencies"] == []
    assert project["project"]["name"] == app.name.replace("_", "-")


def _flat(table, before=""):
    flat = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{before}{key}.")
        else:
            flat[before + key] = value
    return flat


def test_flat_keys_become_nested_settings():
    settings = settings_from({"dpsd.round-rows": 7, "top-k": 0, "on-exhausted": "stop", "out": ""})
    assert settings.dpsd.round_rows == 7
    assert settings.top_k is None
    assert settings.on_exhausted == "stop"


@pytest.mark.parametrize("bad", [{"epsilon": -1.0}, {"nois": "local"}, {"dpsd.rows": 0}])
def test_wrong_settings_are_named(bad):
    with pytest.raises(ConfigError, match=next(iter(bad)).split(".")[0]):
        settings_from(bad)


def test_a_relative_folder_is_refused_and_none_goes_home(own_home):
    with pytest.raises(ConfigError, match="absolute"):
        run_folder(FederationSettings(out=Path("runs")), "toy", 5)
    assert run_folder(FederationSettings(), "toy", 5) == own_home / "runs" / "toy-5"


@pytest.mark.long
def test_missing_data_stop_a_simulation_and_never_become_digits(tmp_path):
    """Every packaged app asks for its own data, and says where they go and how to get them."""
    for name, app in known_apps().items():
        settings = settings_from({**find_app(name).defaults, "data-root": str(tmp_path)})
        assert "," not in settings.data
        with pytest.raises(DataNotFoundError) as raised:
            load_data(settings)
        words = str(raised.value)
        assert f"put {files_of(settings.data)} there, or add --download (download=true)" in words
        assert words.endswith("The packaged digits need no folder: --data digits (data=digits).")
        assert "download" in find_app(name).defaults
        by_name = settings_from({**find_app(app.name).defaults, "data": "digits"})
        assert load_data(by_name).train.data_id == "digits"


def test_each_holder_has_a_ledger_of_its_own(tiny_data):
    settings = FederationSettings(data=str(tiny_data), holders=3, shards=2, alpha=10)
    parts = partitions(settings, load_data(settings).train)
    assert len({part.data_id for part in parts}) == 3


def test_the_apps_run_resume_and_refuse_to_overwrite(tiny_data, tmp_path, caplog):
    caplog.set_level("INFO", logger="fedtranscribe.flower")
    out = tmp_path / "run"
    config = {
        "data": str(tiny_data),
        "holders": 3,
        "alpha": 10.0,
        "shards": 2,
        "teacher": "cnn-small",
        "student": "cnn-small",
        "rows": 20,
        "noise": "central",
        "force": True,
        "device": "cpu",
        "out": str(out),
        "teachers.steps": 2,
        "dpsd.round-rows": 10,
        "dpsd.student-steps": 1,
        "dpsd.finish-steps": 1,
        "dpsd.generator-steps": 1,
        "dpsd.pretrain-steps": 2,
        "dpsd.batch": 8,
    }
    grid = LocalGrid(simulated_client_app("toy"), {1: {}, 2: {}}, config)
    _serve(grid, settings_from(config), out)
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["epsilon"] == pytest.approx(10.0, rel=1e-6)
    assert "ε = 10 at δ = 1e-05 (record, zero-out)" in caplog.messages
    assert "inf" not in caplog.text
    # Somebody's own records: their accuracy is nobody else's business.
    assert metrics["accuracy"] == {}
    assert metrics["curve"]["accuracy"] == []
    assert set(json.loads((out / "private" / "accuracy.json").read_text())) == {
        "single_teacher",
        "ensemble",
        "public_set_alone",
        "student",
    }
    lines = [json.loads(line) for line in (out / "progress.jsonl").read_text().splitlines()]
    assert [x["done"] for x in lines if x["stage"] == "rows answered"] == [10, 20]
    with pytest.raises(StorageError, match="--resume"):
        _serve(grid, settings_from(config), out)
    asked = len(grid.sent)
    _serve(grid, settings_from({**config, "resume": True}), out)
    assert len(grid.sent) == asked, "a finished run asks nobody again"


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("feddpsd", "public-data"),
        ("feddf", "public-data"),
        ("dp-promise", "training.pretrain-data"),
        ("dp-sad", "training.pretrain-data"),
    ],
)
def test_public_images_that_are_the_records_are_refused_before_anybody_is_asked(
    tiny_data, tmp_path, monkeypatch, method, setting
):
    copy = shutil.copy(tiny_data, tmp_path / "public.npz")
    monkeypatch.chdir(tmp_path)
    for public, words in {str(copy): "exactly those of", "./tiny.npz": "file or folder"}.items():
        config = {
            "data": str(tiny_data),
            "holders": 2,
            "shards": 2,
            "method": method,
            "out": str(tmp_path / "run"),
            setting: public,
        }
        grid = LocalGrid(simulated_client_app("toy"), {1: {}}, config)
        with pytest.raises(ConfigError, match=words) as error:
            _serve(grid, settings_from(config), tmp_path / "run")
        assert repr(public) in str(error.value)
        assert repr(str(tiny_data)) in str(error.value)
        assert not grid.sent
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("public", ["digits", "mnist"])
def test_a_deployed_server_refuses_public_images_out_of_the_set_it_tests_on(
    tmp_path, monkeypatch, public
):
    """Its holders have parts of that set; a server knows no more of their records."""
    read = load("uci-digits")
    known = DataSplit(*(replace(part, data_id=public) for part in (read.train, read.test)))
    monkeypatch.setattr(overlap, "load", lambda *_: known)
    config = {"data": "digits", "public-data": public, "out": str(tmp_path / "run")}
    grid = LocalGrid(simulated_client_app("toy"), {1: {}}, config)
    with pytest.raises(ConfigError, match=f"public_data='{public}' to name public images"):
        deployed.serve(grid, settings_from(config), tmp_path / "run")
    assert not grid.sent
    assert not (tmp_path / "run").exists()
