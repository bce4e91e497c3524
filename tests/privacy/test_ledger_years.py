"""A ledger with checkpoints: the same figures as from all entries, and what is noticed when."""

import json
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_cases import (
    BUDGET,
    DATA,
    DELTA,
    RECORD,
    ZERO_OUT,
    answered,
    epsilon_of,
    open_ledger,
    release,
    tamper,
)

from fedtranscribe.errors import (
    BudgetExhaustedError,
    ConfigError,
    CorruptLedgerError,
    ForeignLedgerError,
    LedgerError,
)
from fedtranscribe.files import parse_json
from fedtranscribe.holder.answering import LazyLedger
from fedtranscribe.privacy import book, ledger_file, totals
from fedtranscribe.privacy import budget as reservations
from fedtranscribe.privacy.accountant import epsilon_filter
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.chain import (
    Entry,
    EntryKind,
    Head,
    canonical,
    head_path,
    read_head,
    write_head,
)
from fedtranscribe.privacy.events import Event, Gaussian, PoissonGaussian
from fedtranscribe.privacy.label_events import RandomizedResponse
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.totals import Totals, sealed
from fedtranscribe.privacy.units import Adjacency, Unit

EVERY = 8
QUERIES = 15
"""Creation, budget and (reserve, commit) for each: checkpoints at 9, 18 and 27, the last is 35."""


@pytest.fixture(scope="module", autouse=True)
def often() -> Iterator[None]:
    """Checkpoints after a few entries, so that small ledgers have some."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(totals, "EVERY", EVERY)
        yield


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, often: None) -> Path:
    path = tmp_path_factory.mktemp("original") / "ledger.sqlite"
    with open_ledger(path) as ledger:
        for i in range(QUERIES):
            answered(ledger, f"q{i}", b"answer %d" % i)
        checkpoints = [e.sequence for e in ledger.entries() if e.kind == EntryKind.CHECKPOINT]
        assert (checkpoints, ledger.head.sequence) == ([9, 18, 27], 35)
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    return copied(original, tmp_path / "ledger.sqlite")


def copied(source: Path, target: Path) -> Path:
    shutil.copy(source, target)
    shutil.copy(head_path(source), head_path(target))
    return target


def refused(path: Path, match: str) -> None:
    for attempt in (lambda: open_ledger(path), lambda: Ledger.open_read_only(path)):
        with pytest.raises(CorruptLedgerError, match=match):
            attempt()


def noticed_by_verify_alone(path: Path, match: str) -> None:
    """Opening and booking go on from the right totals; the proof of the whole refuses."""
    with open_ledger(path, None) as ledger:
        spent = epsilon_of(ledger)
        assert spent == pytest.approx(epsilon_filter([Gaussian(0.1, QUERIES)], DELTA))
        assert ledger.usage("run").queries == ledger.rows("run") == QUERIES
        ledger.reserve("one more", "h", release(), "run")
        assert epsilon_of(ledger) > spent
        with pytest.raises(CorruptLedgerError, match=match):
            ledger.verify()
        with pytest.raises(CorruptLedgerError, match=match):
            ledger.prove()


# Figures


def _event(kind: str, size: int) -> Event:
    if kind == "gaussian":
        return Gaussian(0.01 * size, size)
    if kind == "labels":
        return RandomizedResponse(0.01 * size, 10, size)
    return PoissonGaussian(0.01, 1.0 + size, 10)


ASKED = st.tuples(
    st.sampled_from(["gaussian", "gaussian", "labels", "steps"]),
    st.integers(1, 4),
    st.sampled_from(["run a", "run b", "run c"]),
    st.booleans(),
)


@given(asked=st.lists(ASKED, min_size=1, max_size=25), limits=st.lists(st.integers(20, 90)))
@settings(max_examples=25, deadline=None)
def test_totals_are_those_of_all_entries(
    tmp_path_factory: pytest.TempPathFactory,
    asked: list[tuple[str, int, str, bool]],
    limits: list[int],
) -> None:
    path = tmp_path_factory.mktemp("random") / "ledger.sqlite"
    ledger = open_ledger(path, Budget(100.0, DELTA, RECORD, ZERO_OUT))
    for i, (kind, size, run, reopens) in enumerate(asked):
        event = _event(kind, size)
        by: dict[Adjacency, Event] = {ZERO_OUT: event}
        if kind == "gaussian":
            by[Adjacency.REPLACE] = Gaussian(0.02 * size, size)
        costs = {RECORD: by} | ({Unit.HOLDER: {ZERO_OUT: event}} if size > 1 else {})
        ledger.reserve(f"q{i}", "h", MechanismRelease(kind, size, costs), run)
        if i < len(limits):
            ledger.set_budget(Budget(float(limits[i]), DELTA, RECORD, ZERO_OUT))
        if reopens:
            ledger.close()
            ledger = Ledger.open(path, DATA)
    with ledger:
        reserved = [entry for entry in ledger.entries() if entry.kind == EntryKind.RESERVE]
        tally = Counter(entry.content for entry in reserved)
        events = []
        for n, (content, count) in enumerate(tally.items()):
            event = MechanismRelease.from_json(json.loads(content)).event(RECORD, ZERO_OUT)
            if n == 0 and count > 1:
                events.append(event)
                count -= 1
            events.append(replace(event, count=event.count * count))
        assert epsilon_of(ledger) == pytest.approx(epsilon_filter(events, DELTA), rel=1e-12)
        for run in ("run a", "run b", "run c"):
            mine = [entry for entry in reserved if entry.run == run]
            rows = sum(json.loads(entry.content)["rows"] for entry in mine)
            assert (ledger.usage(run).queries, ledger.rows(run)) == (len(mine), rows)
            assert [r.to_json() for r in ledger.releases(run)] == [
                json.loads(entry.content) for entry in mine
            ]
        firsts = list(dict.fromkeys(entry.run for entry in reserved))
        assert [run.run for run in ledger.runs()] == firsts
        told = [entry.content for entry in ledger.entries() if entry.kind == EntryKind.BUDGET]
        assert [canonical(limit.to_json()).decode() for _, limit in ledger.limits] == told
        before = ledger._book.totals.text()
        assert ledger.verify() == ledger.head
        assert ledger._book.totals.text() == before


def test_opening_counts_on_from_the_last_checkpoint(path: Path) -> None:
    with open_ledger(path) as ledger:
        seen: list[str] = []
        ledger._book._connection.set_trace_callback(seen.append)
        assert ledger._book.check() == ledger.head
        assert any("sequence >= 28" in statement for statement in seen)
        assert not any("integrity_check" in statement for statement in seen)


def test_totals_follow_what_others_add(path: Path) -> None:
    with open_ledger(path) as one, open_ledger(path) as other, Ledger.open_read_only(path) as third:
        for i in range(3 * EVERY):
            answered(one if i % 2 else other, f"n{i}")
        expected = pytest.approx(epsilon_filter([Gaussian(0.1, QUERIES + 3 * EVERY)], DELTA))
        for ledger in (one, other, third):
            assert epsilon_of(ledger) == expected
        assert one.verify() == other.head == third.verify()


def _add_and_fail(ledger: Ledger) -> None:
    with ledger._book.writing():
        for _ in range(2 * EVERY):
            ledger._book.append(EntryKind.BUDGET, canonical(BUDGET.to_json()).decode())
        raise ZeroDivisionError


def test_what_was_not_kept_is_not_counted(path: Path) -> None:
    with open_ledger(path) as ledger:
        head, spent = ledger.head, epsilon_of(ledger)
        with pytest.raises(ZeroDivisionError):
            _add_and_fail(ledger)
        assert (ledger.head, epsilon_of(ledger), ledger.budget) == (head, spent, BUDGET)
        answered(ledger, "q99")
        assert ledger.verify() == ledger.head


def _interrupted(do: Callable[[], object], at: int) -> bool:
    """Whether it was interrupted at that line of the ledger's modules, as Ctrl-C does."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.endswith(LEDGER_MODULES):
            return None
        if event == "line":
            lines += 1
            if lines == at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    traced = sys.gettrace()
    sys.settrace(trace)
    try:
        do()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(traced)
    return False


LEDGER_MODULES = (
    "totals.py",
    "book.py",
    "proofs.py",
    "entry_store.py",
    "privacy/ledger.py",
    "reservations.py",
    "filters.py",
)


def test_an_interrupt_leaves_the_right_totals(path: Path, tmp_path: Path) -> None:
    at = 1
    with open_ledger(path) as ledger:
        while _interrupted(partial(answered, ledger, f"x{at}"), at):
            at += 7
            booked = len(ledger.releases())
            assert epsilon_of(ledger) == pytest.approx(
                epsilon_filter([Gaussian(0.1, booked)], DELTA), rel=1e-12
            )
            assert ledger.usage("run").queries == booked
        assert at > 200
        at = 1
        ledger.reserve("other", "h", release(0.2), "run")
        ledger._costs._sums.clear()
        expected = epsilon_of(ledger)
        while _interrupted(lambda: [ledger._costs._sums.clear(), epsilon_of(ledger)], at):
            at += 1
            assert epsilon_of(ledger) == expected
        assert ledger.verify() == ledger.head
    with open_ledger(path) as again:
        assert epsilon_of(again) == expected


def test_a_reservation_that_could_not_be_read_again_is_not_booked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_ledger(path) as ledger:
        head, spent = ledger.head, epsilon_of(ledger)
        for module in (totals, reservations):
            monkeypatch.setattr(module, "parse_json", partial(parse_json, most=1_000))
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"more than 1,000 bytes\. Nothing was booked"):
                ledger.reserve("big", "h", replace(release(), mechanism="x" * 1_000), "run")
        assert (ledger.head, epsilon_of(ledger)) == (head, spent)
        answered(ledger, "small")


def test_long_totals_are_stored_less_often() -> None:
    short, long = Totals(), Totals(tally={str(i): 1 for i in range(10_000)})
    for counted in (short, long):
        counted.head = replace(counted.head, sequence=EVERY)
    assert (short.due, long.due) == (True, False)
    long.head = replace(long.head, sequence=10_000 // totals._SHARE)
    assert long.due


# What is noticed by opening


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("UPDATE totals SET content = replace(content, '[\"run\"', '[\"ran\"')", "checkpoint 27"),
        ("UPDATE totals SET content = replace(content, '0.1', '0.01')", "checkpoint 27"),
        ("UPDATE totals SET content = x'00'", "checkpoint 27"),
        ("UPDATE totals SET content = ''", "checkpoint 27"),
        ("UPDATE totals SET sequence = 18", "checkpoint 18"),
        ("UPDATE totals SET sequence = 28", "checkpoint 28"),
        ("UPDATE totals SET sequence = 1000", "checkpoint 1000"),
        ("UPDATE entries SET content = replace(content, '0.1', '0.01') WHERE sequence = 28", "28"),
        ("UPDATE entries SET content = (SELECT content FROM entries WHERE sequence = 18)"
         " WHERE sequence = 27", "checkpoint 27"),
        ("DELETE FROM entries WHERE sequence = 27", "checkpoint 27"),
        ("DELETE FROM entries WHERE sequence = 30", "30 after 29, found 31"),
        ("UPDATE answers SET answer = x'00' WHERE query_id = 'q14'", "answer of query q14"),
        ("DROP TABLE totals", "does not have the tables"),
        ("DROP INDEX one_per_query", "does not have the tables"),
        ("PRAGMA user_version=1", "does not have the tables"),
        ("DELETE FROM entries WHERE sequence > 26", "ends at entry 26|checkpoint 27"),
    ],
)  # fmt: skip
def test_edits_since_the_checkpoint_and_of_the_totals(
    path: Path, statement: str, match: str
) -> None:
    tamper(path, statement)
    refused(path, match)


def _forge(path: Path, sequence: int, text: str) -> Entry:
    """Put other totals and their checkpoint in the place of one, with a hash that fits."""
    connection = sqlite3.connect(path)
    row = connection.execute("SELECT * FROM entries WHERE sequence = ?", (sequence,)).fetchone()
    connection.close()
    forged = _rewritten(Entry(*row), content=sealed(text, proved=False))
    tamper(
        path,
        f"UPDATE entries SET content = '{forged.content}', hash = '{forged.hash}' "
        f"WHERE sequence = {sequence}",
        f"UPDATE totals SET sequence = {sequence}, content = '{text}'",
    )
    return forged


def _rewritten(old: Entry, **other: str) -> Entry:
    """An entry in the place of another, with a hash that fits what it says now."""
    body = vars(old) | other
    del body["sequence"], body["previous"], body["hash"]
    return Entry.after(Head(old.sequence - 1, old.previous), **body)


def _insert(path: Path, *entries: Entry) -> None:
    """As someone can whom the triggers do not stop."""
    connection = sqlite3.connect(path, isolation_level=None)
    for entry in entries:
        connection.execute(f"INSERT INTO entries VALUES ({','.join('?' * 9)})", astuple(entry))
    connection.close()


def _cheaper(path: Path) -> str:
    """The stored totals, with one query in the place of all."""
    connection = sqlite3.connect(path)
    told = json.loads(connection.execute("SELECT content FROM totals").fetchone()[0])
    connection.close()
    told["tally"]["times"] = [1 for _ in told["tally"]["times"]]
    return json.dumps(told, separators=(",", ":"))


def test_a_forged_checkpoint_does_not_fit_the_entry_after_it(path: Path) -> None:
    _forge(path, 27, _cheaper(path))
    refused(path, "entry 28 does not have the hash")


def test_a_forged_checkpoint_at_the_end_does_not_fit_the_head_file(path: Path) -> None:
    with open_ledger(path) as ledger, ledger._book.writing():
        ledger._book._checkpoint(proved=True)
    last = read_head(path)
    assert last is not None
    _forge(path, last.sequence, _cheaper(path))
    refused(path, "history was replaced")


@pytest.mark.parametrize("place", [-7, 0, 3])
def test_totals_of_an_entry_that_is_not_in_their_place(path: Path, place: int) -> None:
    """They claim to end just before the head file's entry, and nothing between is counted."""
    with Ledger.open_read_only(path) as ledger:
        before = ledger.entries()[-2].head
    connection = sqlite3.connect(path)
    told = json.loads(connection.execute("SELECT content FROM totals").fetchone()[0])
    connection.close()
    empty = json.loads(Totals().text())
    told |= {"head": [before.sequence, before.hash], "tally": empty["tally"], "runs": empty["runs"]}
    text = json.dumps(told, separators=(",", ":"))
    claim = sealed(text, proved=True)
    if place < 1:
        _insert(path, Entry(place, "", "checkpoint", "", "", "", claim, "", ""))
    else:
        tamper(
            path,
            f"UPDATE entries SET kind = 'checkpoint', content = '{claim}' WHERE sequence = {place}",
        )
    tamper(path, f"UPDATE totals SET sequence = {place}, content = '{text}'")
    refused(path, f"after 0, found {place}|not those of checkpoint {place}")


@pytest.mark.parametrize("place", [-(2**63), -1, 0])
def test_entries_before_the_first(path: Path, tmp_path: Path, place: int) -> None:
    young = tmp_path / "young.sqlite"
    with open_ledger(young) as ledger:
        answered(ledger, "q0")
    stray = Entry(place, "2020", "budget", "", "", "", canonical(BUDGET.to_json()).decode(), "", "")
    for each in (path, young):
        with open_ledger(each) as ledger:
            _insert(each, stray)
            for read in (ledger.verify, ledger._book.check, ledger.entries, ledger.releases):
                with pytest.raises(CorruptLedgerError, match=f"{place}"):
                    read()
        refused(each, f"after 0, found {place}")


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"head": ["34", "0"]},
        {"head": [34.0, "0"]},
        {"head": [34]},
        {"head": 34},
        {"data_id": 5},
        {"tally": {"release": ["{}"], "times": [0.5]}},
        {"tally": {"release": ["{}"], "times": [-1]}},
        {"tally": {"release": ["{}"], "times": [True]}},
        {"tally": {"release": ["{}"], "times": []}},
        {"tally": {"release": [[]], "times": [1]}},
        {"tally": {"release": "{}", "times": [1]}},
        {"tally": {"release": ["{}"]}},
        {"tally": 5},
        {"tally": [["{}", 1]]},
        {"runs": {"name": ["run"], "first": [1], "queries": [1], "rows": [1]}},
        {"runs": {"name": ["run"], "first": ["2020"], "queries": ["1"], "rows": [1]}},
        {"runs": {"name": ["run"], "first": ["2020"], "queries": [1], "rows": [-1]}},
        {"limits": [["2020"]]},
        {"limits": [["2020", 5]]},
        {"proved": 5},
        {"checkpoints": {"sequence": ["9"], "hash": ["0"]}},
        {"checkpoints": {"sequence": [9], "hash": [0]}},
    ],
)
def test_totals_that_no_version_writes(change: dict[str, object]) -> None:
    told = json.loads(Totals(tally={"{}": 1}).text())
    assert Totals.read(json.dumps(told)).tally == {"{}": 1}
    with pytest.raises(CorruptLedgerError, match="stored totals are damaged"):
        Totals.read(json.dumps(told | change))


def test_totals_of_a_later_version_are_no_damage(path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as later:
        later.setattr(totals, "VERSION", totals.VERSION + 1)
        newer = path.with_name("newer.sqlite")
        with open_ledger(newer) as ledger:
            for i in range(QUERIES):
                answered(ledger, f"q{i}")
    for attempt in (lambda: open_ledger(newer), lambda: Ledger.open_read_only(newer)):
        with pytest.raises(LedgerError, match=r"Expected totals of version 1 .* upgrade"):
            attempt()


@pytest.mark.parametrize("stored", [True, False])
def test_a_checkpoint_put_behind_the_head_file_is_counted_again(path: Path, stored: bool) -> None:
    """Entries after the head file's are those of a crash, or anybody's."""
    with Ledger.open_read_only(path) as ledger:
        head = ledger.head
    told = json.loads(_cheaper(path)) | {"head": [head.sequence, head.hash]}
    text = json.dumps(told, separators=(",", ":"))
    empty = dict.fromkeys(("run", "query_id", "query_hash"), "")
    forged = Entry.after(
        head, time="t", kind=EntryKind.CHECKPOINT.value, content=sealed(text, proved=False), **empty
    )
    values = ", ".join(f"'{value}'" for value in vars(forged).values())
    tamper(
        path,
        f"INSERT INTO entries VALUES ({values})",
        f"UPDATE totals SET sequence = {forged.sequence}, content = '{text}'" if stored else ";",
    )
    refused(path, "totals at checkpoint 36 are not what the entries")


def test_a_checkpoint_put_in_before_the_head_file_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head file would vouch for it, so that nobody would count the entries before it again."""
    publish = book.Book._publish

    def forge_first(self: book.Book) -> None:
        told = json.loads(_cheaper(path))
        head = self._store.head
        text = json.dumps(told | {"head": [head.sequence, head.hash]}, separators=(",", ":"))
        empty = dict.fromkeys(("run", "query_id", "query_hash"), "")
        content = sealed(text, proved=False)
        forged = Entry.after(
            head, time="t", kind=EntryKind.CHECKPOINT.value, content=content, **empty
        )
        _insert(path, forged)
        tamper(path, f"UPDATE totals SET sequence = {forged.sequence}, content = '{text}'")
        publish(self)

    with open_ledger(path) as ledger, monkeypatch.context() as patch:
        patch.setattr(book.Book, "_publish", forge_first)
        with pytest.raises(CorruptLedgerError, match="totals at checkpoint 38 are not what"):
            ledger.reserve("q99", "h", release(), "run")
    refused(path, "totals at checkpoint 38 are not what")


def test_a_second_creation_gives_the_ledger_to_no_other_data(path: Path) -> None:
    with Ledger.open_read_only(path) as ledger:
        first, head = ledger.entries()[0], ledger.head
    body = vars(first) | {"content": first.content.replace(DATA, "faces")}
    del body["sequence"], body["previous"], body["hash"]
    _insert(path, Entry.after(head, **body))
    refused(path, "entry 36 has a content that no version")


def test_a_backup_of_what_another_process_wrote_is_noticed_by_the_next_query(
    path: Path, tmp_path: Path
) -> None:
    with open_ledger(path) as ledger, open_ledger(path) as other:
        answered(other, "q99")
        assert ledger.usage("run").queries == QUERIES + 1
        tamper(
            path,
            "DELETE FROM entries WHERE sequence > 36",
            "DELETE FROM answers WHERE query_id = 'q99'",
        )
        connection = sqlite3.connect(path)
        row = connection.execute("SELECT hash FROM entries WHERE sequence = 36").fetchone()
        connection.close()
        write_head(path, Head(36, row[0]))
        with pytest.raises(CorruptLedgerError, match="ends at entry 36, but had reached 38"):
            ledger.reserve("q98", "h", release(), "run")


def test_totals_of_another_ledger(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    with open_ledger(other) as ledger:
        for i in range(QUERIES):
            ledger.reserve(f"q{i}", "h", release(0.001), "run")
            ledger.commit(f"q{i}", b"")
    connection = sqlite3.connect(other)
    text = connection.execute("SELECT content FROM totals").fetchone()[0]
    connection.close()
    tamper(path, f"UPDATE totals SET content = '{text}'")
    refused(path, "checkpoint 27")
    _forge(path, 27, text)
    refused(path, "not those of checkpoint 27")
    with pytest.raises(ForeignLedgerError):
        Ledger.open(other, "other data")


def test_an_older_copy_of_genuine_totals_is_counted_on(path: Path) -> None:
    """Harmless: it is right up to its own checkpoint, and all after that is counted."""
    with open_ledger(path) as ledger:
        connection = ledger._book._connection
        sequence, text = connection.execute("SELECT sequence, content FROM totals").fetchone()
        for i in range(2 * EVERY):
            answered(ledger, f"n{i}")
        spent, head = epsilon_of(ledger), ledger.head
    tamper(path, f"UPDATE totals SET sequence = {sequence}, content = '{text}'")
    with open_ledger(path) as ledger:
        assert (epsilon_of(ledger), ledger.verify()) == (spent, head)


def test_lost_totals_are_counted_anew(path: Path) -> None:
    tamper(path, "DELETE FROM totals")
    with Ledger.open_read_only(path) as ledger:
        spent = epsilon_of(ledger)
    with open_ledger(path) as ledger:
        assert epsilon_of(ledger) == spent
        assert ledger._book.totals.checkpoint == 36, "stored again, after a proof of the whole"
        assert ledger.proved
    tamper(path, "DELETE FROM totals", "UPDATE entries SET run = 'other' WHERE sequence = 4")
    refused(path, "entry 4 ")


def test_a_crash_between_a_checkpoint_and_the_head_file(path: Path) -> None:
    with Ledger.open_read_only(path) as ledger:
        entries = ledger.entries()
        spent = epsilon_of(ledger)
    write_head(path, entries[24].head)  # before checkpoint 27
    with open_ledger(path) as ledger:
        assert epsilon_of(ledger) == spent
        assert read_head(path) == ledger.head == ledger.verify()
    tamper(path, "UPDATE entries SET run = 'other' WHERE sequence = 4")
    write_head(path, entries[24].head)
    refused(path, "entry 4 ")


def test_dropped_tail_and_older_backup(path: Path, tmp_path: Path) -> None:
    backup = copied(path, tmp_path / "backup.sqlite")
    with open_ledger(path) as ledger:
        for i in range(EVERY):
            answered(ledger, f"n{i}")
        sent = ledger.head
    shutil.copy(backup, path)
    refused(path, "ends at entry 35, but had reached 53")
    copied(backup, path)
    with open_ledger(path) as ledger, pytest.raises(CorruptLedgerError, match="had reached 53"):
        ledger.confirm(sent)


def test_a_head_that_was_sent_proves_totals_that_came_later(path: Path) -> None:
    """Database and head file are rewritten together, from a checkpoint after the sent head on."""
    with Ledger.open_read_only(path) as ledger:
        entries = ledger.entries()
        sent = entries[16].head
    cut = 27
    claimed = Totals()
    for entry in entries[: cut - 1]:
        claimed.add(entry)
    claimed.tally = dict.fromkeys(claimed.tally, 1)
    claimed.runs = {"run": totals.RunTotal(entries[3].time, 1, 1)}
    text = claimed.text()
    forged = _rewritten(entries[cut - 1], content=sealed(text, proved=True))
    last = replace(entries[1], sequence=cut + 1, previous=forged.hash)
    last = _rewritten(last)
    tamper(
        path,
        f"DELETE FROM entries WHERE sequence >= {cut}",
        "DELETE FROM answers WHERE query_id NOT IN "
        "(SELECT query_id FROM entries WHERE kind = 'commit')",
        f"UPDATE totals SET sequence = {cut}, content = '{text}'",
    )
    _insert(path, forged, last)
    write_head(path, last.head)
    with open_ledger(path, None) as ledger:
        assert epsilon_of(ledger) == pytest.approx(epsilon_filter([Gaussian(0.1)], DELTA))
        with pytest.raises(CorruptLedgerError, match="totals at checkpoint 27 are not"):
            ledger.confirm(sent)


def test_head_file_lost(path: Path) -> None:
    head_path(path).unlink()
    refused(path, "is missing beside a ledger that has reservations")


# What is noticed when it is used, or by the proof of the whole


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("UPDATE entries SET content = replace(content, '0.1', '0.01') WHERE sequence = 5", "y 5 "),
        ("UPDATE entries SET time = '2020' WHERE sequence = 1", "y 1 "),
        ("UPDATE entries SET hash = previous WHERE sequence = 9", "y 9 "),
        ("DELETE FROM entries WHERE sequence = 6", "y 6 after 5, found 7"),
        ("UPDATE entries SET kind = 'budget' WHERE sequence = 3", "y 3 "),
        ("UPDATE answers SET answer = x'00' WHERE query_id = 'q2'", "answer of query q2"),
        ("DELETE FROM answers WHERE query_id = 'q3'", "answer of query q3"),
        ("INSERT INTO answers VALUES ('stray', x'00')", "answer of query stray"),
    ],
)
def test_older_edits_give_no_room_and_are_noticed_by_verify(
    path: Path, statement: str, match: str
) -> None:
    tamper(path, statement)
    noticed_by_verify_alone(path, match)


def test_a_repeated_query_is_held_against_its_hash(path: Path) -> None:
    tamper(
        path,
        "UPDATE entries SET query_hash = 'other' WHERE query_id = 'q1' AND kind = 'reserve'",
        "UPDATE answers SET answer = x'00' WHERE query_id = 'q9'",
    )
    with open_ledger(path) as ledger:
        for query_id, match in (("q1", "it was changed"), ("q9", "answer of query q9")):
            with pytest.raises(CorruptLedgerError, match=match):
                ledger.reserve(query_id, f"hash-{query_id}", release(), "run")
        assert ledger.reserve("q8", "hash-q8", release(), "run").answer == b"answer 8"


def test_a_forged_reservation_makes_no_query_free(path: Path) -> None:
    """Someone writes it over an old entry, with a hash that fits its content."""
    with Ledger.open_read_only(path) as ledger:
        old = ledger.entries()[4]
    body = {"time": old.time, "kind": "reserve", "run": "run", "query_id": "free"}
    content = canonical(release(5.0).to_json()).decode()
    forged = Entry.after(
        replace(old.head, sequence=4, hash=old.previous), **body, query_hash="h", content=content
    )
    assert forged.intact()
    tamper(
        path,
        f"UPDATE entries SET query_id = 'free', query_hash = 'h', content = '{content}', "
        f"hash = '{forged.hash}' WHERE sequence = 5",
    )
    with open_ledger(path) as ledger:
        with pytest.raises(CorruptLedgerError, match="entry 6 does not have the hash"):
            ledger.reserve("free", "h", release(5.0), "run")
        with pytest.raises(CorruptLedgerError, match="entry 6 does not have the hash"):
            ledger.rows("run", besides="free")
        with pytest.raises(CorruptLedgerError, match="entry 6 does not have the hash"):
            ledger.releases("run")
        assert epsilon_of(ledger) == pytest.approx(epsilon_filter([Gaussian(0.1, 15)], DELTA))


@pytest.mark.parametrize("kept_open", [False, True])
def test_an_answer_that_was_taken_out_is_not_computed_again(path: Path, kept_open: bool) -> None:
    removal = (
        "DELETE FROM entries WHERE query_id = 'q3' AND kind = 'commit'",
        "DELETE FROM answers WHERE query_id = 'q3'",
    )
    if not kept_open:
        tamper(path, *removal)
    with open_ledger(path) as ledger:
        if kept_open:
            tamper(path, *removal)
        for _ in range(2):
            with pytest.raises(CorruptLedgerError):
                ledger.reserve("q3", "hash-q3", release(), "run")
            with pytest.raises(CorruptLedgerError):
                ledger.commit("q3", b"another")


def test_an_old_reservation_without_an_answer_can_still_be_answered(path: Path) -> None:
    with open_ledger(path) as ledger:
        ledger.reserve("slow", "h", release(), "run")
        for i in range(2 * EVERY):
            answered(ledger, f"n{i}")
        spent = epsilon_of(ledger)
        assert ledger.reserve("slow", "h", release(), "run").answer is None
        ledger.commit("slow", b"at last")
        assert ledger.answer("slow") == b"at last"
        assert (epsilon_of(ledger), ledger.verify()) == (spent, ledger.head)


@pytest.mark.parametrize("kind", ["commit", "reserve"])
def test_a_recent_entry_that_is_taken_out_of_an_open_ledger(path: Path, kind: str) -> None:
    """Nothing of it is left in the file, and the entry that follows is not read again."""
    with open_ledger(path) as ledger:
        head = ledger.head
        tamper(
            path,
            f"DELETE FROM entries WHERE query_id = 'q13' AND kind = '{kind}'",
            "DELETE FROM answers WHERE query_id = 'q13'",
        )
        for _ in range(2):
            with pytest.raises(CorruptLedgerError, match="removed"):
                ledger.reserve("q13", "hash-q13", release(), "run")
            with pytest.raises(CorruptLedgerError, match="removed"):
                ledger.commit("q13", b"drawn again")
        assert ledger.head == head


def _index_otherwise(path: Path, statement: str) -> None:
    """Make the index what it is after a statement, and the table what it was before."""
    connection = sqlite3.connect(path, isolation_level=None)
    columns = "type, name, tbl_name, rootpage, sql"
    index = connection.execute(
        f"SELECT {columns} FROM sqlite_master WHERE name = 'one_per_query'"
    ).fetchone()
    rows = connection.execute("SELECT sequence, query_id FROM entries").fetchall()
    connection.close()
    hide = "PRAGMA writable_schema = 1", "DELETE FROM sqlite_master WHERE name = 'one_per_query'"
    tamper(path, statement, *hide)
    tamper(
        path,
        *(f"UPDATE entries SET query_id = '{name}' WHERE sequence = {n}" for n, name in rows),
    )
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA writable_schema = 1")
    connection.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", index)
    connection.close()


@pytest.mark.parametrize("query", ["q14", "q3"])
def test_an_index_that_leads_to_another_reservation(path: Path, query: str) -> None:
    _index_otherwise(
        path, f"UPDATE entries SET query_id = 'x' WHERE query_id = '{query}' AND kind = 'reserve'"
    )
    with open_ledger(path) as ledger:
        with pytest.raises(CorruptLedgerError, match=r"index .* leads from query x"):
            ledger.reserve("x", f"hash-{query}", release(), "run")
        with pytest.raises(CorruptLedgerError, match=r"index .* leads from query x"):
            ledger.commit("x", b"not paid for")


@pytest.mark.parametrize("query", ["q14", "q3"])
def test_an_index_that_leads_to_another_answer(path: Path, query: str) -> None:
    with open_ledger(path) as ledger:
        ledger.reserve("x", "h", release(), "run")
    _index_otherwise(
        path, f"UPDATE entries SET query_id = 'x' WHERE query_id = '{query}' AND kind = 'commit'"
    )
    with open_ledger(path) as ledger:
        with pytest.raises(CorruptLedgerError, match=r"index .* leads from query x"):
            ledger.reserve("x", "h", release(), "run")
        for _ in range(2):
            with pytest.raises(CorruptLedgerError):
                ledger.reserve(query, f"hash-{query}", release(), "run")


def test_every_entry_is_found_in_the_chain(path: Path) -> None:
    with open_ledger(path) as ledger:
        for entry in ledger.entries():
            if entry.query_id:
                assert ledger._book.find(entry.query_id, EntryKind(entry.kind)) == entry


def test_reservations_of_a_run_are_those_of_the_chain(path: Path) -> None:
    """Old ones are made cheap, each with a hash that fits its content."""
    cheap = canonical(release(1e-6).to_json()).decode()
    with Ledger.open_read_only(path) as ledger:
        old = [e for e in ledger.entries() if e.kind == EntryKind.RESERVE and e.sequence < 27]
    forged = [_rewritten(entry, content=cheap) for entry in old]
    assert all(entry.intact() for entry in forged)
    tamper(
        path,
        *(
            f"UPDATE entries SET content = '{entry.content}', hash = '{entry.hash}' "
            f"WHERE sequence = {entry.sequence}"
            for entry in forged
        ),
    )
    with open_ledger(path) as ledger:
        for read in (lambda: ledger.releases("run"), ledger.releases, ledger.entries):
            with pytest.raises(CorruptLedgerError, match="does not have the hash"):
                read()


def test_a_lost_reservation_is_noticed_where_they_are_listed(path: Path) -> None:
    tamper(path, "DELETE FROM entries WHERE query_id = 'q1' AND kind = 'reserve'")
    with open_ledger(path) as ledger, pytest.raises(CorruptLedgerError, match="after 4, found 6"):
        ledger.releases("run")


def test_a_lowered_limit_cannot_be_edited_back(path: Path) -> None:
    low = Budget(1e-3, DELTA, RECORD, ZERO_OUT)
    with open_ledger(path, low) as ledger, ledger._book.writing():
        ledger._book._checkpoint(proved=False)
    tamper(path, "UPDATE entries SET content = replace(content, '0.001', '99') WHERE sequence = 36")
    with open_ledger(path, None) as ledger:
        assert ledger.budget == low
        with pytest.raises(BudgetExhaustedError):
            ledger.reserve("q99", "h", release(), "run")


# When the whole is proved


def test_a_proof_is_noted_and_holds_for_a_while(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = timedelta(days=1)
    with open_ledger(path) as ledger:
        assert not ledger.proved
        ledger.prove(day)
        noted = ledger.proved
        assert ledger.entries()[-1].kind == EntryKind.CHECKPOINT
    with Ledger.open_read_only(path) as reader:
        assert reader.proved
        assert reader.proved <= noted
    tamper(path, "UPDATE entries SET run = 'other' WHERE sequence = 4")
    with open_ledger(path) as ledger:
        head = ledger.head
        ledger.prove(day)
        assert ledger.head == head
        now = book._now
        for shift in (2 * day, -2 * day):
            monkeypatch.setattr(book, "_now", lambda more=timedelta(0), by=shift: now(by + more))
            with pytest.raises(CorruptLedgerError, match="entry 4 "):
                ledger.prove(day)


@pytest.mark.parametrize("kept_open", [False, True])
def test_a_note_behind_the_head_file_proves_nothing(path: Path, kept_open: bool) -> None:
    """Anybody can append it to the database, with totals and hashes that fit."""
    with Ledger.open_read_only(path) as ledger:
        counted = ledger._book.totals
    note = Entry.after(
        counted.head,
        time=book._now(),
        kind="checkpoint",
        run="",
        query_id="",
        query_hash="",
        content=sealed(counted.text(), proved=True),
    )
    if not kept_open:
        _insert(path, note)
        tamper(path, "UPDATE entries SET run = 'other' WHERE sequence = 4")
        refused(path, "entry 4 ")
        return
    with open_ledger(path) as ledger:
        _insert(path, note)
        tamper(path, "UPDATE entries SET run = 'other' WHERE sequence = 4")
        for attempt in (
            lambda: ledger.prove(timedelta(days=1)),
            lambda: ledger.reserve("new", "h", release(), "run"),
        ):
            with pytest.raises(CorruptLedgerError, match="entry 4 "):
                attempt()


def test_an_honest_note_that_a_crash_left_behind_the_head_file_holds(path: Path) -> None:
    with open_ledger(path) as ledger:
        before = ledger.head
        ledger.prove()
        noted = ledger.proved
    write_head(path, before)
    with open_ledger(path) as ledger:
        assert ledger.proved >= noted
        assert read_head(path) == ledger.head


def test_a_claimed_proof_is_in_the_chain(path: Path) -> None:
    claim = "replace(content, '\"proved\":false', '\"proved\":true')"
    tamper(path, f"UPDATE entries SET content = {claim} WHERE sequence = 27")
    refused(path, "not those of checkpoint 27")


def test_a_young_ledger_is_proved_by_opening_and_gets_no_note(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with open_ledger(path) as ledger:
        answered(ledger, "q0")
        head = ledger.head
        ledger.prove()
        assert ledger.head == head
        assert ledger.proved


def test_a_kept_ledger_proves_the_whole_at_the_start(path: Path) -> None:
    kept = LazyLedger(path, DATA, BUDGET)
    kept.prove()
    with kept() as ledger:
        assert ledger.entries()[-1].kind == EntryKind.CHECKPOINT
    tamper(path, "UPDATE entries SET run = 'other' WHERE sequence = 4")
    kept.prove(timedelta(days=1))
    with pytest.raises(CorruptLedgerError, match="entry 4 "):
        kept.prove()
    kept.close()


# Formats


def as_format_1(path: Path) -> None:
    tamper(path, "DROP TABLE totals", "PRAGMA user_version=1")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A ledger as format 1 has it: no totals, no checkpoints."""
    path = tmp_path / "old.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(totals, "EVERY", 1_000)
        with open_ledger(path) as ledger:
            for i in range(QUERIES):
                answered(ledger, f"q{i}")
    as_format_1(path)
    return path


def test_format_1_is_read_as_it_is_and_converted_by_writing(old: Path) -> None:
    before = old.read_bytes()
    with Ledger.open_read_only(old) as ledger:
        head, spent = ledger.head, epsilon_of(ledger)
        assert ledger.verify() == head
    assert old.read_bytes() == before
    with open_ledger(old) as ledger:
        ledger.confirm(head)
        assert ledger.head.sequence == head.sequence + 1, "a checkpoint"
        assert epsilon_of(ledger) == spent
        assert ledger.verify() == read_head(old)
        version = ledger._book._connection.execute("PRAGMA user_version").fetchone()[0]
        assert version == ledger_file.FORMAT
    with Ledger.open_read_only(old) as ledger:
        assert epsilon_of(ledger) == spent


def test_format_1_is_proved_before_it_is_converted(old: Path) -> None:
    tamper(old, "UPDATE entries SET run = 'other' WHERE sequence = 4")
    refused(old, "entry 4 ")
    connection = sqlite3.connect(old)
    assert connection.execute("PRAGMA user_version").fetchone()[0] == 1
    connection.close()


def test_a_ledger_that_is_passed_off_as_format_1_is_proved_as_a_whole(path: Path) -> None:
    tamper(path, "UPDATE entries SET run = 'other' WHERE sequence = 4")
    as_format_1(path)
    refused(path, "entry 4 ")
