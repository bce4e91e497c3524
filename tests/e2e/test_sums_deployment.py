"""Masked sums over records, over TLS with registered nodes: a holder is killed in every stage."""

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fedtranscribe.data import load
from fedtranscribe.models.fixed_features import SCATTER, row_width
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.questions.moments import MomentSums
from tests.e2e.deployment import RECORDS, Deployment, train_teachers, write_records

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

COUNTS = {"clinic": 200, "hospital": 400, "institute": 800}
VICTIM = "hospital"
STAGES = ("key", "open", "mask", "sign")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Deployment]:
    """Three holders with digits of their own."""
    made = tmp_path_factory.mktemp("made")
    with Deployment(tmp_path_factory.mktemp("d") / "home") as place:
        place.make_certificates()
        place.start_superlink()
        place.await_superlink()
        first = 0
        for name, count in COUNTS.items():
            records = write_records(made / name, range(first, first + count))
            teachers = train_teachers(records)
            place.holders.append(place.make_holder(name, teachers, records))
            first += count
        place.make_roster(place.holders, colluders=0)
        for holder in place.holders:
            place.register(holder)
            place.start_service(holder)
            place.start_node(holder)
        yield place


def stored(holder: Path, statement: str) -> list[bytes]:
    """What a holder has written down of masked sums, read past its own classes to be quick."""
    path = f"file:{holder / 'book' / 'ledger.sqlite.rounds'}?mode=ro"
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(sqlite3.connect(path, uri=True, timeout=1)) as store,
    ):
        return [row[0] for row in store.execute(statement)]
    return []


def reached(holder: Path, stage: str) -> Callable[[], bool]:
    """Whether a new run has come so far at a holder: its last question, but for the key."""
    runs, rounds = "SELECT state FROM runs", "SELECT state FROM rounds ORDER BY rowid"
    if stage == "key":
        before = len(stored(holder, runs))
        return lambda: len(stored(holder, runs)) > before
    opened = len(stored(holder, rounds)) + 2

    def so_far() -> bool:
        states = stored(holder, rounds)
        if len(states) < opened:
            return False
        state = json.loads(states[-1])
        written = {"open": True, "mask": state["masked"], "sign": state["signature"]}
        return bool(written[stage])

    return so_far


def records_in_the_sum(out: Path) -> float:
    """How many records the last answer is of: every row has norm one."""
    answer = torch.load(out / "checkpoints" / "answer.pt", weights_only=True)["answer"]
    sums = MomentSums.from_vector(answer["values"][0], row_width(SCATTER, 1, 28), 10)
    return float(sums.second.trace())


def start(place: Deployment, out: Path):
    settings = {"student": "", "noise": "secagg", "holders": 3, "epsilon": 100.0}
    settings |= {"rows": 0, "teachers-share": 0.0, "descent-rounds": 0}
    return place.run(out, **settings, timeout=45.0, retries=2)


@pytest.mark.ways
def test_masked_sums_of_three_holders(place, tmp_path):
    assert place.await_run(start(place, tmp_path / "run")) == "finished:completed"
    result = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert result["answered_rounds"] == dict.fromkeys(COUNTS, 2)
    assert result["trust"].startswith("no server")
    everyone = sum(len(load(str(holder / RECORDS)).train) for holder in place.holders)
    assert records_in_the_sum(tmp_path / "run") == pytest.approx(everyone, abs=40)


@pytest.mark.parametrize("stage", STAGES)
def test_the_student_is_that_of_the_holders_in_the_sum(place, tmp_path, stage):
    victim, out = place.holders[list(COUNTS).index(VICTIM)], tmp_path / "run"
    there = reached(victim, stage)
    run = start(place, out)
    until = time.monotonic() + 300
    while not there():
        assert time.monotonic() < until, f"{stage} did not come"
        time.sleep(0.001)
    place.kill(f"service-{VICTIM}")

    ended = place.await_run(run)
    mistake = out / "error.json"
    said = mistake.read_text() if mistake.exists() else ""
    assert ended == "finished:completed", said + place.log("superlink")[-3000:].decode()
    result = json.loads((out / "metrics.json").read_text())
    assert (result["start"], result["rows"], result["stopped"]) == ("moments", 2, None)
    answered = result["answered_rounds"]
    # The key comes before both questions; what was masked may have been sent or not.
    expected = {"key": {0}, "open": {1}, "mask": {1, 2}, "sign": {2}}
    assert answered.get(VICTIM, 0) in expected[stage]
    assert [answered[name] for name in COUNTS if name != VICTIM] == [2, 2]
    inside = sum(
        len(load(str(holder / RECORDS)).train)
        for holder in place.holders
        if answered.get(holder.name, 0) == 2
    )
    assert records_in_the_sum(out) == pytest.approx(inside, abs=40)
    for holder in place.holders:
        with Ledger.open_read_only(holder / "book" / "ledger.sqlite") as ledger:
            ledger.verify()
            assert ledger.rows(result["run"]) <= 2
    place.start_service(victim)
