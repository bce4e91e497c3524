"""kill -9 at every stage, and several processes at one budget: real processes, real files."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ledger_cases import DELTA, RACE, epsilon_of, open_ledger, release

from fedtranscribe.privacy.accountant import epsilon_filter
from fedtranscribe.privacy.chain import EntryKind, Head, read_head
from fedtranscribe.privacy.events import Gaussian
from fedtranscribe.privacy.ledger import Ledger

SCRIPT = Path(__file__).with_name("ledger_child.py")
KILLED = -9


@contextmanager
def child(role: str, path: Path, *rest: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), role, str(path), *rest], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def test_killed_between_reserve_and_commit(path: Path) -> None:
    with child("reserve_and_hang", path) as process:
        assert first_line(process) == "q0"
        process.kill()
        assert process.wait() == KILLED
    with open_ledger(path) as ledger:
        spent = epsilon_of(ledger)
        assert spent == pytest.approx(epsilon_filter([Gaussian(0.1)], DELTA))
        assert ledger.reserve("q0", "h", release(), "run").answer is None
        assert epsilon_of(ledger) == spent
        ledger.commit("q0", b"the second attempt")
        assert ledger.verify() == ledger.head == read_head(path)


def test_killed_in_the_middle_of_many_commits(path: Path) -> None:
    with child("stream", path) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().split() for _ in range(40)]
        process.kill()
        assert process.wait() == KILLED
        rest = [line.split() for line in process.stdout if line.endswith("\n")]
    released = lines + rest
    with Ledger.open_read_only(path) as reader:
        # Whatever was once announced is there, unchanged, also before anybody fixes anything.
        for _, _, sequence, digest in released:
            reader.confirm(Head(int(sequence), digest))
    with open_ledger(path) as ledger:
        kinds = [entry.kind for entry in ledger.entries()]
        reserved, committed = kinds.count(EntryKind.RESERVE), kinds.count(EntryKind.COMMIT)
        assert reserved - committed in (0, 1)
        assert committed >= len(released) >= 40
        for query_id, digest, *_ in released:
            answer = ledger.reserve(query_id, "h", release(0.01), "run").answer
            assert answer is not None
            assert hashlib.sha256(answer).hexdigest() == digest
        expected = epsilon_filter([Gaussian(0.01, reserved)], DELTA)
        assert epsilon_of(ledger) == pytest.approx(expected)
        assert ledger.verify() == ledger.head == read_head(path)


def test_killed_between_database_and_head_file(path: Path) -> None:
    with child("die_before_head", path) as process:
        assert process.wait(timeout=60) == KILLED
    lagging = read_head(path)
    assert lagging is not None
    with Ledger.open_read_only(path) as reader:
        assert reader.head.sequence == lagging.sequence + 1
        assert len(reader.releases()) == 1
    with open_ledger(path) as ledger:
        ledger.confirm(lagging)
        assert read_head(path) == ledger.head == ledger.verify()
        assert ledger.reserve("q0", "h", release(), "run").answer is None
        assert len(ledger.releases()) == 1


def test_killed_inside_a_transaction(path: Path) -> None:
    with child("die_inside", path) as process:
        assert process.wait(timeout=60) == KILLED
    with open_ledger(path) as ledger:
        assert ledger.releases() == []
        assert ledger.verify() == ledger.head == read_head(path)


@pytest.mark.long
def test_processes_together_never_exceed_the_budget(path: Path) -> None:
    names = [f"p{i}" for i in range(4)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), "race", str(path), name],
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    # All are let go at once, so that creation of the file is raced for as well.
    path.with_name("go").touch()
    said = [process.communicate(timeout=120)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert all(facts[-1] == "exhausted" for facts in said)
    booked = sorted(fact for facts in said for fact in facts if fact != "exhausted")
    assert len(booked) == 24
    with open_ledger(path, None) as ledger:
        in_book = [e.query_id for e in ledger.entries() if e.kind == EntryKind.RESERVE]
        assert sorted(in_book) == booked
        assert epsilon_of(ledger) == pytest.approx(RACE.epsilon)
        assert [entry.kind for entry in ledger.entries()].count(EntryKind.CREATED) == 1
        assert ledger.verify() == ledger.head == read_head(path)
