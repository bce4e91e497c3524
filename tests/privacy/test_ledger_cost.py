"""What opening and a query read does not grow with the ledger; counted, not timed."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ledger_cases import BUDGET, DATA, epsilon_of, release

from fedtranscribe.privacy import ledger_file
from fedtranscribe.privacy.chain import Entry, EntryKind, canonical
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.totals import EVERY

SHORT, LONG = 120, 10_000
"""Both have about as many entries after their last checkpoint; the short one has no checkpoint."""


def _made(path: Path, entries: int) -> Path:
    contents = [canonical(release(0.001 + i * 1e-6).to_json()).decode() for i in range(5)]
    with Ledger.open(path, DATA, BUDGET) as ledger, ledger._book.writing():
        for i in range((entries - 2) // 2):
            run = f"run-{i // 50}"
            ledger._book.append(EntryKind.RESERVE, contents[i % 5], run, f"q{i}", "h")
            ledger._book.append_answer(f"q{i}", run, b"answer")
    return path


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("years")
    short, long = _made(folder / "short.sqlite", SHORT), _made(folder / "long.sqlite", LONG)
    return short, long


class Work:
    """Steps of SQLite's machine, statements, and entries that were hashed."""

    def __init__(self) -> None:
        self.steps = self.hashed = 0
        self.statements: list[str] = []


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    """Count what connections do that are opened inside."""
    work = Work()
    connect, intact = ledger_file._connect, Entry.intact

    def count() -> None:
        work.steps += 1

    def watch(path: Path, mode: str) -> sqlite3.Connection:
        connection = connect(path, mode)
        connection.set_progress_handler(count, 1)
        connection.set_trace_callback(work.statements.append)
        return connection

    def hashed(entry: Entry) -> bool:
        work.hashed += 1
        return intact(entry)

    with monkeypatch.context() as patch:
        patch.setattr(ledger_file, "_connect", watch)
        patch.setattr(Entry, "intact", hashed)
        yield work


def _open(path: Path) -> None:
    Ledger.open(path, DATA, BUDGET).close()


def _open_read_only(path: Path) -> None:
    Ledger.open_read_only(path, DATA).close()


def _ask(path: Path) -> None:
    with Ledger.open(path, DATA, BUDGET) as ledger:
        ledger.usage("run-0")
        ledger.rows("run-0", besides="new")
        ledger.reserve("new", "h", release(), "run-0")
        ledger.commit("new", b"answer")
        assert ledger.reserve("new", "h", release(), "run-0").answer == b"answer"
        assert ledger.budget == BUDGET
        assert ledger.highest == BUDGET
        assert ledger.room(BUDGET.delta) > 0
        assert epsilon_of(ledger) > 0


def _copied(original: Path, folder: Path) -> Path:
    path = folder / original.name
    for end in ("", ".head"):
        content = original.with_name(original.name + end).read_bytes()
        path.with_name(path.name + end).write_bytes(content)
    return path


@pytest.mark.parametrize("do", [_open, _open_read_only, _ask])
def test_a_long_ledger_takes_no_more_work_than_a_short_one(
    ledgers: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    do: Callable[[Path], None],
) -> None:
    found: list[Work] = []
    for original in ledgers:
        path = _copied(original, tmp_path)
        with watched(monkeypatch) as work:
            do(path)
        found.append(work)
    short, long = found
    assert short.steps > 100
    assert long.steps <= 2 * short.steps
    assert long.hashed <= 2 * short.hashed
    assert len(long.statements) <= 2 * len(short.statements)


def test_a_query_of_years_ago_is_proved_between_two_checkpoints(
    ledgers: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(_copied(ledgers[1], tmp_path), DATA, BUDGET) as ledger:
        with watched(monkeypatch) as work:
            again = ledger.reserve("q2", "h", release(0.001 + 2e-6), "run-0")
        assert again.answer == b"answer"
        assert work.hashed <= 2 * (EVERY + 1), "for the reservation and for its answer"


def test_no_statement_of_a_query_scans_a_table(
    ledgers: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _copied(ledgers[1], tmp_path)
    with watched(monkeypatch) as work:
        _ask(path)
    read = {s for s in work.statements if s.startswith("SELECT")}
    assert len(read) > 5
    connection = sqlite3.connect(path)
    for statement in read:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
        # Tables of one row, or of a few: the totals and the schema.
        assert not [step for step in plan if step.startswith(("SCAN entries", "SCAN answers"))], (
            statement,
            plan,
        )
    connection.close()
