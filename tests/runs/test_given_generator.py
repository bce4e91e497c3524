"""A transcription that asks samples of a generator which was trained before, on the same data."""

import json

import pytest
import torch

from fedtranscribe.data import ImageSet, NamedData
from fedtranscribe.errors import ConfigError, UnsupportedAdjacencyError
from fedtranscribe.holder.answering import Holder
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.events import Gaussian
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from fedtranscribe.trainers.samples import ExistingGenerator

TRAINED = Gaussian(1.5, 1)


TINY = "npz:tiny"


def generator(
    data_id: str | None, size: int = 28, public: NamedData | None = None
) -> ExistingGenerator:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (30, 1, size, size), generator=rng, dtype=torch.uint8)
    samples = ImageSet("samples of run-g", "run-g", images, torch.arange(30) % 3, 3)
    costs = {Unit.RECORD: dict.fromkeys((Adjacency.ZERO_OUT, Adjacency.REPLACE), TRAINED)}
    return ExistingGenerator(
        "run-g", data_id, samples, (MechanismRelease("dp-promise", 1, costs),), public
    )


def test_only_samples_are_asked_and_both_costs_are_printed(tiny_settings, tmp_path, monkeypatch):
    asked, real = [], Holder.answer
    monkeypatch.setattr(
        Holder,
        "answer",
        lambda self, query, plan: asked.append(query.images) or real(self, query, plan),
    )
    given = generator(TINY)
    result = transcribe(prepare(tiny_settings, given), tmp_path / "run", force=True).to_json()
    samples = {image.numpy().tobytes() for image in given.samples.images}
    assert all(image.numpy().tobytes() in samples for image in torch.cat(asked))
    own = result["generator"]["epsilon_of_answers"]
    assert own == pytest.approx(tiny_settings.epsilon, rel=1e-4)
    events = [MechanismRelease.from_json(json.loads(line)) for line in open_lines(tmp_path / "run")]
    costs = [release.event(Unit.RECORD, Adjacency.ZERO_OUT) for release in events]
    assert costs[0] == TRAINED
    assert result["epsilon"] == pytest.approx(epsilon(costs, tiny_settings.delta), rel=1e-6)
    assert result["epsilon"] > own
    # The generator has no cost under add-remove, so neither has the student.
    assert set(result["sound"]) == {"zero-out", "replace"}


def open_lines(run) -> list[str]:
    return (run / "events.jsonl").read_text().splitlines()


def test_a_generator_of_other_data_adds_nothing_to_these(tiny_settings, tmp_path):
    given = generator("npz:somebody-elses")
    result = transcribe(prepare(tiny_settings, given), tmp_path / "run", force=True).to_json()
    assert result["epsilon"] == pytest.approx(tiny_settings.epsilon, rel=1e-4)
    assert result["generator"]["counted"] is False
    assert result["generator"]["data_id"] == "npz:somebody-elses"


def test_however_the_path_is_spelled_the_generator_is_counted(tiny_settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("tiny.npz", "./tiny.npz", f"../{tmp_path.name}/tiny.npz", tiny_settings.data):
        prepared = prepare(tiny_settings.model_copy(update={"data": path}), generator(TINY))
        assert prepared.before, path


@pytest.mark.long
@pytest.mark.parametrize(("data_id", "counted"), [("mnist", True), ("uci-digits", False)])
def test_a_set_that_contains_the_records_counts(tiny_settings, data_id, counted):
    """A record of the digits is a record of MNIST: it has paid for both."""
    settings = tiny_settings.model_copy(update={"data": "digits"})
    assert bool(prepare(settings, generator(data_id)).before) is counted


def test_unknown_data_are_counted_and_the_run_says_why(tiny_settings, tmp_path):
    said = []
    prepared = prepare(tiny_settings, generator(None))
    result = transcribe(prepared, tmp_path / "run", force=True, say=said.append).to_json()
    assert result["epsilon"] > tiny_settings.epsilon
    assert result["generator"] == {
        "run": "run-g",
        "data_id": None,
        "counted": True,
        "epsilon_of_answers": pytest.approx(tiny_settings.epsilon, rel=1e-4),
    }
    assert any("does not say which data it saw" in line for line in said)


def test_a_generator_that_started_from_the_records_as_public_is_refused(tiny_settings):
    """It has learned them for nothing, whatever its own private data were."""
    for public in (NamedData("x.npz", TINY), NamedData(tiny_settings.data, "npz:x")):
        with pytest.raises(ConfigError, match="choose another generator") as error:
            prepare(tiny_settings, generator("npz:somebody-elses", public=public))
        assert repr(tiny_settings.data) in str(error.value)
    other = NamedData("uci-digits", "uci-digits")
    assert not prepare(tiny_settings, generator("npz:somebody-elses", public=other)).before


def test_images_of_another_shape_are_refused(tiny_settings):
    with pytest.raises(ConfigError, match="32x32"):
        prepare(tiny_settings, generator("x", size=32))


def test_a_unit_that_the_generator_does_not_protect_is_refused_unspent(tiny_settings, tmp_path):
    settings = tiny_settings.model_copy(update={"unit": "holder"})
    prepared = prepare(settings, generator(TINY))
    with pytest.raises(UnsupportedAdjacencyError):
        transcribe(prepared, tmp_path / "run", force=True)
    assert not (tmp_path / "run" / "events.jsonl").exists()
