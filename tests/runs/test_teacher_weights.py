"""Teachers that begin with given weights: somebody vouches for these, by name, up to the card."""

from pathlib import Path

import pytest

from fedtranscribe.cli import run as command
from fedtranscribe.config import TranscribeSettings, build
from fedtranscribe.errors import ConfigError
from fedtranscribe.models import build as build_network
from fedtranscribe.models import save
from fedtranscribe.models.teachers import load_manifest
from fedtranscribe.releases import make_release, verify
from fedtranscribe.releases.describe import THE_HOLDER
from fedtranscribe.releases.statement import CARD, read_statement
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from tests.conftest import TINY_DPSD, TINY_TEACHERS

WHO = "J. Doe"

pytestmark = pytest.mark.usefixtures("without_onnx")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "public.safetensors"
    save(build_network("cnn-small", 3, 1, 28, seed=5), path)
    return path


def test_without_a_name_no_weights_are_taken(
    weights: Path, tiny_data: Path, tmp_path: Path, capsys
):
    given = {"teacher": "cnn-small", "teacher_weights": str(weights)}
    for values in (given, {"teacher": "resnet18", "teacher_weights": "imagenet"}):
        with pytest.raises(ConfigError, match="--teacher-weights-declared-by with --teacher-we"):
            build(TranscribeSettings, values)
    with pytest.raises(ConfigError, match="--teacher-weights with --teacher-weights-declared-by"):
        build(TranscribeSettings, {"teacher_weights_declared_by": WHO})
    typed = ["--data", str(tiny_data), "--teacher-weights", str(weights)]
    out = str(tmp_path / "out")
    for line in (["transcribe", "--out", out], ["teacher", "train", "--arch", "cnn", "--out", out]):
        assert command([*line, *typed]) == ConfigError.exit_code
        said = capsys.readouterr().err
        assert said.startswith("error: Expected --teacher-weights-declared-by with")
        assert "the name of the person who declares" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_the_name_is_in_manifest_result_statement_and_card(
    weights: Path, tiny_settings: TranscribeSettings, tmp_path: Path
):
    typed = {"teacher_weights": str(weights), "teacher_weights_declared_by": WHO}
    settings = tiny_settings.model_copy(update={**typed, "epsilon": 50, "budget": 101})
    result = transcribe(prepare(settings), tmp_path / "run", force=True).result
    teachers = tmp_path / "run" / "private" / "teachers"
    assert load_manifest(teachers).weights_declared_by == WHO
    expect_pinned(result, tmp_path / "run")
    # A folder of teachers brings the name along.
    again = TranscribeSettings(teacher=str(teachers), rows=40, epsilon=50, dpsd=TINY_DPSD)
    result = transcribe(prepare(again), tmp_path / "again", force=True).result
    expect_pinned(result, tmp_path / "again")


def expect_pinned(result, run: Path) -> None:
    assert result.declared_teachers is not None
    assert [*result.declared_teachers.weights.values()] == [WHO]
    assert result.declared_teachers.shards == {}
    release = make_release(run).folder
    said = read_statement(release).declared_teachers
    assert said is not None
    assert (said.shards, said.weights) == ({}, {THE_HOLDER: WHO})
    card = (release / CARD).read_text()
    assert r"J\. Doe declares that these weights never saw the private records" in card
    assert verify(release).ok


def test_teachers_of_our_own_from_scratch_need_nobodys_word(
    tiny_settings: TranscribeSettings, tmp_path: Path
):
    settings = tiny_settings.model_copy(update={"teachers": TINY_TEACHERS})
    result = transcribe(prepare(settings), tmp_path / "run", force=True).result
    assert result.declared_teachers is None
    release = make_release(tmp_path / "run").folder
    assert read_statement(release).declared_teachers is None
    assert "declares" not in (release / CARD).read_text()
