"""A private start: what it asks, what that costs, and that it comes before the training."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from synthesis_settings import told

from fedtranscribe.config import DpPromiseOptions, DpSadOptions, SynthesizeSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.methods.mixture import question_shapes
from fedtranscribe.noise.sources import SeededBits, SeededNoise
from fedtranscribe.privacy.accountant import epsilon, sound_table
from fedtranscribe.privacy.closed_forms import gaussian_mu
from fedtranscribe.privacy.diffusion import Teacher
from fedtranscribe.privacy.events import Gaussian, flat
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions.mixture import Mixture, bound_of, mixture_bound
from fedtranscribe.trainers.dp_promise import DpPromise
from fedtranscribe.trainers.dp_sad import DpSad
from fedtranscribe.trainers.plan import DataFacts, plan_training
from fedtranscribe.trainers.preparation import prepare
from fedtranscribe.trainers.private_start import TrainerWithStart, mixture_start
from fedtranscribe.trainers.profiles import DpPromiseRecipe, DpSadRecipe
from fedtranscribe.trainers.synthesize import synthesize

DIGITS = DataFacts("digits", 4_000, 10, 1, 28)
MNIST = DataFacts("mnist", 60_000, 10, 1, 28)
PLAIN = SynthesizeSettings(epsilon=10)
ASKED = PLAIN.model_copy(update={"start": "mixture"})
SAMPLES = 40


@pytest.fixture
def started(tiny_synthesis: SynthesizeSettings, monkeypatch: pytest.MonkeyPatch):
    """A tiny dp-promise with a private start, of which it takes one step on 40 samples."""
    monkeypatch.setattr("fedtranscribe.trainers.private_start._SAMPLES", SAMPLES)
    changes = {"start": "mixture", "pretrain_batch": 20, "pretrain_epochs": 0.5}
    return tiny_synthesis.model_copy(update=changes)


# ---------------------------------------------------------------- what is planned


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_questions_cost_their_share_of_the_budget(adjacency: Adjacency):
    settings = ASKED.model_copy(update={"adjacency": adjacency.value, "start_share": 0.3})
    start = mixture_start(settings, MNIST)
    assert start is not None
    event = start.release.event(Unit.RECORD, adjacency)
    wanted = 0.3 * gaussian_mu(10, settings.delta) ** 2
    assert event.gdp_mu**2 == pytest.approx(wanted, rel=1e-9)
    shapes = question_shapes(1, 28, 10, start.cuts)
    assert len(start.noise) == len(shapes) == len(list(flat(event)))
    for shape, std, part in zip(shapes, start.noise, flat(event), strict=True):
        moved = mixture_bound(shape.width, shape.blocks).moves[Unit.RECORD][adjacency]
        assert isinstance(part, Gaussian)
        assert part.mu == pytest.approx(moved / std, rel=2e-6)
        assert part.mu >= moved / std


def test_more_records_are_cut_more_finely():
    few, many = mixture_start(ASKED, DIGITS), mixture_start(ASKED, MNIST)
    assert few is not None
    assert many is not None
    assert few.cuts < many.cuts


def test_the_share_follows_from_records_and_budget():
    shares = [
        start.share
        for facts, epsilon in ((MNIST, 10.0), (MNIST, 1.0), (DIGITS, 10.0))
        if (start := mixture_start(ASKED.model_copy(update={"epsilon": epsilon}), facts))
    ]
    assert shares == [0.5, 0.7, 0.9]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"noise": False}, "without noise has no budget"),
        ({"calibrate_by": "published"}, "only the sound figure"),
        ({"labels": "kmeans", "pretrain_data": "shapes"}, "clusters come from public"),
        ({"pretrain_data": "shapes"}, "public images of 'shapes'"),
    ],
)
def test_where_no_mixture_can_be_had(changes: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=f"start=none: .*{words}"):
        mixture_start(ASKED.model_copy(update=changes), MNIST)
    assert mixture_start(PLAIN.model_copy(update=changes), MNIST) is None


def test_classes_and_ids_may_stand_against_it():
    with pytest.raises(ConfigError, match="20,000 classes are too many"):
        mixture_start(ASKED, replace(MNIST, classes=20_000))
    nameless = replace(MNIST, positional_ids=True)
    coming = ASKED.model_copy(update={"adjacency": "add-remove"})
    with pytest.raises(ConfigError, match="without persistent ids"):
        mixture_start(coming, nameless)
    start = mixture_start(ASKED, nameless)
    assert start is not None
    assert set(start.release.costs[Unit.RECORD]) == {Adjacency.ZERO_OUT, Adjacency.REPLACE}


def test_it_is_usual_where_a_class_stands_above_the_noise():
    assert mixture_start(PLAIN, MNIST) is not None
    assert mixture_start(PLAIN, replace(MNIST, records=100)) is None
    assert mixture_start(PLAIN.model_copy(update={"start": "none"}), MNIST) is None
    paper = PLAIN.model_copy(update={"profile": "paper"})
    assert mixture_start(paper, MNIST) is None, "the paper's profile is the paper's"
    assert mixture_start(paper.model_copy(update={"start": "mixture"}), MNIST) is not None


def test_a_share_without_a_start_is_refused():
    for changes in ({"start": "none"}, {"noise": False}):
        with pytest.raises(ConfigError, match=r"start_share=0\.5 with start=mixture only"):
            mixture_start(PLAIN.model_copy(update={**changes, "start_share": 0.5}), MNIST)


def test_a_share_that_leaves_phase_i_nothing_names_a_boundary_that_fits(started):
    with pytest.raises(
        ConfigError, match=r"boundary=700 >= \d+.*: Phase I and the private start cost"
    ):
        prepare(told(started, boundary=700, start_share=0.9))


@pytest.mark.long
@pytest.mark.parametrize("method", ["dp-promise", "dp-sad"])
def test_both_parts_cost_what_was_asked_for(started, method: str):
    settings = told(started, method=method, dp_sad=DpSadOptions(batch=8, epochs=1))
    prepared = prepare(settings)
    assert prepared.public is None
    assert prepared.cost.stated is not None
    assert 1 - 1e-3 <= prepared.cost.stated.epsilon <= 1
    assert prepared.plan.release is not None
    parts = prepared.plan.release.event(Unit.RECORD, Adjacency.ZERO_OUT).parts  # type: ignore[union-attr]
    assert epsilon(list(parts), settings.delta) == prepared.cost.stated.epsilon
    assert list(prepared.plan.steps)[:2] == ["mixture", "pre-training"]
    assert prepared.plan.steps["mixture"] == 3
    assert "private start: 90% of the budget (μ²) goes to a mixture" in prepared.plan.words[0]
    assert prepared.plan.start is not None
    assert prepared.plan.published is not None
    assert "The private start is not in it." in prepared.plan.published.reason
    trained = prepared.trainer()
    assert isinstance(trained, TrainerWithStart)
    kind = {"dp-promise": DpPromise, "dp-sad": DpSad}[method]
    assert isinstance(trained.training, kind)


@pytest.mark.long
def test_quick_trainings_take_few_large_steps_after_a_start():
    start = mixture_start(ASKED, MNIST)
    assert start is not None
    promise = plan_training(DpPromiseRecipe(), ASKED, MNIST, start.samples, start.release)
    assert promise.settings.pretrain_labels
    assert promise.steps == {"pre-training": 5_000, "phase II": 118}
    assert (promise.settings.sampling.steps, promise.settings.sampling.eta) == (10, 0)
    sad = plan_training(DpSadRecipe(), ASKED, MNIST, start.samples, start.release)
    assert sad.settings.teacher is Teacher.PUBLIC
    assert sad.steps == {"pre-training": 5_000, "student": 118}
    assert (sad.settings.sampling.steps, sad.settings.sampling.eta) == (25, 0)
    for plan in (promise, sad):
        assert plan.release is not None
        event = plan.release.event(Unit.RECORD, Adjacency.ZERO_OUT)
        before = start.release.event(Unit.RECORD, Adjacency.ZERO_OUT)
        assert 9.99 <= epsilon([before, event], 1e-5) <= 10


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "steps"),
    [({"phase1": True}, 938), ({"boundary": 900}, 938), ({"phase1_epochs": 3}, 5_625)],
)
def test_phase_i_comes_after_a_start_where_it_was_asked_for(options: dict[str, Any], steps: int):
    start = mixture_start(ASKED, MNIST)
    assert start is not None
    settings = ASKED.model_copy(update={"dp_promise": DpPromiseOptions(**options)})
    plan = plan_training(DpPromiseRecipe(), settings, MNIST, start.samples, start.release)
    assert plan.steps["phase I"] == steps


def test_dp_sad_hands_the_pre_trained_weights_to_its_student(started):
    settings = told(started, method="dp-sad", dp_sad=DpSadOptions(batch=8, epochs=1))
    assert prepare(settings).plan.settings.student_start == "teacher"
    own = told(settings, dp_sad=DpSadOptions(batch=8, epochs=1, student_start="xavier"))
    assert prepare(own).plan.settings.student_start == "xavier"


# ---------------------------------------------------------------- what is trained


def trainer_of(settings: SynthesizeSettings, seed: int = 0) -> TrainerWithStart:
    made = prepare(settings).trainer(SeededNoise(seed), SeededBits(seed))
    assert isinstance(made, TrainerWithStart)
    return made


def weights(trainer: TrainerWithStart) -> torch.Tensor:
    assert isinstance(trainer.training, DpPromise)
    return torch.cat([p.flatten() for p in trainer.training.denoiser.state_dict().values()])


def test_the_mixtures_noise_is_what_was_booked(started, monkeypatch: pytest.MonkeyPatch):
    """Every number that leaves the records has noise of the plan's std on it."""
    exact: list[torch.Tensor] = []
    real = Mixture.values

    def spy(self: Mixture, query: Any) -> torch.Tensor:
        exact.append(real(self, query))
        return exact[-1]

    monkeypatch.setattr(Mixture, "values", spy)
    trainer = trainer_of(started)
    trainer.train(3)
    learned = trainer._mixture._learned
    planned = prepare(started).plan.start
    assert planned is not None
    for (query, answer), sums, std in zip(learned, exact, planned["noise"], strict=True):
        bound = bound_of(query)
        noise = (answer.values - sums.double() / bound.scale)[0] / bound.spread(std)
        assert float(noise.std()) == pytest.approx(1, abs=4 / len(noise) ** 0.5)
        assert answer.noise == std


def test_the_network_is_trained_on_samples_with_their_labels(started):
    trainer = trainer_of(started)
    before = trainer.training
    trainer.train(3)
    assert trainer.training is not before
    assert isinstance(trainer.training, DpPromise)
    images, labels = trainer.training.public
    assert images.shape == (SAMPLES, 1, 16, 16)
    assert float(images.std()) > 0
    assert set(labels.tolist()) <= {0, 1, 2}
    fresh = weights(trainer)
    trainer.train(1)
    assert not torch.equal(weights(trainer), fresh)


def test_an_unconditional_network_is_told_no_labels(started):
    trainer = trainer_of(told(started, conditional=False))
    trainer.train(4)
    assert isinstance(trainer.training, DpPromise)
    assert set(trainer.training.public[1].tolist()) == {0}


@pytest.mark.long
@pytest.mark.parametrize("after", [0, 1, 3, 4, 6])
def test_it_goes_on_from_any_step_to_the_same_weights(started, after: int):
    whole = trainer_of(started)
    assert whole.train()
    begun = trainer_of(started)
    begun.train(after)
    other = trainer_of(started)
    other.load_state(begun.state())
    assert not other.finished
    assert other.train()
    assert torch.equal(weights(other), weights(whole))


@pytest.mark.long
def test_a_checkpoint_of_another_start_is_refused(started):
    begun = trainer_of(started)
    begun.train(2)
    other = trainer_of(told(started, start_share=0.25))
    with pytest.raises(ConfigError, match="made with start="):
        other.load_state(begun.state())


def test_checkpoints_with_and_without_a_start_are_no_substitutes(started):
    begun = trainer_of(started)
    begun.train(1)
    plain = prepare(told(started, start="none")).trainer(SeededNoise(0), SeededBits(0))
    with pytest.raises(ConfigError, match="The checkpoint was made with"):
        plain.load_state(begun.state())
    without = {name: value for name, value in begun.state().items() if name != "mixture"}
    with pytest.raises(ConfigError, match="The checkpoint was made with"):
        trainer_of(started).load_state(without)


def test_a_run_is_booked_once_and_says_what_its_parts_cost(started, tmp_path: Path):
    prepared = prepare(started)
    result = synthesize(prepared, tmp_path / "run").to_json()
    assert result["private"] is True
    assert result["steps"] == {"mixture": 3, "pre-training": 1, "phase I": 3, "phase II": 3}
    told = result["private_start"]
    assert prepared.plan.start is not None
    assert told.items() >= prepared.plan.start.items()
    parts = told["epsilon_of_start"], told["epsilon_of_training"]
    assert max(parts) < result["epsilon"] < sum(parts)
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    assert len(lines) == 1
    release = MechanismRelease.from_json(json.loads(lines[0]))
    found = sound_table([release], Unit.RECORD, 1e-5)
    assert {adjacency.value: value for adjacency, value in found.items()} == result["sound"]
    assert release.mechanism == "mixture, dp-promise"
    with Ledger.open_read_only(started.ledger) as ledger:
        ledger.verify()
        assert ledger.answer(f"{result['run']}/training") == result["sha256"].encode()
    stages = [json.loads(line)["stage"] for line in _lines(tmp_path / "run" / "progress.jsonl")]
    assert list(dict.fromkeys(stages)) == ["mixture", "pre-training", "phase I", "phase II"]


def test_an_interrupted_start_goes_on_under_its_one_reservation(
    started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real = TrainerWithStart._ask
    asked: list[int] = []

    def ask(self: TrainerWithStart) -> None:
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(1)
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(TrainerWithStart, "_ask", ask)
        with pytest.raises(KeyboardInterrupt):
            synthesize(prepare(started), tmp_path / "run")
    outside = {path.name for path in (tmp_path / "run").iterdir()}
    assert outside <= {"config.toml", "events.jsonl", "progress.jsonl", "private"}
    result = synthesize(prepare(started), tmp_path / "run", resume=True).to_json()
    with Ledger.open_read_only(started.ledger) as ledger:
        assert len(ledger.releases(result["run"])) == 1


def test_images_that_the_method_cannot_take_are_refused_before_a_question(
    started, small_data: Path, monkeypatch: pytest.MonkeyPatch
):
    with np.load(small_data) as arrays:
        kept = dict(arrays)
    labels = kept["labels"].copy()
    prepared = prepare(started)
    monkeypatch.setattr(TrainerWithStart, "_ask", lambda self: 1 / 0)
    object.__setattr__(prepared.split.train, "labels", torch.from_numpy(labels) + 7)
    with pytest.raises(ConfigError, match=r"every label within 0\.\.2"):
        prepared.trainer()


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
