import json
from pathlib import Path

import pytest

from fedtranscribe.cli import run
from fedtranscribe.config import TranscribeSettings
from fedtranscribe.errors import ConfigError, HopelessPlanError
from fedtranscribe.holder.answering import Holder
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.runs.picking import with_source
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from tests.conftest import TINY_DPSD


@pytest.fixture
def settings(tiny_data: Path) -> TranscribeSettings:
    """A run that learns from moments alone, in seconds."""
    dpsd = TINY_DPSD.model_copy(update={"moments_steps": 1})
    return TranscribeSettings(
        data=str(tiny_data), epsilon=50, budget=51, dpsd=dpsd, descent_rounds=0, mixture_share=0
    )


def ledger_of(settings: TranscribeSettings) -> Ledger:
    path = next(Path(str(settings.data)).parent.glob("*.ledger.sqlite"))
    return Ledger.open_read_only(path)


def test_a_run_costs_what_it_says_and_says_what_it_told(
    settings: TranscribeSettings, tmp_path: Path
):
    result = transcribe(prepare(settings), tmp_path / "run").to_json()
    assert result["epsilon"] == pytest.approx(50, rel=1e-6)
    assert result["sound"]["add-remove"] == pytest.approx(50, rel=1e-6)
    assert result["sound"]["replace"] > 50
    assert (result["privacy"], result["rows"], result["teachers"]) == ("moments", 2, 0)
    assert (result["method"], result["published"]) == ("moments", None)
    with ledger_of(settings) as ledger:
        total = ledger.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT).epsilon
        assert total == pytest.approx(50, rel=1e-6)
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["mechanism"] for line in lines] == ["noisy-moments"] * 2
    steps = (tmp_path / "run" / "progress.jsonl").read_text().splitlines()
    so_far = [json.loads(line)["epsilon"] for line in steps]
    assert so_far[0] < so_far[1] == pytest.approx(50, rel=1e-6)
    for name in ("student.safetensors", "generator.safetensors", "images.png"):
        assert (tmp_path / "run" / name).stat().st_size > 0
    stored = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert stored["accuracy"] is None, "held-out records of one's own are private"
    assert set(result["accuracy"]) == {"student"}
    assert result["not_private"] == ["student", "confusion"]


@pytest.mark.long
@pytest.mark.parametrize("crash_after", [0, 1, 2])
def test_a_crash_between_questions_spends_nothing_twice(
    settings: TranscribeSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    crash_after: int,
):
    calls, whole = [], Holder.answer

    def crashing(self, query, plan):
        if len(calls) == crash_after:
            raise KeyboardInterrupt
        calls.append(query.id)
        answer = whole(self, query, plan)
        if len(calls) == crash_after == 2:
            raise KeyboardInterrupt
        return answer

    prepared = prepare(settings)
    with monkeypatch.context() as patched:
        patched.setattr(Holder, "answer", crashing)
        with pytest.raises(KeyboardInterrupt):
            transcribe(prepared, tmp_path / "run")
    result = transcribe(prepare(settings), tmp_path / "run", resume=True).to_json()
    assert result["epsilon"] == pytest.approx(50, rel=1e-6)
    with ledger_of(settings) as ledger:
        assert len(ledger.releases(result["run"])) == 2
        total = ledger.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT).epsilon
        assert total == pytest.approx(50, rel=1e-6)


def test_moments_are_what_a_run_learns_from_where_nobody_said_more():
    picked = with_source(TranscribeSettings())
    assert (picked.source, picked.student, picked.teacher) == ("moments", None, None)
    assert with_source(picked) == picked, "a resumed run picks the same"


@pytest.mark.parametrize(
    "typed",
    [
        {"teacher": "cnn"},
        {"student": "cnn-wide"},
        {"shards": 10},
        {"rows": 100},
        {"top_k": 3},
        {"privacy": "data"},
        {"privacy": "label"},
        {"unit": "holder"},
        {"calibrate_by": "published"},
        {"generator": Path("run")},
        {"teacher_weights": "imagenet", "teacher_weights_declared_by": "J. Doe"},
    ],
)
def test_who_asks_for_what_only_teachers_can_give_gets_teachers(typed: dict):
    picked = with_source(TranscribeSettings(**typed))
    assert picked.source == "teachers"
    assert (picked.teacher, picked.student) == ("cnn", "cnn-wide")
    name = f"--{next(iter(typed)).replace('_', '-')}"
    with pytest.raises(ConfigError, match=name):
        with_source(TranscribeSettings(source="moments", **typed))


def test_teachers_can_be_asked_for_by_name_alone():
    picked = with_source(TranscribeSettings(source="teachers"))
    assert (picked.source, picked.student, picked.teacher) == ("teachers", "cnn-wide", "cnn")


def test_a_hopeless_run_spends_nothing(settings: TranscribeSettings, tmp_path: Path):
    hopeless = settings.model_copy(update={"epsilon": 0.01})
    with pytest.raises(HopelessPlanError, match="--force"):
        transcribe(prepare(hopeless), tmp_path / "run")
    assert not list(tmp_path.glob("*.ledger.sqlite"))


def test_a_plan_that_is_only_shown_spends_and_writes_nothing(
    settings: TranscribeSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    before = sorted(tmp_path.iterdir())
    command = ["transcribe", "--data", str(settings.data), "--plan", "--json"]
    assert run([*command, "--epsilon", "50", "--out", str(tmp_path / "run")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["epsilon"] == pytest.approx(50, rel=1e-6)
    assert (said["unit"], said["adjacency"]) == ("record", "zero-out")
    assert "to learn from" in said["plan"][0]
    assert "two noisy sums over all" in said["plan"][1]
    assert run([*command, "--epsilon", "0.01"]) == 5
    assert sorted(tmp_path.iterdir()) == before
