"""Reserve, commit, replay, budgets and totals, in one process."""

import math
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ledger_cases import BUDGET, DATA, DELTA, RECORD, ZERO_OUT, answered, epsilon_of, open_ledger
from ledger_cases import release as make_release

from fedtranscribe.errors import (
    BudgetExhaustedError,
    ConfigError,
    ForeignLedgerError,
    LedgerError,
    QueryConflictError,
    StorageError,
    UnsupportedAdjacencyError,
)
from fedtranscribe.privacy.accountant import epsilon_filter
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.chain import EntryKind, canonical
from fedtranscribe.privacy.events import Gaussian
from fedtranscribe.privacy.label_events import RandomizedResponse
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, Unit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "ledger.sqlite"


def test_reserve_commit_replay(path: Path) -> None:
    with open_ledger(path) as ledger:
        assert ledger.reserve("q1", "h1", make_release(), "run").answer is None
        head = ledger.commit("q1", b"\x00private\xff")
        assert head == ledger.head == ledger.verify()
        spent = epsilon_of(ledger)
        again = ledger.reserve("q1", "h1", make_release(), "run")
        assert (again.query_id, again.answer) == ("q1", b"\x00private\xff")
        assert ledger.head == head
    with open_ledger(path) as reopened:
        assert reopened.reserve("q1", "h1", make_release(), "run").answer == b"\x00private\xff"
        assert (
            epsilon_of(reopened) == spent == pytest.approx(epsilon_filter([Gaussian(0.1)], DELTA))
        )
        assert reopened.head == head


def test_a_reservation_without_answer_is_computed_again_and_charged_once(path: Path) -> None:
    with open_ledger(path) as ledger:
        ledger.reserve("q1", "h1", make_release(), "run")
        head, spent = ledger.head, epsilon_of(ledger)
        assert ledger.reserve("q1", "h1", make_release(), "run").answer is None
        assert (ledger.head, epsilon_of(ledger)) == (head, spent)
        assert spent > 0


@pytest.mark.parametrize(
    ("query_hash", "mu", "run"), [("other", 0.1, "run"), ("h1", 0.2, "run"), ("h1", 0.1, "other")]
)
@pytest.mark.parametrize("committed", [False, True])
def test_same_id_with_anything_different_is_refused(
    path: Path, query_hash: str, mu: float, run: str, committed: bool
) -> None:
    with open_ledger(path) as ledger:
        ledger.reserve("q1", "h1", make_release(), "run")
        if committed:
            ledger.commit("q1", b"a")
        head = ledger.head
        with pytest.raises(QueryConflictError, match="q1"):
            ledger.reserve("q1", query_hash, make_release(mu), run)
        assert ledger.head == head == ledger.verify()


def test_commit_is_idempotent_and_final(path: Path) -> None:
    with open_ledger(path) as ledger:
        ledger.reserve("q1", "h1", make_release(), "run")
        head = ledger.commit("q1", b"a")
        assert ledger.commit("q1", b"a") == head
        with pytest.raises(QueryConflictError, match="another stored answer"):
            ledger.commit("q1", b"b")
        assert ledger.reserve("q1", "h1", make_release(), "run").answer == b"a"
        assert ledger.verify() == head


def test_an_empty_answer_is_an_answer(path: Path) -> None:
    with open_ledger(path) as ledger:
        answered(ledger, "q1", b"")
        assert ledger.reserve("q1", "hash-q1", make_release(), "run").answer == b""


def test_commit_without_reservation(path: Path) -> None:
    with open_ledger(path) as ledger, pytest.raises(LedgerError, match="q1 has no reservation"):
        ledger.commit("q1", b"a")


@pytest.mark.parametrize("bad", ["", "a\nb", "\0", "\ud800"])
def test_ids_are_printable_text(path: Path, bad: str) -> None:
    with open_ledger(path) as ledger:
        head = ledger.head
        for arguments in ((bad, "h", "run"), ("q", bad, "run"), ("q", "h", bad)):
            with pytest.raises(ConfigError, match="printable"):
                ledger.reserve(arguments[0], arguments[1], make_release(), arguments[2])
        assert ledger.head == head
    with pytest.raises(ConfigError, match="data_id"):
        Ledger.open(path, bad)


def test_budget_is_filled_to_the_brim_and_then_books_nothing(path: Path) -> None:
    limit = epsilon_filter([Gaussian(0.5, 4)], DELTA)
    with open_ledger(path, Budget(limit, DELTA, RECORD, ZERO_OUT)) as ledger:
        for i in range(4):
            ledger.reserve(f"q{i}", "h", make_release(0.5), "run")
        head = ledger.head
        with pytest.raises(BudgetExhaustedError, match="nothing was booked"):
            ledger.reserve("q4", "h", make_release(0.01), "run")
        assert (ledger.head, len(ledger.releases())) == (head, 4)
        assert epsilon_of(ledger) == pytest.approx(limit)
        assert ledger.reserve("q0", "h", make_release(0.5), "run").answer is None


def test_one_release_that_alone_exceeds_the_budget(path: Path) -> None:
    with open_ledger(path) as ledger:
        with pytest.raises(BudgetExhaustedError, match="<= 10 "):
            ledger.reserve("q", "h", make_release(0.1, rows=50_000), "run")
        assert ledger.releases() == []
        ledger.reserve("q", "other hash: the id was never bound", make_release(), "run")


def test_without_a_budget_nothing_is_answered(path: Path) -> None:
    with open_ledger(path, None) as ledger:
        assert ledger.budget is None
        with pytest.raises(BudgetExhaustedError, match="open it with a budget"):
            ledger.reserve("q", "h", make_release(), "run")
        ledger.set_budget(BUDGET)
        ledger.reserve("q", "h", make_release(), "run")
        assert len(ledger.releases()) == 1


def test_every_budget_change_is_an_entry(path: Path) -> None:
    low = Budget(0.5, DELTA, RECORD, ZERO_OUT)
    with open_ledger(path) as ledger:
        answered(ledger, "q1")
    with open_ledger(path) as ledger:
        assert [entry.kind for entry in ledger.entries()].count(EntryKind.BUDGET) == 1
    with open_ledger(path, low) as ledger:
        ledger.reserve("q2", "h", make_release(0.01), "run")
        with pytest.raises(BudgetExhaustedError):
            ledger.reserve("q3", "h", make_release(0.5), "run")
    with open_ledger(path, None) as ledger:
        assert ledger.budget == low
        ledger.set_budget(Budget(20.0, DELTA, RECORD, ZERO_OUT))
        ledger.reserve("q3", "h", make_release(0.5), "run")
        written = [entry.content for entry in ledger.entries() if entry.kind == EntryKind.BUDGET]
        assert [content.split('"epsilon":')[1].split(",")[0] for content in written] == [
            "10",
            "0.5",
            "20",
        ]
        assert ledger.verify() == ledger.head


def test_a_limit_below_what_is_spent_stops_answers_but_not_replay(path: Path) -> None:
    with open_ledger(path) as ledger:
        answered(ledger, "q1", b"a")
        ledger.set_budget(Budget(1e-3, DELTA, RECORD, ZERO_OUT))
        with pytest.raises(BudgetExhaustedError):
            ledger.reserve("q2", "h", make_release(1e-9), "run")
        assert ledger.reserve("q1", "hash-q1", make_release(), "run").answer == b"a"


def test_another_process_lowering_the_limit_counts_at_once(path: Path) -> None:
    with open_ledger(path) as ledger, open_ledger(path) as other:
        other.set_budget(Budget(1e-3, DELTA, RECORD, ZERO_OUT))
        with pytest.raises(BudgetExhaustedError):
            ledger.reserve("q", "h", make_release(), "run")


def test_adjacency_that_the_release_lacks(path: Path) -> None:
    wrong = Budget(10.0, DELTA, RECORD, Adjacency.ADD_REMOVE)
    with open_ledger(path, wrong) as ledger:
        with pytest.raises(UnsupportedAdjacencyError):
            ledger.reserve("q", "h", make_release(), "run")
        assert ledger.releases() == []
        ledger.set_budget(BUDGET)
        ledger.reserve("q", "h", make_release(), "run")
        head = ledger.head
        for budget in (wrong, Budget(10.0, DELTA, Unit.HOLDER, ZERO_OUT)):
            with pytest.raises(UnsupportedAdjacencyError):
                ledger.set_budget(budget)
        with pytest.raises(UnsupportedAdjacencyError):
            ledger.total(DELTA, Unit.HOLDER, ZERO_OUT)
        assert (ledger.head, ledger.budget) == (head, BUDGET)


@pytest.mark.parametrize(
    ("epsilon", "delta", "names"),
    [(0.0, DELTA, "epsilon"), (-1.0, DELTA, "epsilon"), (math.nan, DELTA, "epsilon")]
    + [(1.0, bad, "delta") for bad in (0.0, 1.0, -0.1, math.nan)],
)
def test_budget_values(epsilon: float, delta: float, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        Budget(epsilon, delta, RECORD, ZERO_OUT)


def test_a_total_that_is_no_number_is_refused() -> None:
    assert not BUDGET.allows(math.nan)


def test_totals_over_runs(path: Path) -> None:
    before = datetime.now(UTC)
    with open_ledger(path) as ledger:
        ledger.reserve("a1", "h", make_release(0.1, rows=10), "run a")
        ledger.reserve("b1", "h", make_release(0.1, rows=20), "run b")
        ledger.reserve("a2", "h", make_release(0.2, rows=3), "run a")
        runs = ledger.runs()
        assert [(summary.run, summary.rows) for summary in runs] == [("run a", 13), ("run b", 20)]
        first = datetime.fromisoformat(runs[0].first)
        assert first.utcoffset() == timedelta(0)
        assert before <= first <= datetime.now(UTC)
        assert ledger.releases("run a") == [make_release(0.1, 10), make_release(0.2, 3)]
        assert len(ledger.releases()) == 3
        total = ledger.total(DELTA, RECORD, ZERO_OUT)
        mu = math.sqrt(30 * 0.1**2 + 3 * 0.2**2)
        assert total.epsilon == pytest.approx(epsilon_filter([Gaussian(mu)], DELTA), rel=1e-6)
        assert (total.unit, total.adjacency, total.delta) == (RECORD, ZERO_OUT, DELTA)


def test_the_first_booking_decides_the_filter(path: Path) -> None:
    label = RandomizedResponse(0.1, 10, 5)
    labels = MechanismRelease("labels", 5, {RECORD: {ZERO_OUT: label}})
    rows = make_release(0.1, rows=10)
    gaussian = Gaussian(0.1, 10)
    totals = []
    for name, order in (("a", (rows, labels, rows)), ("b", (labels, rows, rows))):
        with open_ledger(path.with_name(name)) as ledger:
            for i, release in enumerate(order):
                ledger.reserve(f"q{i}", "h", release, "run")
            totals.append(epsilon_of(ledger))
    expected = [
        epsilon_filter([gaussian, label, gaussian], DELTA),
        epsilon_filter([label, gaussian, gaussian], DELTA),
    ]
    assert totals == pytest.approx(expected)
    assert totals[0] < totals[1]


def test_an_unused_ledger_has_spent_nothing(path: Path) -> None:
    with open_ledger(path) as ledger:
        assert epsilon_of(ledger) == 0.0
        assert (ledger.releases(), ledger.runs()) == ([], [])


def test_data_id(path: Path) -> None:
    with open_ledger(path) as ledger:
        assert ledger.data_id == DATA
    before = path.read_bytes()
    with pytest.raises(ForeignLedgerError, match=r"'mnist'.*'digits'"):
        Ledger.open(path, "mnist", BUDGET)
    with pytest.raises(ForeignLedgerError):
        Ledger.open_read_only(path, "mnist")
    assert path.read_bytes() == before


def test_thousands_of_entries_stay_fast(path: Path) -> None:
    with open_ledger(path, Budget(1e4, DELTA, RECORD, ZERO_OUT)) as ledger:
        equal = canonical(make_release(0.01, 256).to_json()).decode()
        with ledger._book.writing():
            for i in range(4_000):
                ledger._book.append(EntryKind.RESERVE, equal, "run", f"q{i}", "h")
            for i in range(1_000):
                different = canonical(make_release(0.01 + i * 1e-6, 1).to_json()).decode()
                ledger._book.append(EntryKind.RESERVE, different, "run", f"d{i}", "h")
        start = time.process_time()
        total = epsilon_of(ledger)
        warm = time.process_time()
        ledger.reserve("one more", "h", make_release(), "run")
        assert warm - start < 2.0
        assert time.process_time() - warm < 2.0
    mu2 = 4_000 * 256 * 0.01**2 + sum((0.01 + i * 1e-6) ** 2 for i in range(1_000))
    assert total == pytest.approx(epsilon_filter([Gaussian(math.sqrt(mu2))], DELTA), rel=1e-6)


def test_rows_of_a_run(path: Path) -> None:
    with open_ledger(path) as ledger:
        ledger.reserve("a1", "h", make_release(0.01, rows=10), "run a")
        ledger.reserve("a2", "h", make_release(0.01, rows=10), "run a")
        ledger.reserve("a3", "h", make_release(0.01, rows=3), "run a")
        ledger.reserve("b1", "h", make_release(0.01, rows=20), "run b")
        assert [ledger.rows(run) for run in ("run a", "run b", "run c")] == [23, 20, 0]
        assert ledger.rows("run a", besides="a2") == 13
        assert ledger.rows("run a", besides="b1") == 23, "another run's query"
        assert ledger.rows("run a", besides="never asked") == 23


def test_read_only_creates_and_changes_nothing(path: Path) -> None:
    with open_ledger(path) as ledger:
        answered(ledger, "q1")
        head = ledger.head
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with Ledger.open_read_only(path) as reader:
        assert (reader.head, reader.verify(), reader.data_id) == (head, head, DATA)
        assert (len(reader.runs()), reader.budget) == (1, BUDGET)
        assert epsilon_of(reader) > 0
        with pytest.raises(StorageError, match="reading only"):
            reader.reserve("q2", "h", make_release(), "run")
        with pytest.raises(StorageError, match="reading only"):
            reader.set_budget(Budget(99.0, DELTA, RECORD, ZERO_OUT))
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


def test_read_only_beside_a_live_writer(path: Path) -> None:
    with open_ledger(path) as ledger:
        answered(ledger, "q1")
        names = sorted(file.name for file in path.parent.iterdir())
        with Ledger.open_read_only(path, DATA) as reader:
            answered(ledger, "q2")
            assert reader.head == ledger.head == reader.verify()
        assert sorted(file.name for file in path.parent.iterdir()) == names


def test_read_only_of_a_log_without_its_index(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    with open_ledger(path) as ledger:
        answered(ledger, "q1")
        for end in ("", "-wal", ".head"):
            copy.with_name(copy.name + end).write_bytes(
                path.with_name(path.name + end).read_bytes()
            )
    with pytest.raises(StorageError, match="open it for writing once"):
        Ledger.open_read_only(copy)
    assert not copy.with_name(copy.name + "-shm").exists()
    with open_ledger(copy) as restored:
        assert len(restored.releases()) == 1


def test_absent_ledgers(path: Path) -> None:
    for attempt in (
        lambda: Ledger.open_read_only(path),
        lambda: Ledger.open(path, DATA, None, False),
    ):
        with pytest.raises(StorageError, match=r"no ledger .*ledger\.sqlite"):
            attempt()
    assert not path.parent.exists()
