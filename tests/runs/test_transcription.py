import gc
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType

import numpy as np
import pytest
import torch

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.data import load
from fedtranscribe.errors import (
    BudgetExhaustedError,
    ConfigError,
    HopelessPlanError,
    ModelMismatchError,
    StorageError,
)
from fedtranscribe.holder.answering import Holder
from fedtranscribe.methods.dpsd import DPSD
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.budget import note_path
from fedtranscribe.privacy.calibrate import gaussian_mu
from fedtranscribe.privacy.events import Gaussian
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe


def spent(settings: TranscribeSettings) -> float:
    path = next(Path(str(settings.data)).parent.glob("*.ledger.sqlite"))
    with Ledger.open_read_only(path) as ledger:
        ledger.verify()
        return ledger.total(settings.delta, Unit.RECORD, Adjacency.ZERO_OUT).epsilon


def go(settings: TranscribeSettings, out: Path, **kwargs) -> dict:
    return transcribe(prepare(settings), out, force=True, **kwargs).to_json()


@pytest.mark.parametrize("privacy", ["vote", "data", "label"])
def test_every_mode_runs_to_the_end_and_spends_what_it_says(
    tiny_settings: TranscribeSettings, tmp_path: Path, privacy: str
):
    settings = tiny_settings.model_copy(update={"privacy": privacy})
    result = go(settings, tmp_path / "run")
    if privacy == "label":
        # The ledger's filter is stricter than the plan's own accounting.
        assert result["epsilon"] <= spent(settings) <= 10 * (1 + 1e-6)
    else:
        assert result["epsilon"] == pytest.approx(10, rel=1e-4)
        assert spent(settings) == pytest.approx(result["epsilon"], rel=1e-9)
    assert result["private"] is True
    assert result["published"]["reason"]
    assert set(result["sound"]) == {"zero-out", "replace", "add-remove"}
    for name in ("student.safetensors", "generator.safetensors", "images.png", "metrics.json"):
        assert (tmp_path / "run" / name).stat().st_size > 0
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    stored = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert stored["accuracy"] is None, "held-out records of one's own are private"
    assert result["accuracy"]["student"] >= 0
    events = [json.loads(line) for line in lines]
    assert sum(event["rows"] for event in events) == 40


def test_row_numbers_of_an_archive_in_medmnists_layout_have_no_add_remove_figure(
    tiny_settings: TranscribeSettings, tiny_data: Path, tmp_path: Path
):
    """Removing a record would move most of the others to other teachers."""
    tiny = np.load(tiny_data)
    own = {f"{part}_{key}": tiny[key] for part in ("train", "test") for key in ("images", "labels")}
    np.savez(tmp_path / "pneumoniamnist.npz", **own, classes=3)
    few = {"data": str(tmp_path / "pneumoniamnist.npz"), "shards": 2, "rows": 4}
    settings = tiny_settings.model_copy(update=few)
    result = go(settings, tmp_path / "run")
    assert set(result["sound"]) == {"zero-out", "replace"}
    path = next(tmp_path.glob("*.ledger.sqlite"))
    assert note_path(path).read_text() == '["position"]'
    with Ledger.open_read_only(path) as ledger:
        costs = [release.costs[Unit.RECORD] for release in ledger.releases()]
    assert costs
    assert all(set(cost) == {Adjacency.ZERO_OUT, Adjacency.REPLACE} for cost in costs)


def test_a_broken_off_run_goes_on_without_spending_twice(
    tiny_settings: TranscribeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real, calls = Holder._privatised, []

    def breaks_at_the_third(self: Holder, query, mechanism):
        calls.append(query.id)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, query, mechanism)

    monkeypatch.setattr(Holder, "_privatised", breaks_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        go(tiny_settings, tmp_path / "run")
    result = go(tiny_settings, tmp_path / "run", resume=True)
    assert calls[2] == calls[3], "the query in flight is asked again, under its own id"
    assert len(set(calls)) == 4
    assert spent(tiny_settings) == pytest.approx(result["epsilon"], rel=1e-9)
    assert result["epsilon"] == pytest.approx(10, rel=1e-4)


def test_a_crash_between_answer_and_learning_replays_the_answer(
    tiny_settings: TranscribeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    learn, computed = DPSD.learn, []
    compute = Holder._privatised

    def counts(self: Holder, query, mechanism):
        computed.append(query.id)
        return compute(self, query, mechanism)

    def breaks(self: DPSD, query, answer):
        if self.round == 2:
            raise KeyboardInterrupt
        return learn(self, query, answer)

    monkeypatch.setattr(Holder, "_privatised", counts)
    with monkeypatch.context() as patch:
        patch.setattr(DPSD, "learn", breaks)
        with pytest.raises(KeyboardInterrupt):
            go(tiny_settings, tmp_path / "run")
    go(tiny_settings, tmp_path / "run", resume=True)
    assert len(computed) == 4, "the third answer came out of the ledger"
    assert spent(tiny_settings) == pytest.approx(10, rel=1e-4)


def test_a_finished_run_is_not_run_again(tiny_settings: TranscribeSettings, tmp_path: Path):
    first = go(tiny_settings, tmp_path / "run")
    assert go(tiny_settings, tmp_path / "run", resume=True) == first
    assert spent(tiny_settings) == pytest.approx(10, rel=1e-4)


@pytest.mark.long
def test_a_retrained_teacher_continues_the_ledger_of_its_data(
    tiny_settings: TranscribeSettings, tmp_path: Path
):
    go(tiny_settings, tmp_path / "first")
    second = go(tiny_settings.model_copy(update={"seed": 1}), tmp_path / "second")
    both = epsilon([Gaussian(gaussian_mu(10, 1e-5) * math.sqrt(2))], 1e-5)
    assert second["ledger"]["booked"] == pytest.approx(both, rel=1e-3)


def test_the_budget_of_the_data_ends_a_second_run_and_books_nothing_beyond_it(
    tiny_settings: TranscribeSettings, tmp_path: Path
):
    settings = tiny_settings.model_copy(update={"budget": 10.0})
    go(settings, tmp_path / "first")
    with pytest.raises(BudgetExhaustedError):
        go(settings.model_copy(update={"seed": 1}), tmp_path / "second")
    assert not (tmp_path / "second" / "private").exists(), "refused before anything is trained"
    assert spent(settings) == pytest.approx(10, rel=1e-4), "the first run fits exactly"


def reachable_tensors(start: object) -> Iterator[torch.Tensor]:
    """Every tensor that an object leads to, classes, functions and modules left aside."""
    todo, seen = [start], set()
    while todo:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, type | ModuleType | FunctionType | BuiltinFunctionType):
            continue
        if isinstance(thing, torch.Tensor):
            yield thing
        todo.extend(gc.get_referents(thing))


def test_the_server_side_never_holds_a_real_image(
    tiny_settings: TranscribeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sides: list[DPSD] = []
    learn, checked = DPSD.learn, []
    split = load(str(tiny_settings.data))
    real = torch.cat([split.train.images, split.test.images]).flatten(1)
    known = {bytes(image.numpy().tobytes()) for image in real}

    def spies(self: DPSD, query, answer):
        sides.append(self)
        for thing in (query, answer, self):
            for tensor in reachable_tensors(thing):
                if tensor.dtype == torch.uint8 and tensor.ndim == 4:
                    images = {bytes(row.numpy().tobytes()) for row in tensor.flatten(1)}
                    assert not images & known
                    checked.append(len(images))
                assert tensor.shape[-1:] != real.shape[1:], "no table of flattened images either"
        return learn(self, query, answer)

    monkeypatch.setattr(DPSD, "learn", spies)
    go(tiny_settings, tmp_path / "run")
    assert len(sides) == 4
    assert sum(checked) > 40, "the queried images themselves were seen by the walk"


def test_a_hopeless_plan_asks_for_force_before_anything_is_written(
    tiny_settings: TranscribeSettings, tmp_path: Path
):
    prepared = prepare(tiny_settings.model_copy(update={"epsilon": 0.1}))
    with pytest.raises(HopelessPlanError, match="--force"):
        transcribe(prepared, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not list(tmp_path.glob("*.sqlite"))


def test_resuming_with_other_settings_is_refused(tiny_settings, tmp_path: Path):
    go(tiny_settings, tmp_path / "run")
    other = tiny_settings.model_copy(update={"epsilon": 9.0})
    with pytest.raises(ConfigError, match=r"epsilon=10.0, not 9.0"):
        go(other, tmp_path / "run", resume=True)


def test_a_folder_with_another_run_is_refused(tiny_settings, tmp_path: Path):
    go(tiny_settings, tmp_path / "run")
    with pytest.raises(StorageError, match="holds another run"):
        go(tiny_settings, tmp_path / "run")


def test_given_teachers_bring_their_data_and_refuse_others(tiny_settings, tmp_path: Path):
    go(tiny_settings, tmp_path / "run")
    teachers = tmp_path / "run" / "private" / "teachers"
    given = tiny_settings.model_copy(update={"teacher": str(teachers), "data": None})
    assert go(given, tmp_path / "again")["data"] == tiny_settings.data
    with pytest.raises(ModelMismatchError, match="3 classes"):
        prepare(given.model_copy(update={"data": "digits"}))
