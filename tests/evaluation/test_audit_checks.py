"""Faults of bookkeeping, planted and found: rows answered twice, teachers that do not fit."""

import dataclasses
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.data import load
from fedtranscribe.errors import AuditError, CorruptLedgerError, StorageError
from fedtranscribe.evaluation.audit_checks import (
    check_events,
    check_ledger,
    check_teachers,
    claim_of,
    read_events,
    worst,
)
from fedtranscribe.evaluation.findings import expect_sound
from fedtranscribe.holder.answering import Holder
from fedtranscribe.models.ensemble import Ensemble
from fedtranscribe.models.teacher_training import shard_file
from fedtranscribe.privacy.calibrate import EnsembleLayout
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, RowAnswer, Unit
from fedtranscribe.questions.kinds import of_teachers
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.rows import ImageQuery
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from tests.conftest import TINY_DPSD, TINY_TEACHERS
from tests.mechanisms_for import local, noisy_mean_rows
from tests.results import changed, result_of

RUN = "run-of-a-test"


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    """A true run of 40 rows; to be copied."""
    folder = tmp_path_factory.mktemp("made")
    settings = TranscribeSettings(
        data=str(tiny_archive(folder)),
        teacher="cnn-small",
        student="cnn-small",
        device="cpu",
        shards=20,
        rows=40,
        ledger=folder / "book.sqlite",
        dpsd=TINY_DPSD,
        teachers=TINY_TEACHERS,
    )
    return folder, transcribe(prepare(settings), folder / "run", force=True).result


def tiny_archive(folder):
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    images = rng.integers(0, 255, (60, 28, 28)).astype(np.uint8)
    ids = np.array([f"patient-{i}" for i in range(60)])
    np.savez(folder / "tiny.npz", images=images, labels=labels, ids=ids, classes=3)
    return folder / "tiny.npz"


@pytest.fixture
def made(made_once, tmp_path):
    """The run's folder, its ledger and its result; a test may spoil the files."""
    folder, result = made_once
    shutil.copytree(folder, tmp_path / "made")
    return tmp_path / "made" / "run", tmp_path / "made" / "book.sqlite", result


def query(name: str, rows: int = 4) -> ImageQuery:
    images = torch.arange(rows).view(-1, 1, 1, 1).expand(-1, 1, 28, 28).to(torch.uint8)
    return ImageQuery(name, Kind.VOTE, images, torch.arange(3).expand(rows, 3))


def holder_of(run, ledger) -> Holder:
    teachers = Ensemble(run / "private" / "teachers", torch.device("cpu"))
    return Holder(of_teachers(teachers), ledger, RUN, positional_ids=False)


def cost(rows: int) -> MechanismRelease:
    return noisy_mean_rows(EnsembleLayout(20), 0.5, RowAnswer.VOTE).release(
        rows, positional_ids=False
    )


# ---------------------------------------------------------------- the same row answered twice


def test_the_books_of_an_honest_run(made):
    run, book, result = made
    given = read_events(run)
    assert check_events(result, given).ok
    with Ledger.open_read_only(book) as ledger:
        check = check_ledger(ledger, result.run, result.rows, given)
    assert check.ok
    assert check.words == "40 rows in 4 queries, each charged once"
    expect_sound([], [check])


def test_events_that_cost_less_than_what_was_booked(made):
    run, book, result = made
    cheaper = {
        holder: tuple(replace(release, costs=cost(release.rows).costs) for release in releases)
        for holder, releases in read_events(run).items()
    }
    with Ledger.open_read_only(book) as ledger:
        check = check_ledger(ledger, result.run, result.rows, cheaper)
    assert check.ok is False
    assert "another cost" in check.words
    dropped = {holder: releases[1:] for holder, releases in read_events(run).items()}
    fewer = changed(result, epsilon=worst(dropped, Unit.RECORD, Adjacency.ZERO_OUT, 1e-5))
    check = check_events(fewer, dropped)
    assert check.ok is False
    assert "some are not booked" in check.words


def test_rows_that_were_answered_once_more_under_another_id(made):
    run, book, result = made
    with Ledger.open(book, "npz:tiny") as ledger:
        holder = _same_run(holder_of(run, ledger), result.run)
        holder.answer(query("once-more", 10), local(0.5))
        check = check_ledger(ledger, result.run, result.rows)
    assert check.ok is False
    assert "charged for 50 rows, the run says 40: rows were answered twice" in check.words
    with pytest.raises(AuditError, match="charged for 50 rows"):
        expect_sound([], [check])


def _same_run(holder: Holder, run: str) -> Holder:
    holder.run = run
    return holder


def test_an_answer_that_holds_more_rows_than_were_charged(made):
    _, book, _ = made
    with Ledger.open(book, "npz:tiny") as ledger:
        ledger.reserve("q1", "hash-1", cost(4), RUN)
        ledger.commit("q1", np.zeros(4 * 3, dtype=np.float32).tobytes())
        assert check_ledger(ledger, RUN, 4, k=3).ok
        ledger.reserve("q2", "hash-2", cost(4), RUN)
        ledger.commit("q2", np.zeros(8 * 3, dtype=np.float32).tobytes())
        check = check_ledger(ledger, RUN, 8, k=3)
        assert check.ok is False
        assert check.words == "q2 was charged for 4 rows, its answer holds 8"
        ledger.reserve("q3", "hash-1", cost(4), RUN)
        assert "booked under two ids" in check_ledger(ledger, RUN, 12).words


def test_a_damaged_book_is_a_failed_check():
    class Damaged:
        def verify(self):
            raise CorruptLedgerError("entry 3 was edited")

    assert check_ledger(Damaged(), "run", 1).words == "entry 3 was edited"  # type: ignore[arg-type]


def test_events_and_result_have_to_agree(made):
    run, _, result = made
    given = read_events(run)
    assert claim_of(result, given).adjacency is Adjacency.ADD_REMOVE
    stated = result.guarantee.epsilon
    assert claim_of(result, given).epsilon == pytest.approx(stated)
    assert claim_of(changed(result, private=False), given).epsilon is None
    assert check_events(changed(result, epsilon=stated / 2), given).ok is False
    assert check_events(changed(result, epsilon=None), given).ok is False
    assert "answered twice" in check_events(changed(result, rows=30), given).words
    assert check_events(result, {}).ok is False
    assert check_events(result_of(epsilon=None), {}).ok is None
    (run / "events.jsonl").write_text('{"rows": 3}\n')
    with pytest.raises(StorageError, match=r"events\.jsonl is damaged"):
        read_events(run)


def test_events_of_several_holders_are_read_by_name(tmp_path):
    mechanism = noisy_mean_rows(EnsembleLayout(40, 2), 0.5, RowAnswer.VOTE)
    lines = [
        json.dumps({"holder": name, "release": mechanism.release(n, positional_ids=True).to_json()})
        for name, n in (("a", 10), ("b", 30))
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    given = read_events(tmp_path)
    assert {name: [r.rows for r in releases] for name, releases in given.items()} == {
        "a": [10],
        "b": [30],
    }
    claim = claim_of(result_of(private=True), given)
    assert (claim.unit, claim.adjacency) == (Unit.RECORD, Adjacency.ZERO_OUT)
    alone = claim_of(result_of(private=True), {"b": given["b"]})
    assert claim.epsilon == alone.epsilon


# ---------------------------------------------------------------- teachers


def test_teachers_have_to_fit_manifest_records_and_claim(made):
    run, _, result = made
    folder, records = run / "private" / "teachers", load(str(run.parent / "tiny.npz")).train
    fits = check_teachers(folder, records, result.teachers)
    assert (fits.ok, fits.private) == (True, True)
    assert "counts on 40 teachers" in check_teachers(folder, records, 40).words
    other = dataclasses.replace(records, data_id="npz:other")
    assert check_teachers(folder, other, result.teachers).ok is None
    first = next(i for i in range(20) if shard_file(folder, i).exists())
    shard_file(folder, first).unlink()
    assert check_teachers(folder, records, result.teachers).ok is False
