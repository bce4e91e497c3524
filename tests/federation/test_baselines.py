"""FedAvg, FedDF and DENSE through the very apps that `flwr run` starts."""

import json
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedtranscribe.config import BaselineSettings
from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError, QuorumError
from fedtranscribe.flower.apps import settings_from
from fedtranscribe.flower.baselines import (
    answer_training,
    holder_of,
    load_mean,
    run_baseline,
    train_locally,
)
from fedtranscribe.flower.simulated import _serve, simulated_client_app
from fedtranscribe.methods import baselines as ensemble_distillation
from fedtranscribe.models import Classifier, Generator, build
from tests.federation.local_grid import LocalGrid


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensemble_distillation, "_DENSE_ROUNDS", 4)
    monkeypatch.setattr(ensemble_distillation, "_GENERATOR_STEPS", 3)


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
    # The records are a user's own: accuracy on them is private, wherever it would be told.
    assert result["accuracy"] == {}
    kept = json.loads((tmp_path / "run" / "private" / "accuracy.json").read_text())
    assert 0 <= kept["student"] <= 1
    assert (tmp_path / "run" / "student.safetensors").exists()
    stages = [
        json.loads(line) for line in (tmp_path / "run" / "progress.jsonl").read_text().splitlines()
    ]
    assert stages[-1]["done"] == stages[-1]["total"]
    assert not any("accuracy" in stage for stage in stages)


@pytest.mark.parametrize("method", ["fedavg", "dense"])
def test_nobody_answering_is_an_error(run_config, method):
    with pytest.raises(QuorumError, match="No holder sent"):
        serve({**run_config, "method": method}, drop=(1, 2))


def test_a_lost_node_is_done_without(run_config):
    result = serve({**run_config, "method": "feddf"}, drop=(2,))
    assert result["method"] == "feddf"


def test_feddf_needs_unlabelled_images(run_config):
    with pytest.raises(ConfigError, match="public-data"):
        serve({**run_config, "method": "feddf", "public-data": "none"})


SHAPE = (3, 1, 28)
QUICK = BaselineSettings(rounds=1, local_steps=2, batch=4, augment=0.0, distil_steps=20, pool=20)


def records(number: int) -> ImageSet:
    """Holders with 10, 20, … records."""
    n, rng = 10 * (number + 1), torch.Generator().manual_seed(number)
    images = torch.randint(0, 256, (n, 1, 28, 28), generator=rng).to(torch.uint8)
    return ImageSet(f"h{number}", f"h{number}", images, torch.arange(n) % 3, 3)


def train_over_flower(method, failing=()) -> Classifier:
    """A student after one round with three holders, of which some raise."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = holder_of(message)
        if number in failing:
            raise RuntimeError("the holder's disk is gone")
        return answer_training(message, build("cnn-small", *SHAPE), records(number), QUICK, number)

    student = build("cnn-small", *SHAPE)
    run_baseline(
        method,
        LocalGrid(app, {1: {}, 2: {}}),
        [(1, 0), (2, 1), (1, 2)],
        student,
        Generator(8, 1, 28, 4),
        QUICK,
        public=records(5).images,
        rng=torch.Generator().manual_seed(0),
        timeout=60.0,
        evaluate=lambda network: 0.0,
        report=lambda line: None,
    )
    return student


def mean_of(numbers) -> Classifier:
    """FedAvg's one round by hand, for the holders named."""
    networks = []
    for number in numbers:
        network = build("cnn-small", *SHAPE)
        rng = torch.Generator().manual_seed(number * 10_007 + 1)
        train_locally(network, records(number), QUICK, QUICK.local_steps, rng)
        networks.append(network)
    mean = build("cnn-small", *SHAPE)
    load_mean(mean, networks, [len(records(number)) for number in numbers])
    return mean


@pytest.mark.parametrize(("failing", "there"), [((), (0, 1, 2)), ((1,), (0, 2))])
def test_fedavg_is_the_mean_of_those_who_answered_weighted_by_their_records(failing, there):
    got = train_over_flower("fedavg", failing).state_dict()
    for key, value in mean_of(there).state_dict().items():
        assert torch.allclose(got[key], value, atol=1e-6), key


@pytest.mark.parametrize("method", ["feddf", "dense"])
def test_a_holder_that_raises_is_done_without(method):
    student = train_over_flower(method, failing=(0,))
    assert all(bool(value.isfinite().all()) for value in student.state_dict().values())


@pytest.mark.parametrize("method", ["fedavg", "feddf", "dense"])
def test_every_holder_raising_is_an_error(method):
    with pytest.raises(QuorumError, match="No holder sent"):
        train_over_flower(method, failing=(0, 1, 2))


def test_load_mean_counts_a_network_by_its_examples():
    networks = [build("cnn-small", *SHAPE, seed=seed) for seed in (1, 2)]
    mean = build("cnn-small", *SHAPE)
    load_mean(mean, networks, [30, 10])
    first, second = (network.state_dict() for network in networks)
    for key, value in mean.state_dict().items():
        assert torch.allclose(value, 0.75 * first[key] + 0.25 * second[key], atol=1e-6)
