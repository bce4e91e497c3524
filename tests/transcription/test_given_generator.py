"""A transcription that asks samples of a generator which was trained before, on the same data."""

import json

import pytest
import torch

from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError, UnsupportedAdjacencyError
from fedtranscribe.holder import Holder
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.events import Gaussian
from fedtranscribe.privacy.release_plan import Release
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.transcribe import prepare, transcribe
from fedtranscribe.transcribe.preparation import GivenGenerator

TRAINED = Gaussian(1.5, 1)


def generator(data: str, size: int = 28) -> GivenGenerator:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (30, 1, size, size), generator=rng, dtype=torch.uint8)
    samples = ImageSet("samples of run-g", "run-g", images, torch.arange(30) % 3, 3)
    costs = {Unit.RECORD: dict.fromkeys((Adjacency.ZERO_OUT, Adjacency.REPLACE), TRAINED)}
    return GivenGenerator("run-g", data, samples, (Release("dp-promise", 1, costs),))


def test_only_samples_are_asked_and_both_costs_are_printed(tiny_settings, tmp_path, monkeypatch):
    asked, real = [], Holder.answer
    monkeypatch.setattr(
        Holder, "answer", lambda self, query: asked.append(query.images) or real(self, query)
    )
    given = generator(tiny_settings.data)
    result = transcribe(prepare(tiny_settings, given), tmp_path / "run", force=True)
    samples = {image.numpy().tobytes() for image in given.samples.images}
    assert all(image.numpy().tobytes() in samples for image in torch.cat(asked))
    own = result["generator"]["epsilon_of_answers"]
    assert own == pytest.approx(tiny_settings.epsilon, rel=1e-4)
    events = [Release.from_json(json.loads(line)) for line in open_lines(tmp_path / "run")]
    costs = [release.event(Unit.RECORD, Adjacency.ZERO_OUT) for release in events]
    assert costs[0] == TRAINED
    assert result["epsilon"] == pytest.approx(epsilon(costs, tiny_settings.delta), rel=1e-6)
    assert result["epsilon"] > own
    # The generator has no cost under add-remove, so neither has the student.
    assert set(result["sound"]) == {"zero-out", "replace"}


def open_lines(run) -> list[str]:
    return (run / "events.jsonl").read_text().splitlines()


def test_a_generator_of_other_data_adds_nothing_to_these(tiny_settings, tmp_path):
    given = generator("somebody-elses")
    result = transcribe(prepare(tiny_settings, given), tmp_path / "run", force=True)
    assert result["epsilon"] == pytest.approx(tiny_settings.epsilon, rel=1e-4)
    assert result["generator"]["counted"] is False
    assert result["generator"]["data"] == "somebody-elses"


def test_images_of_another_shape_are_refused(tiny_settings):
    with pytest.raises(ConfigError, match="32x32"):
        prepare(tiny_settings, generator("x", size=32))


def test_a_unit_that_the_generator_does_not_protect_is_refused_unspent(tiny_settings, tmp_path):
    settings = tiny_settings.model_copy(update={"unit": "holder"})
    prepared = prepare(settings, generator(settings.data))
    with pytest.raises(UnsupportedAdjacencyError):
        transcribe(prepared, tmp_path / "run", force=True)
    assert not (tmp_path / "run" / "events.jsonl").exists()
