"""A whole synthesis: what it writes, what it books, how it is interrupted and resumed."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from synthesis_settings import told

from fedtranscribe.config import SynthesizeSettings
from fedtranscribe.data import load
from fedtranscribe.errors import BudgetExhaustedError, ConfigError, QueryConflictError, StorageError
from fedtranscribe.models.diffusion import load_synthesizer
from fedtranscribe.noise.sources import SeededNoise
from fedtranscribe.privacy.accountant import sound_table
from fedtranscribe.privacy.chain import EntryKind
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.results.run_directory import RunDirectory
from fedtranscribe.trainers.dp_promise import DpPromise
from fedtranscribe.trainers.preparation import prepare
from fedtranscribe.trainers.synthesize import opened_ledger, synthesize
from fedtranscribe.trainers.training import Training

STEPS = 6


def go(settings: SynthesizeSettings, out: Path, **others: Any) -> dict[str, Any]:
    return synthesize(prepare(settings), out, **others).to_json()


@contextmanager
def book(settings: SynthesizeSettings) -> Iterator[Ledger]:
    assert settings.ledger is not None
    with Ledger.open_read_only(settings.ledger) as ledger:
        ledger.verify()
        yield ledger


def reservations(settings: SynthesizeSettings) -> int:
    with book(settings) as ledger:
        return sum(entry.kind == EntryKind.RESERVE for entry in ledger.entries())


def breaking(monkeypatch: pytest.MonkeyPatch, after: int) -> list[str]:
    """Let training die before its step number `after` + 1; returns the stages of steps taken."""
    real, taken = DpPromise._one_step, []

    def step(self: DpPromise) -> None:
        if len(taken) == after:
            raise KeyboardInterrupt
        taken.append(self.stage.value)
        real(self)

    monkeypatch.setattr(DpPromise, "_one_step", step)
    return taken


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# ---------------------------------------------------------------- a private run


def test_a_run_writes_what_it_cost_and_books_it_once(tiny_synthesis, tmp_path: Path):
    said: list[str] = []
    result = go(tiny_synthesis, tmp_path / "run", say=said.append)
    assert result["private"] is True
    assert result["stamp"] is None
    assert 0.99 < result["epsilon"] <= 1
    assert result["sound"]["zero-out"] == result["epsilon"]
    assert result["sound"]["replace"] > result["epsilon"]
    assert result["published"]["epsilon"] > 0
    assert "no guarantee" in result["published"]["reason"]
    assert result["steps"] == {"phase I": 3, "phase II": 3}
    assert (result["unit"], result["adjacency"], result["delta"]) == ("record", "zero-out", 1e-5)
    assert result["caveats"] == []
    stored = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert stored | {"not_private": []} == result | {"accuracy": None}
    with book(tiny_synthesis) as ledger:
        booked = [
            e.kind for e in ledger.entries() if e.kind in (EntryKind.RESERVE, EntryKind.COMMIT)
        ]
        assert booked == [EntryKind.RESERVE, EntryKind.COMMIT]
        assert ledger.answer(f"{result['run']}/training") == result["sha256"].encode()
        total = ledger.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
        assert total.epsilon == pytest.approx(result["epsilon"])
        assert result["ledger"]["booked"] == pytest.approx(total.epsilon)
    assert any("this run costs ε" in line and "published formula" in line for line in said)
    assert any("0.0 GB for images, gradients of 4 records at a time" in line for line in said)


def test_the_events_of_a_run_cost_what_its_result_says(tiny_synthesis, tmp_path: Path):
    result = go(tiny_synthesis, tmp_path / "run")
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    releases = [MechanismRelease.from_json(json.loads(line)) for line in lines]
    found = sound_table(releases, Unit.RECORD, 1e-5)
    assert {adjacency.value: value for adjacency, value in found.items()} == result["sound"]


@pytest.mark.usefixtures("figures")
def test_the_network_can_be_loaded_and_its_folder_holds_nothing_private(
    tiny_synthesis, tmp_path: Path
):
    seen: list[int] = []

    def judge(images, labels, test, device, progress) -> float:
        seen.extend([len(images), int(labels.max()), len(test)])
        return 0.5

    result = go(tiny_synthesis, tmp_path / "run", judge=judge)
    assert seen == [60, 2, 12]
    assert result["accuracy"] == {"downstream": 0.5}
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["accuracy"] is None
    model = load_synthesizer(tmp_path / "run" / "denoiser.safetensors")
    assert (model.classes, model.denoiser.size, model.schedule.steps) == (3, 16, 1000)
    assert files(tmp_path / "run") == {
        *("config.toml", "denoiser.safetensors", "events.jsonl", "images.png", "metrics.json"),
        *("progress.jsonl", "private/accuracy.json"),
    }


def test_progress_is_counts_and_nothing_else(tiny_synthesis, tmp_path: Path):
    go(tiny_synthesis, tmp_path / "run")
    lines = (tmp_path / "run" / "progress.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert all(set(entry) == {"time", "stage", "done", "total"} for entry in entries)
    assert [(e["stage"], e["done"], e["total"]) for e in entries] == [
        *[("phase I", done, 3) for done in (1, 2, 3)],
        *[("phase II", done, 3) for done in (1, 2, 3)],
    ]


def test_accuracy_on_a_published_set_may_be_told(tiny_synthesis, tmp_path: Path, small_data: Path):
    prepared = prepare(told(tiny_synthesis, data="digits"), split=load(str(small_data)))
    result = synthesize(prepared, tmp_path / "run", judge=lambda *_: 0.25).to_json()
    stored = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert stored["accuracy"] == result["accuracy"] == {"downstream": 0.25}
    assert stored["accuracy_on"] == "held-out images of a public benchmark"


# ---------------------------------------------------------------- what is not private


def test_without_noise_nothing_is_booked_and_everything_says_so(tiny_synthesis, tmp_path: Path):
    said: list[str] = []
    settings = told(tiny_synthesis, noise=False)
    result = go(settings, tmp_path / "run", say=said.append)
    assert result["private"] is False
    assert result["epsilon"] is None
    assert result["published"] is None
    assert "NOT PRIVATE" in result["stamp"]
    assert "without clipping and noise" in result["caveats"][0]
    assert any(line.startswith("NOT PRIVATE") for line in said)
    assert settings.ledger is not None
    assert not settings.ledger.exists()
    assert "events.jsonl" not in files(tmp_path / "run")


def test_algorithm_1_as_printed_has_both_figures_and_no_guarantee(tiny_synthesis, tmp_path: Path):
    said: list[str] = []
    settings = told(tiny_synthesis, calibrate_by="published")
    result = go(settings, tmp_path / "run", say=said.append)
    assert result["private"] is False
    assert result["epsilon"] is None
    assert 0.99 < result["published"]["epsilon"] <= 1
    assert "as published has no guarantee" in result["caveats"][0]
    assert any("NO guarantee" in line and "prints" in line for line in said)
    assert settings.ledger is not None
    assert not settings.ledger.exists()


@pytest.mark.long
def test_as_published_without_phase_i_is_dp_sgd_and_costs_what_it_costs(tiny_synthesis):
    nothing_of_it = dict.fromkeys(("boundary", "phase1_batch", "phase1_epochs", "phase1_lr"))
    prepared = prepare(
        told(tiny_synthesis, calibrate_by="published", phase1=False, **nothing_of_it)
    )
    assert prepared.plan.release is not None
    assert prepared.plan.published is not None
    assert prepared.cost.stated is not None
    assert prepared.cost.stated.epsilon > prepared.plan.published.epsilon
    assert prepared.trainer().caveats() == ()


def test_seeded_noise_is_not_private(tiny_synthesis, tmp_path: Path):
    result = go(tiny_synthesis, tmp_path / "run", noise=SeededNoise(0))
    assert result["private"] is False
    assert "seed" in result["caveats"][0]


# ---------------------------------------------------------------- interrupt and resume


@pytest.mark.parametrize("after", [0, 4])
def test_an_interrupted_run_goes_on_under_its_one_reservation(
    tiny_synthesis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
):
    with monkeypatch.context() as patch:
        taken = breaking(patch, after)
        with pytest.raises(KeyboardInterrupt):
            go(tiny_synthesis, tmp_path / "run")
    outside = {name for name in files(tmp_path / "run") if not name.startswith("private/")}
    assert outside <= {"config.toml", "events.jsonl", "progress.jsonl"}
    assert reservations(tiny_synthesis) == 1
    with monkeypatch.context() as patch:
        rest = breaking(patch, 100)
        result = go(tiny_synthesis, tmp_path / "run", resume=True)
    assert len(taken) + len(rest) == STEPS, "a checkpoint after every step: none is redone"
    assert reservations(tiny_synthesis) == 1
    assert 0.99 < result["ledger"]["booked"] <= 1
    assert "private/checkpoint.pt" not in files(tmp_path / "run")


def test_steps_after_the_last_checkpoint_are_redone(
    tiny_synthesis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = told(tiny_synthesis, checkpoint_seconds=1e6)
    with monkeypatch.context() as patch:
        breaking(patch, 4)
        with pytest.raises(KeyboardInterrupt):
            go(settings, tmp_path / "run")
    assert "private/checkpoint.pt" not in files(tmp_path / "run")
    with monkeypatch.context() as patch:
        taken = breaking(patch, 100)
        go(settings, tmp_path / "run", resume=True)
    assert len(taken) == STEPS
    assert reservations(settings) == 1


def test_a_crash_after_the_commit_gives_out_what_was_committed(
    tiny_synthesis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fedtranscribe.trainers.synthesize.load_synthesizer", full)
        with pytest.raises(OSError, match="No space"):
            go(tiny_synthesis, tmp_path / "run")
    with book(tiny_synthesis) as ledger:
        run = ledger.runs()[0].run
        committed = ledger.answer(f"{run}/training")
    result = go(tiny_synthesis, tmp_path / "run", resume=True)
    assert result["sha256"].encode() == committed


def test_a_second_result_of_one_training_is_refused(
    tiny_synthesis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Going on from an older checkpoint once the result is out would be a second release."""
    with monkeypatch.context() as patch:
        patch.setattr("fedtranscribe.trainers.synthesize.load_synthesizer", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            go(tiny_synthesis, tmp_path / "run")
    (tmp_path / "run" / "private" / "checkpoint.pt").unlink()
    with pytest.raises(QueryConflictError, match="committed before"):
        go(tiny_synthesis, tmp_path / "run", resume=True)


def test_a_finished_run_is_not_run_again(tiny_synthesis, tmp_path: Path):
    first = go(tiny_synthesis, tmp_path / "run", judge=lambda *_: 0.5)
    assert go(tiny_synthesis, tmp_path / "run", resume=True) == first
    assert reservations(tiny_synthesis) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": 2.0}, "epsilon=1.0, not 2.0"),
        ({"boundary": 990}, "dp_promise="),
        ({"seed": 1}, "seed=0, not 1"),
    ],
)
def test_other_settings_cannot_resume_a_run(
    tiny_synthesis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict, words: str
):
    with monkeypatch.context() as patch:
        breaking(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            go(tiny_synthesis, tmp_path / "run")
    # Prepared beforehand: what counts is that the folder refuses it.
    prepared = prepare(tiny_synthesis)
    other = told(tiny_synthesis, **changes)
    object.__setattr__(prepared, "settings", other)
    with pytest.raises(ConfigError, match=words):
        synthesize(prepared, tmp_path / "run", resume=True)
    assert reservations(tiny_synthesis) == 1


def test_where_memory_ran_out_the_physical_batch_may_change(
    tiny_synthesis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        breaking(patch, 4)
        with pytest.raises(KeyboardInterrupt):
            go(tiny_synthesis, tmp_path / "run")
    sizes: list[int | None] = []
    real = DpPromise._phase2_step

    def spy(self: DpPromise) -> None:
        real(self)
        sizes.append(self.state()["physical_batch"]["phase II"])

    monkeypatch.setattr(DpPromise, "_phase2_step", spy)
    go(told(tiny_synthesis, physical_batch=1), tmp_path / "run", resume=True)
    assert sizes == [1, 1]


def test_a_checkpoint_of_another_plan_is_refused(
    tiny_synthesis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, changes in (("one", {}), ("two", {"noise": False})):
        with monkeypatch.context() as patch:
            breaking(patch, 2)
            with pytest.raises(KeyboardInterrupt):
                go(told(tiny_synthesis, **changes), tmp_path / name)
    private = tmp_path / "one" / "private" / "checkpoint.pt"
    private.replace(tmp_path / "two" / "private" / "checkpoint.pt")
    with pytest.raises(ConfigError, match="noise_multiplier"):
        go(told(tiny_synthesis, noise=False), tmp_path / "two", resume=True)


def test_a_damaged_checkpoint_is_named(
    tiny_synthesis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        breaking(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            go(tiny_synthesis, tmp_path / "run")
    checkpoint = tmp_path / "run" / "private" / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    with pytest.raises(StorageError, match=r"checkpoint\.pt is damaged"):
        go(tiny_synthesis, tmp_path / "run", resume=True)
    torch.save({"nothing": 1}, checkpoint)
    with pytest.raises(StorageError, match=r"checkpoint\.pt is damaged"):
        go(tiny_synthesis, tmp_path / "run", resume=True)


# ---------------------------------------------------------------- the budget of the data


def test_a_budget_without_room_refuses_a_run_before_anything_is_trained(
    tiny_synthesis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = told(tiny_synthesis, budget=0.5)
    taken = breaking(monkeypatch, 0)
    with pytest.raises(BudgetExhaustedError):
        go(settings, tmp_path / "run")
    assert taken == []
    assert files(tmp_path / "run") == set()
    assert reservations(settings) == 0


def test_a_folder_in_use_is_refused_before_the_ledger_is_touched(tiny_synthesis, tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(StorageError, match="not empty"):
        go(tiny_synthesis, tmp_path / "run")
    assert tiny_synthesis.ledger is not None
    assert not tiny_synthesis.ledger.exists()
    go(told(tiny_synthesis, noise=False), tmp_path / "other")
    with pytest.raises(StorageError, match="add --resume"):
        go(told(tiny_synthesis, noise=False), tmp_path / "other")


# ---------------------------------------------------------------- driven from outside


def test_a_service_can_drive_a_training_step_by_step(tiny_synthesis, tmp_path: Path):
    prepared = prepare(tiny_synthesis)
    run = RunDirectory.create(tmp_path / "run", tiny_synthesis)
    open_ledger = partial(opened_ledger, prepared, run.run_id)
    training = Training(prepared, prepared.trainer(), run, open_ledger)
    assert (training.progress.stage, training.progress.steps_done) == ("phase I", 0)
    training.start()
    assert training.result is None
    seen = []
    while not training.step():
        seen.append(training.progress.steps_done)
    assert seen == [1, 2, 3, 4, 5]
    assert training.progress.finished
    trained = training.finish()
    assert training.result == trained
    assert trained.head is not None
    assert trained.path.exists()
    assert training.caveats == ()


def test_diverged_weights_are_not_committed(
    tiny_synthesis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real = DpPromise._phase2_step

    def explodes(self: DpPromise) -> None:
        real(self)
        for parameter in self.ema.network.parameters():
            parameter.fill_(float("nan"))

    monkeypatch.setattr(DpPromise, "_phase2_step", explodes)
    with pytest.raises(ConfigError, match="diverged"):
        go(tiny_synthesis, tmp_path / "run")
    with book(tiny_synthesis) as ledger:
        assert ledger.answer(f"{ledger.runs()[0].run}/training") is None
