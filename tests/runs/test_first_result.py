"""The student first; a network as its generator later, in pieces, or not at all, at no cost."""

import shutil
from pathlib import Path

import pytest

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.holder.answering import Holder
from fedtranscribe.methods import method as course
from fedtranscribe.methods.moments import MomentsMatching
from fedtranscribe.methods.pretraining import GeneratorPretraining
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from tests.conftest import TINY_DPSD


@pytest.fixture
def settings(tiny_data: Path) -> TranscribeSettings:
    dpsd = TINY_DPSD.model_copy(update={"moments_steps": 3, "pretrain_steps": 4})
    return TranscribeSettings(
        data=str(tiny_data),
        epsilon=50,
        budget=51,
        dpsd=dpsd,
        with_generator=False,
        descent_rounds=0,
        mixture_share=0,
    )


def with_generator(settings: TranscribeSettings) -> TranscribeSettings:
    return settings.model_copy(update={"with_generator": True})


def booked(settings: TranscribeSettings) -> list[tuple[str, int]]:
    path = next(Path(str(settings.data)).parent.glob("*.ledger.sqlite"))
    with Ledger.open_read_only(path) as ledger:
        return [(run.run, run.rows) for run in ledger.runs()]


@pytest.mark.long
def test_a_generator_is_made_later_from_the_run_folder_and_costs_nothing(
    settings: TranscribeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    transcribe(prepare(settings), run)
    result, before = (run / "metrics.json").read_bytes(), booked(settings)
    assert not (run / "generator.safetensors").exists()
    finished = FinishedRun.open(run)
    assert finished.student is not None
    assert finished.generator is None
    with monkeypatch.context() as patched:
        patched.setattr(Holder, "answer", None)  # nobody is asked
        transcribe(prepare(with_generator(settings)), run, resume=True)
    assert FinishedRun.open(run).generator is not None
    assert (run / "images.png").exists()
    assert (run / "metrics.json").read_bytes() == result
    assert booked(settings) == before
    said: list[str] = []
    transcribe(prepare(with_generator(settings)), run, resume=True, say=said.append)
    assert "this run was complete already; nothing was spent" in said


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "after"), [(GeneratorPretraining, 2), (MomentsMatching, 0), (MomentsMatching, 2)]
)
def test_an_interrupted_generator_goes_on_where_it_was_and_comes_out_the_same(
    settings: TranscribeSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type,
    after: int,
) -> None:
    monkeypatch.setattr(course, "_KEEP_SECONDS", 0.0)
    transcribe(prepare(settings), tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    settings = with_generator(settings)
    transcribe(prepare(settings), tmp_path / "whole", resume=True)

    taken: list[str] = []

    def counted(kind: type, stop_after: int | None) -> None:
        whole = kind.step

        def step(self: course.TrainingSteps) -> float:
            if self.done == stop_after:
                raise KeyboardInterrupt
            taken.append(self.name)
            return whole(self)

        patched.setattr(kind, "step", step)

    with monkeypatch.context() as patched:
        for each in (GeneratorPretraining, MomentsMatching):
            counted(each, after if each is kind else None)
        with pytest.raises(KeyboardInterrupt):
            transcribe(prepare(settings), tmp_path / "broken", resume=True)
    assert not (tmp_path / "broken" / "generator.safetensors").exists()
    with monkeypatch.context() as patched:
        for each in (GeneratorPretraining, MomentsMatching):
            counted(each, None)
        transcribe(prepare(settings), tmp_path / "broken", resume=True)
    assert len(taken) == 4 + 3, "no step was taken twice"
    generators = [tmp_path / run / "generator.safetensors" for run in ("whole", "broken")]
    assert generators[0].read_bytes() == generators[1].read_bytes()


def test_the_student_is_told_before_its_generator_is_trained(
    settings: TranscribeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, said = tmp_path / "run", []

    def interrupt(self: course.TrainingSteps) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(GeneratorPretraining, "step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        transcribe(prepare(with_generator(settings)), run, say=said.append)
    assert "the student is finished" in said[-1]
    assert "NOT PRIVATE" in said[-1], "accuracy on records of one's own"
    assert FinishedRun.open(run).student is not None


@pytest.mark.long
def test_answers_of_teachers_leave_nothing_to_train(
    settings: TranscribeSettings, tmp_path: Path
) -> None:
    asked = {"teacher": "cnn-small", "student": "cnn-small", "shards": 2, "rows": 20}
    said: list[str] = []
    teachers = with_generator(settings).model_copy(update=asked)
    transcribe(prepare(teachers), tmp_path / "run", force=True, say=said.append)
    assert not any("the student is finished" in line for line in said)
    assert FinishedRun.open(tmp_path / "run").generator is not None
    assert not (tmp_path / "run" / "checkpoints" / "generator.pt").exists()


def test_a_damaged_state_is_named_with_the_fix(
    settings: TranscribeSettings, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    transcribe(prepare(settings), run)
    (run / "checkpoints" / "generator.pt").write_bytes(b"torn")
    with pytest.raises(StorageError, match=r"generator\.pt is damaged .* delete it and resume"):
        transcribe(prepare(with_generator(settings)), run, resume=True)


def test_teachers_cannot_be_asked_without_a_generator(settings: TranscribeSettings) -> None:
    teachers = settings.model_copy(update={"source": "teachers"})
    with pytest.raises(ConfigError, match="--no-generator"):
        prepare(teachers)
