"""FedAvg, FedDF and DENSE through the very apps that `flwr run` starts."""

import json
from pathlib import Path

import pytest

from fedtranscribe.errors import ConfigError, QuorumError
from fedtranscribe.federation.simulated_apps import _serve, simulated_client_app
from fedtranscribe.federation.simulation import settings_from
from tests.federation.local_grid import LocalGrid


@pytest.fixture
def run_config(tiny_data: Path, tmp_path: Path) -> dict:
    return {
        "data": str(tiny_data),
        "holders": 3,
        "alpha": 10.0,
        "shards": 2,
        "student": "cnn-small",
        "device": "cpu",
        "out": str(tmp_path / "run"),
        "dpsd.latent-dim": 8,
        "dpsd.generator-width": 4,
        "baseline.rounds": 2,
        "baseline.local-steps": 3,
        "baseline.batch": 8,
        "baseline.distil-steps": 20,
        "baseline.pool": 40,
    }


def serve(run_config: dict, drop=()) -> dict:
    grid = LocalGrid(simulated_client_app("toy"), {1: {}, 2: {}}, run_config, drop)
    settings = settings_from(run_config)
    assert settings.out is not None
    _serve(grid, settings, settings.out)
    return json.loads((settings.out / "metrics.json").read_text())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("method", ["fedavg", "feddf", "dense"])
def test_a_baseline_ends_with_a_student_and_no_epsilon(run_config, tmp_path, method):
    result = serve({**run_config, "method": method})
    assert result["epsilon"] is None
    assert result["private"] is False
    assert 0 <= result["accuracy"]["student"] <= 1
    assert (tmp_path / "run" / "student.safetensors").exists()
    stages = [
        json.loads(line) for line in (tmp_path / "run" / "progress.jsonl").read_text().splitlines()
    ]
    assert stages[-1]["done"] == stages[-1]["total"]


@pytest.mark.parametrize("method", ["fedavg", "dense"])
def test_nobody_answering_is_an_error(run_config, method):
    with pytest.raises(QuorumError, match="No holder sent"):
        serve({**run_config, "method": method}, drop=(1, 2))


def test_a_lost_node_is_done_without(run_config):
    result = serve({**run_config, "method": "feddf"}, drop=(2,))
    assert result["accuracy"]["student"] >= 0


def test_feddf_needs_unlabelled_images(run_config):
    with pytest.raises(ConfigError, match="public-data"):
        serve({**run_config, "method": "feddf", "public-data": "none"})
