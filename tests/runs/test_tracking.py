"""What a run tells as it goes on."""

import json
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from fedtranscribe.config import TrackingOptions
from fedtranscribe.errors import ConfigError
from fedtranscribe.results import progress as tracking
from fedtranscribe.results.progress import Tracker
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe


def lines(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]


def test_every_round_has_a_line_and_the_last_states_the_whole_cost(tiny_settings, tmp_path):
    result = transcribe(prepare(tiny_settings), tmp_path / "run", force=True).to_json()
    rounds = lines(tmp_path / "run")
    assert [line["done"] for line in rounds] == [10, 20, 30, 40]
    assert rounds[-1]["epsilon"] == pytest.approx(result["epsilon"])
    spent = [line["epsilon"] for line in rounds]
    assert spent == sorted(spent)
    assert {"student_loss", "generator_loss", "time"} <= rounds[0].keys()
    # The records are a user's own: how well the student does on them is not told.
    assert {line["accuracy"] for line in rounds} == {None}


def test_event_files_hold_the_same_numbers(tmp_path):
    track = Tracker(tmp_path, TrackingOptions(tensorboard=True))
    for done in (10, 20):
        track(
            {
                "stage": "rows answered",
                "done": done,
                "total": 20,
                "student_loss": done / 4,
                "accuracy": None,
            }
        )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert read.Tags()["scalars"] == ["rows-answered/student_loss"]
    assert [(x.step, x.value) for x in read.Scalars("rows-answered/student_loss")] == [
        (10, 2.5),
        (20, 5.0),
    ]


def test_without_tensorboard_nothing_is_begun(tiny_settings, tmp_path, monkeypatch):
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"fedtranscribe\[tensorboard\]"):
        prepare(tiny_settings.model_copy(update={"tensorboard": True}))


def entries_of(folder: Path):
    """A tracker as another package would offer it."""
    told = folder / "told.jsonl"

    def report(entry) -> None:
        with told.open("a") as stream:
            stream.write(json.dumps(dict(entry)) + "\n")

    return report


@pytest.fixture
def installed(monkeypatch) -> None:
    point = EntryPoint("lines", f"{__name__}:entries_of", tracking.TRACKERS)
    monkeypatch.setattr(tracking, "entry_points", lambda group: EntryPoints([point]))


@pytest.mark.usefixtures("installed")
def test_another_tracker_is_told_the_same(tiny_settings, tmp_path):
    settings = tiny_settings.model_copy(update={"tracker": "lines"})
    transcribe(prepare(settings), tmp_path / "run", force=True)
    told = [json.loads(line) for line in (tmp_path / "run" / "told.jsonl").read_text().splitlines()]
    assert told == [
        {name: value for name, value in line.items() if name != "time"}
        for line in lines(tmp_path / "run")
    ]


@pytest.mark.usefixtures("installed")
def test_a_tracker_that_is_not_installed_is_named_with_those_that_are(tiny_settings):
    with pytest.raises(ConfigError, match=r"No tracker 'wandb' is installed \(there is lines\)"):
        prepare(tiny_settings.model_copy(update={"tracker": "wandb"}))
