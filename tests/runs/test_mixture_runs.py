"""A student and a mixture from one plan, through ledger, folder, evaluation and release."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtranscribe import load
from fedtranscribe.config import TranscribeSettings
from fedtranscribe.config.evaluation import EvaluationSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.evaluation.evaluate import evaluate
from fedtranscribe.holder.answering import Holder
from fedtranscribe.models import Generator, load_network, save_network
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.rows import ImageQuery
from fedtranscribe.releases import make_release, verify
from fedtranscribe.releases.statement import CARD
from fedtranscribe.results.run_directory import GENERATOR, STUDENT
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.runs.learning import _class_by_class
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from tests.conftest import TINY_DPSD


@pytest.fixture
def settings(tiny_data: Path) -> TranscribeSettings:
    dpsd = TINY_DPSD.model_copy(update={"moments_steps": 1})
    return TranscribeSettings(
        data=str(tiny_data), epsilon=50, budget=51, dpsd=dpsd, descent_rounds=0
    )


def ledger_of(settings: TranscribeSettings) -> Ledger:
    path = next(Path(str(settings.data)).parent.glob("*.ledger.sqlite"))
    return Ledger.open_read_only(path)


def test_one_budget_pays_for_student_and_mixture(settings: TranscribeSettings, tmp_path: Path):
    said: list[str] = []
    result = transcribe(prepare(settings), tmp_path / "run", say=said.append).to_json()
    assert result["epsilon"] == pytest.approx(50, rel=1e-6)
    assert result["rows"] == 5
    assert (result["mixture"]["share"], result["mixture"]["components"]) == (0.3, 1)
    assert len(result["sums_stds"]) == 5
    with ledger_of(settings) as ledger:
        total = ledger.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT).epsilon
        assert total == pytest.approx(50, rel=1e-6)
        booked = [release.mechanism for release in ledger.releases(result["run"])]
    assert booked == ["noisy-moments"] * 2 + ["noisy-block-products"] * 2 + ["noisy-band-energies"]
    assert any("30% of the budget goes to a generator" in line for line in said)
    run = FinishedRun.open(tmp_path / "run")
    assert isinstance(run.generator, GaussianMixture)
    images, labels = run.synthesise(30, seed=1)
    assert (images.shape, images.dtype) == ((30, 1, 28, 28), torch.uint8)
    assert set(labels.tolist()) <= {0, 1, 2}
    again, _ = run.synthesise(30, seed=1)
    assert torch.equal(images, again)


def test_the_student_is_told_more_where_no_mixture_is_asked(
    settings: TranscribeSettings, tmp_path: Path
):
    shared = prepare(settings).plan
    alone = prepare(settings.model_copy(update={"with_generator": False})).plan
    assert [part.kind for part in alone.parts] == [Kind.MOMENTS] * 2
    assert [part.kind for part in shared.parts] == [Kind.MOMENTS] * 2 + [Kind.MIXTURE] * 3
    for one, other in zip(alone.parts, shared.parts, strict=False):
        assert (one.noise.strength / other.noise.strength) ** 2 == pytest.approx(0.7)
    network = settings.model_copy(update={"mixture_share": 0.0})
    assert prepare(network).plan.parts == alone.parts
    transcribe(prepare(network), tmp_path / "run")
    assert isinstance(FinishedRun.open(tmp_path / "run").generator, Generator)


@pytest.fixture
def worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few records there are."""
    for module in ("rounds.sums_planning", "methods.sharpening"):
        monkeypatch.setattr(f"fedtranscribe.{module}.WORTH_SHARPENING", 0.0)


def test_class_moments_are_paid_by_the_mixture_and_sharpen_its_images(
    settings: TranscribeSettings, tmp_path: Path, worth_it: None, without_onnx: None
):
    plain, plan = prepare(settings.model_copy(update={"sharpen": False})), prepare(settings).plan
    assert plan.sharpened
    assert not plain.plan.sharpened
    assert plan.parts[:2] == plain.plan.parts[:2]
    assert [part.kind for part in plan.parts[2:]] == [Kind.MIXTURE] * 3 + [Kind.CLASS_MOMENTS]
    assert plan.sets_student == plain.plan.sets_student
    for one, other in zip(plan.mixture, plain.plan.mixture, strict=True):
        assert (other.noise.strength / one.noise.strength) ** 2 == pytest.approx(0.4)
    shown: list[tuple[str, int, int]] = []
    result = transcribe(
        prepare(settings), tmp_path / "run", progress=lambda *step: shown.append(step)
    ).to_json()
    assert (result["rows"], result["epsilon"]) == (6, pytest.approx(50, rel=1e-6))
    assert ("sharpening", 2, 2) in shown
    with ledger_of(settings) as ledger:
        assert ledger.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT).epsilon <= 50 * (1 + 1e-6)
    run = FinishedRun.open(tmp_path / "run")
    assert isinstance(run.generator, GaussianMixture)
    assert run.generator.sharpener is not None
    make_release(tmp_path / "run")
    assert verify(tmp_path / "run" / "release").ok
    released = load(tmp_path / "run" / "release")
    assert torch.equal(released.sample(10, seed=1)[0], run.synthesise(10, seed=1)[0])


@pytest.mark.parametrize("stop", [0, 1])
def test_a_run_that_stops_while_it_sharpens_has_a_student_and_goes_on_for_nothing(
    settings: TranscribeSettings, tmp_path: Path, worth_it: None, stop: int
):
    def stopping(name: str, done: int, total: int) -> None:
        if name == "sharpening" and done == stop + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transcribe(prepare(settings), tmp_path / "run", progress=stopping)
    assert (tmp_path / "run" / STUDENT).exists()
    assert (tmp_path / "run" / "images.png").exists(), "of the mixture as it is"
    with ledger_of(settings) as ledger:
        before = ledger.head
    transcribe(prepare(settings), tmp_path / "run", resume=True)
    done = load_network(tmp_path / "run" / GENERATOR)
    assert isinstance(done, GaussianMixture)
    assert done.sharpener is not None
    with ledger_of(settings) as ledger:
        assert ledger.head == before


def test_where_records_are_too_few_the_plan_says_so_and_asks_nothing(settings: TranscribeSettings):
    plan = prepare(settings).plan
    assert not plan.sharpened
    assert "its images are not sharpened: a class would be only" in plan.words


@pytest.mark.parametrize("size", [28, 40])
def test_a_run_whose_pictures_would_show_nothing_ends_without_a_generator(
    settings: TranscribeSettings, tmp_path: Path, size: int
):
    """Whether or not a network could make images of that size."""
    hidden = settings.model_copy(update={"epsilon": 2.0, "image_size": size})
    assert prepare(hidden).plan.shows_nothing
    transcribe(prepare(hidden), tmp_path / "run")
    run = FinishedRun.open(tmp_path / "run")
    assert run.student is not None
    assert run.generator is None
    assert not (tmp_path / "run" / "images.png").exists()
    said: list[str] = []
    transcribe(prepare(hidden), tmp_path / "run", resume=True, say=said.append)
    assert "this run was complete already; nothing was spent" in said


@pytest.mark.long
@pytest.mark.parametrize("crash_after", range(5))
def test_an_interrupted_run_comes_to_the_same_end_and_pays_once(
    settings: TranscribeSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    crash_after: int,
):
    answered: list[str] = []
    whole = Holder.answer

    def crashing(self, query, plan):
        if len(answered) == crash_after:
            raise KeyboardInterrupt
        answered.append(query.id)
        return whole(self, query, plan)

    with monkeypatch.context() as patched:
        patched.setattr(Holder, "answer", crashing)
        with pytest.raises(KeyboardInterrupt):
            transcribe(prepare(settings), tmp_path / "run")
    assert not (tmp_path / "run" / GENERATOR).exists()
    result = transcribe(prepare(settings), tmp_path / "run", resume=True).result
    assert result.guarantee.epsilon == pytest.approx(50, rel=1e-6)
    with ledger_of(settings) as ledger:
        assert len(ledger.releases(result.run)) == 5
    made = {name: (tmp_path / "run" / name).read_bytes() for name in (STUDENT, GENERATOR)}
    transcribe(prepare(settings), tmp_path / "run", resume=True)
    assert all((tmp_path / "run" / name).read_bytes() == was for name, was in made.items())


@pytest.mark.long
def test_what_began_without_a_generator_buys_none_later(
    settings: TranscribeSettings, tmp_path: Path
):
    run = tmp_path / "run"
    transcribe(prepare(settings.model_copy(update={"with_generator": False})), run)
    with pytest.raises(ConfigError, match=r"mixture_share=0\.0, not None"):
        transcribe(prepare(settings), run, resume=True)
    free = settings.model_copy(update={"mixture_share": 0.0})
    transcribe(prepare(free), run, resume=True)
    assert isinstance(FinishedRun.open(run).generator, Generator)
    with ledger_of(settings) as ledger:
        assert [run.rows for run in ledger.runs()] == [2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mixture_share": 0.5, "with_generator": False}, "--no-generator"),
        ({"mixture_share": 0.5, "teacher": "cnn-small"}, "teachers alone are asked"),
    ],
)
def test_a_share_that_nothing_can_have_is_refused(
    settings: TranscribeSettings, options: dict[str, object], words: str
):
    with pytest.raises(ConfigError, match=words):
        prepare(settings.model_copy(update=options))


@pytest.mark.long
def test_teachers_are_asked_about_images_of_the_mixture(
    settings: TranscribeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[torch.Tensor] = []
    whole = Holder.answer

    def answer(self, query, plan):
        if isinstance(query, ImageQuery):
            asked.append(query.images)
        return whole(self, query, plan)

    monkeypatch.setattr(Holder, "answer", answer)
    started = settings.model_copy(
        update={
            "teacher": "cnn-small",
            "shards": 2,
            "rows": 20,
            "start": "moments",
            "teachers_share": 0.5,
        }
    )
    result = transcribe(prepare(started), tmp_path / "run", force=True).result
    assert result.guarantee.epsilon == pytest.approx(50, rel=1e-6)
    assert result.mixture is not None
    assert result.mixture.share == pytest.approx(0.15)
    images = torch.cat(asked)
    generator = FinishedRun.open(tmp_path / "run").generator
    assert isinstance(generator, GaussianMixture)
    drawn, _ = generator.sample(20, torch.Generator().manual_seed(0))
    # The file holds float32, the run drew from float64.
    assert int((images.int() - (drawn * 255).round().int()).abs().max()) <= 1


@pytest.mark.usefixtures("without_onnx")
def test_a_release_gives_images_with_labels_of_their_own(
    settings: TranscribeSettings, tmp_path: Path
):
    transcribe(prepare(settings), tmp_path / "run")
    made = make_release(tmp_path / "run")
    assert verify(made.folder).ok
    assert "3 Gaussians on 40 axes" in (made.folder / CARD).read_text()
    release = load(made.folder)
    assert isinstance(release.generator, GaussianMixture)
    images, labels = release.sample(12, seed=3)
    expected = release.generator.sample(12, torch.Generator().manual_seed(3))
    assert torch.equal(labels, expected[1])
    assert torch.equal(images, (expected[0] * 255).round().to(torch.uint8))
    # Of other classes than its student, it would label images wrongly.
    save_network(replace(release.generator, classes=4), made.folder / GENERATOR)
    failed = {check.name: check.words for check in verify(made.folder).checks if not check.ok}
    assert "other classes than the student" in failed["networks"]


@pytest.mark.long
def test_evaluation_takes_the_mixture_s_own_labels(settings: TranscribeSettings, tmp_path: Path):
    transcribe(prepare(settings), tmp_path / "run")
    run = FinishedRun.open(tmp_path / "run")
    chosen = EvaluationSettings(classifiers=("lda",), fidelity=False, samples=60, device="cpu")
    found = evaluate(run, chosen)
    assert found["samples"] == 60
    _, labels = run.synthesise(60, chosen.seed)
    shares = torch.bincount(labels, minlength=3) / 60
    assert found["synthetic"]["class_shares"] == pytest.approx(shares.tolist(), abs=1e-6)
    stored = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert "downstream" not in stored, "measured on records of one's own"
    assert 0 <= found["private"]["downstream"]["lda"] <= 1


def test_a_figure_shows_every_class_alike():
    labels = torch.tensor([2, 0, 2, 2, 1, 2, 0, 2])
    shown = _class_by_class(labels, 5)
    assert labels[shown].tolist() == [0, 0, 1, 2, 2]
    assert shown.tolist() == [1, 6, 4, 0, 2], "the first of each"
    assert sorted(_class_by_class(labels, 50).tolist()) == list(range(8))


def test_a_declared_number_of_records_decides_instead_of_the_true_one(
    settings: TranscribeSettings, tiny_data: Path, tmp_path: Path
):
    with np.load(tiny_data) as arrays:
        fewer = {name: a if a.ndim == 0 else a[:50] for name, a in arrays.items()}
    np.savez(tmp_path / "fewer.npz", **fewer)
    few = {"data": str(tmp_path / "fewer.npz")}

    def plan(**changed: object):
        return prepare(settings.model_copy(update=changed)).plan

    assert plan(declared=10**7, **few).outline() == plan(declared=10**7).outline()
    assert plan(declared=10**7, **few).words == plan(declared=10**7).words
    assert plan(declared=10**7).outline() != plan().outline(), "it bears on the plan"
    asked = {"teacher": "cnn-small", "source": "teachers", "declared": 64}
    assert plan(**asked, **few).outline() == plan(**asked).outline()
    assert plan(**asked, **few).facts.shards == plan(**asked).facts.shards == 4


def test_a_run_whose_records_were_changed_cannot_go_on_under_another_plan(
    settings: TranscribeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The noise follows from how many records there are, and what was booked stays booked."""
    whole = Holder.answer

    def crashing(self, query, plan):
        if query.id.endswith("mixture-0"):
            raise KeyboardInterrupt
        return whole(self, query, plan)

    with monkeypatch.context() as patched:
        patched.setattr(Holder, "answer", crashing)
        with pytest.raises(KeyboardInterrupt):
            transcribe(prepare(settings), tmp_path / "run")
    with ledger_of(settings) as ledger:
        before = ledger.releases()
    monkeypatch.setattr("fedtranscribe.rounds.sums_planning._declared", lambda _: 10**7)
    assert prepare(settings).plan.mixture_share == 0.5
    with pytest.raises(ConfigError, match="was planned with other noise"):
        transcribe(prepare(settings), tmp_path / "run", resume=True)
    with ledger_of(settings) as ledger:
        assert ledger.releases() == before
