"""A finished run read back."""

import pytest
import torch

from fedtranscribe.errors import ConfigError, CorruptWeightsError, StorageError
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe


@pytest.fixture
def finished(tiny_settings, tmp_path):
    transcribe(prepare(tiny_settings), tmp_path / "run", force=True)
    return tmp_path / "run"


def test_networks_samples_and_data_come_back(finished, tiny_data):
    run = FinishedRun.open(finished)
    assert not run.declared_public
    assert run.student.classes == 3
    images, labels = run.synthesise(300, seed=1)
    assert images.shape == (300, 1, 28, 28)
    assert images.dtype == torch.uint8
    assert set(labels.tolist()) <= {0, 1, 2}
    again, _ = run.synthesise(300, seed=1)
    assert torch.equal(images, again)
    assert run.data().train.classes == 3


def test_what_is_no_finished_run_is_named(finished, tmp_path):
    with pytest.raises(StorageError, match="No run in"):
        FinishedRun.open(tmp_path / "absent")
    metrics = finished / "metrics.json"
    metrics.write_text("{")
    with pytest.raises(StorageError, match="damaged"):
        FinishedRun.open(finished)
    metrics.unlink()
    with pytest.raises(StorageError, match="not finished"):
        FinishedRun.open(finished)


def test_a_damaged_network_is_named(finished):
    (finished / "student.safetensors").write_bytes(b"x")
    with pytest.raises(CorruptWeightsError):
        FinishedRun.open(finished)


def test_a_run_without_generator_has_no_samples(finished):
    (finished / "generator.safetensors").unlink()
    with pytest.raises(ConfigError, match="no generator"):
        FinishedRun.open(finished).synthesise(5)


def test_too_few_samples_are_refused(finished):
    with pytest.raises(ConfigError, match="n=0"):
        FinishedRun.open(finished).synthesise(0)
