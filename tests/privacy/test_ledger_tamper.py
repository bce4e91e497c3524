"""What is noticed when a ledger is edited, cut, rolled back, damaged, or has no room."""

import errno
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_cases import DATA, answered, epsilon_of, open_ledger, release, tamper

from fedtranscribe.errors import CorruptLedgerError, FedtranscribeError, LedgerError, StorageError
from fedtranscribe.privacy.chain import START, Entry, Head, head_path, read_head, walk, write_head
from fedtranscribe.privacy.ledger import Ledger

QUERIES = 5


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "ledger.sqlite"
    with open_ledger(path) as ledger:
        for i in range(QUERIES):
            answered(ledger, f"q{i}", b"answer %d" % i)
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    """A closed ledger: creation, budget, then (reserve, commit) for five queries: 12 entries."""
    path = tmp_path / "ledger.sqlite"
    shutil.copy(original, path)
    copy_head(original, path)
    return path


def refused(path: Path, match: str) -> None:
    """Refused alike for writing and for reading, and left as it is."""
    before = path.read_bytes() if path.exists() else None
    for attempt in (lambda: open_ledger(path), lambda: Ledger.open_read_only(path)):
        with pytest.raises(CorruptLedgerError, match=match):
            attempt()
    assert (path.read_bytes() if path.exists() else None) == before


def copy_head(source: Path, target: Path) -> None:
    shutil.copy(head_path(source), head_path(target))


@pytest.mark.parametrize("table", ["entries", "answers"])
@pytest.mark.parametrize("statement", ["DELETE FROM {}", "UPDATE {} SET query_id = 'x'"])
def test_append_only_triggers(path: Path, table: str, statement: str) -> None:
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(statement.format(table))
    connection.close()


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("UPDATE entries SET content = replace(content, '0.1', '0.01') WHERE sequence = 5", "y 5 "),
        ("UPDATE entries SET time = '2020-01-01T00:00:00.000000+00:00' WHERE sequence = 3", "y 3 "),
        ("UPDATE entries SET query_hash = x'00' WHERE sequence = 7", "y 7 "),
        ("UPDATE entries SET hash = previous WHERE sequence = 4", "y 4 "),
        ("UPDATE entries SET run = 'other' WHERE sequence = 12", "y 12 "),
        ("DELETE FROM entries WHERE sequence = 6", "y 6 after 5, found 7"),
        ("DELETE FROM entries WHERE sequence = 1", "y 1 after 0, found 2"),
        ("UPDATE entries SET sequence = 40 WHERE sequence = 12", "y 12 after 11, found 40"),
        ("UPDATE answers SET answer = x'00' WHERE query_id = 'q2'", "answer of query q2"),
        ("UPDATE answers SET answer = 'answer 2' WHERE query_id = 'q2'", "answer of query q2"),
        ("DELETE FROM answers WHERE query_id = 'q3'", "answer of query q3"),
        ("INSERT INTO answers VALUES ('q9', x'00')", "answer of query q9"),
        ("INSERT INTO answers VALUES (NULL, x'00')", "answer of query None"),
    ],
)
def test_edits_are_named(path: Path, statement: str, match: str) -> None:
    tamper(path, statement)
    refused(path, match)


def test_missing_triggers_are_evidence(path: Path) -> None:
    tamper(path, keep_triggers=False)
    refused(path, "append-only triggers")


def test_a_consistently_rewritten_history_does_not_fit_the_head(path: Path) -> None:
    with Ledger.open_read_only(path) as ledger:
        entries = ledger.entries()
    head, statements = START, []
    for entry in entries:
        fields = {k: getattr(entry, k) for k in ("time", "kind", "run", "query_id", "query_hash")}
        cheaper = Entry.after(head, **fields, content=entry.content.replace("0.1", "0.01"))
        statements.append(
            f"UPDATE entries SET content = '{cheaper.content}', previous = '{cheaper.previous}', "
            f"hash = '{cheaper.hash}' WHERE sequence = {cheaper.sequence}"
        )
        head = cheaper.head
    tamper(path, *statements)
    refused(path, "history was replaced")
    # Only a head that went out with an answer can show it once the head file is rewritten too.
    write_head(path, head)
    with open_ledger(path) as ledger:
        assert ledger.verify() == head
        with pytest.raises(CorruptLedgerError, match="history was replaced"):
            ledger.confirm(entries[-1].head)


def test_dropped_tail(path: Path) -> None:
    tamper(
        path,
        "DELETE FROM entries WHERE sequence > 10",
        "DELETE FROM answers WHERE query_id = 'q4'",
    )
    refused(path, "ends at entry 10, but had reached 12")


def test_older_backup_put_back(path: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup.sqlite"
    shutil.copy(path, backup)
    with open_ledger(path) as ledger:
        answered(ledger, "q9")
        sent = ledger.head
    shutil.copy(backup, path)
    refused(path, "ends at entry 12, but had reached 14")
    # With its own older head file it passes for whole; the head of an answer shows the truth.
    write_head(path, Head(12, _hash_at(backup, 12)))
    with open_ledger(path) as ledger:
        assert ledger.head.sequence == 12
        with pytest.raises(CorruptLedgerError, match="had reached 14"):
            ledger.confirm(sent)


def _hash_at(path: Path, sequence: int) -> str:
    connection = sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)
    row = connection.execute("SELECT hash FROM entries WHERE sequence = ?", (sequence,)).fetchone()
    connection.close()
    return row[0]


def test_rollback_under_an_open_ledger(path: Path) -> None:
    with open_ledger(path) as ledger:
        tamper(
            path,
            "DELETE FROM entries WHERE sequence > 11",
            "DELETE FROM answers WHERE query_id = 'q4'",
        )
        with pytest.raises(CorruptLedgerError, match="ends at entry 11, but had reached 12"):
            ledger.reserve("q9", "h", release(), "run")
        head_path(path).unlink()
        with pytest.raises(CorruptLedgerError, match="is missing"):
            ledger.reserve("q9", "h", release(), "run")
        write_head(path, Head(11, _hash_in_use(path, 11)))
        with pytest.raises(CorruptLedgerError, match="ends at entry 11, but had reached 12"):
            ledger.reserve("q9", "h", release(), "run")


def _hash_in_use(path: Path, sequence: int) -> str:
    connection = sqlite3.connect(path)
    row = connection.execute("SELECT hash FROM entries WHERE sequence = ?", (sequence,)).fetchone()
    connection.close()
    return row[0]


def test_a_changed_answer_is_never_given_out(path: Path) -> None:
    with open_ledger(path) as ledger:
        tamper(path, "UPDATE answers SET answer = x'00' WHERE query_id = 'q2'")
        with pytest.raises(CorruptLedgerError, match="answer of query q2"):
            ledger.reserve("q2", "hash-q2", release(), "run")


def test_head_file_lost_beside_reservations(path: Path) -> None:
    head_path(path).unlink()
    refused(path, r"ledger\.sqlite\.head is missing")
    assert not head_path(path).exists()


def test_head_file_lost_before_anything_was_reserved(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with open_ledger(path) as ledger:
        head = ledger.head
    head_path(path).unlink()
    with open_ledger(path) as ledger:
        assert ledger.head == head == read_head(path)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", "\xff"]
    + [f'{{"sequence": {sequence}, "hash": "a"}}' for sequence in ("0", "true", '"3"')]
    + ['{"sequence": 3}', '{"sequence": 3, "hash": 4}'],
)
def test_head_file_that_is_none(path: Path, content: str) -> None:
    head_path(path).write_bytes(content.encode("latin-1"))
    refused(path, "is not a ledger head")


def test_head_file_ahead_or_of_another_ledger(path: Path, tmp_path: Path) -> None:
    head = read_head(path)
    assert head is not None
    write_head(path, Head(head.sequence + 1, "0" * 64))
    refused(path, "ends at entry 12, but had reached 13")
    other = tmp_path / "other.sqlite"
    with open_ledger(other) as ledger:
        answered(ledger, "q1")
    copy_head(other, path)
    refused(path, r"Entry 4 .* history was replaced")


def test_a_lagging_head_file_is_a_crash_and_is_mended(path: Path) -> None:
    head = read_head(path)
    write_head(path, Head(7, _hash_at(path, 7)))
    with Ledger.open_read_only(path) as reader:
        assert reader.head == head
    with open_ledger(path):
        assert read_head(path) == head


def test_lost_database_beside_its_head_file(path: Path) -> None:
    path.unlink()
    refused(path, "is gone, but its head file is here")
    assert not path.exists()


def test_both_lost_is_a_new_book_that_only_a_sent_head_unmasks(path: Path) -> None:
    sent = read_head(path)
    assert sent is not None
    path.unlink()
    head_path(path).unlink()
    with open_ledger(path) as ledger:
        assert epsilon_of(ledger) == 0.0
        with pytest.raises(CorruptLedgerError, match="had reached 12"):
            ledger.confirm(sent)


# Files that are no ledgers


def _text(path: Path) -> None:
    path.write_text("not a database " * 500)


def _half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _stump(path: Path) -> None:
    os.truncate(path, 50)


def _zero(path: Path) -> None:
    os.truncate(path, 0)


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [_text, _half, _stump, _zero, _zeros])
@pytest.mark.parametrize("head_kept", [True, False])
def test_damaged_files(path: Path, damage: Callable[[Path], None], head_kept: bool) -> None:
    damage(path)
    if not head_kept:
        head_path(path).unlink()
    if damage is _zero and not head_kept:
        # Nothing at all: what a crash leaves in the first moment of a new ledger.
        with pytest.raises(StorageError, match="no ledger"):
            Ledger.open_read_only(path)
        with open_ledger(path) as ledger:
            assert ledger.head.sequence == 2
        return
    refused(path, "ledger")


def test_another_programs_database(tmp_path: Path) -> None:
    path = tmp_path / "bookmarks.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE entries (sequence INTEGER PRIMARY KEY, url TEXT)")
    connection.close()
    refused(path, "another database")
    assert [file.name for file in tmp_path.iterdir()] == ["bookmarks.sqlite"]


def test_an_emptied_database_beside_its_head_file(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    with pytest.raises(CorruptLedgerError, match="its entries are lost"):
        open_ledger(path)


def test_a_later_format(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(LedgerError, match=r"format 2, .* has 99; upgrade"):
        open_ledger(path)


@pytest.mark.parametrize("version", [-1, 1, 2])
def test_an_emptied_database_that_says_it_is_a_ledger(path: Path, version: int) -> None:
    for file in (path, head_path(path)):
        file.unlink()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version={version}")
    connection.close()
    refused(path, "does not have the tables")


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(where=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
def test_any_flipped_byte_is_noticed_or_harmless(path: Path, where: float, change: int) -> None:
    flipped = path.with_name("flipped.sqlite")
    content = bytearray(path.read_bytes())
    content[int(where * len(content))] ^= change
    flipped.write_bytes(content)
    copy_head(path, flipped)
    with Ledger.open_read_only(path) as ledger:
        expected = ledger.entries()
    try:
        with Ledger.open_read_only(flipped) as ledger:
            assert ledger.entries() == expected
            assert ledger._book.answer("q3") == b"answer 3"
    except FedtranscribeError:
        return  # noticed


# Folders and disks


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(StorageError):
        open_ledger(tmp_path / "data" / "ledger.sqlite")
    with pytest.raises(StorageError, match="no ledger"):
        Ledger.open_read_only(tmp_path / "data" / "ledger.sqlite")


def test_a_folder_where_the_file_should_be(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").mkdir()
    for attempt in (open_ledger, Ledger.open_read_only):
        with pytest.raises(StorageError, match="it is a folder"):
            attempt(tmp_path / "ledger.sqlite")


def test_full_disk_books_nothing_and_can_go_on(path: Path) -> None:
    with open_ledger(path) as ledger:
        connection = ledger._book._connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")
        ledger.reserve("big", "h", release(), "run")
        head = ledger.head
        with pytest.raises(StorageError, match="disk is full"):
            ledger.commit("big", bytes(100_000))
        assert ledger.head == head == ledger.verify() == read_head(path)
        connection.execute("PRAGMA max_page_count=1000000")
        ledger.commit("big", bytes(100_000))
    with open_ledger(path) as ledger:
        assert ledger.reserve("big", "h", release(), "run").answer == bytes(100_000)
        assert len(ledger.releases()) == QUERIES + 1


def test_file_size_limit_of_the_system(path: Path) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_ledger(path) as ledger:
        ledger.reserve("big", "h", release(), "run")
        head = ledger.head
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, before[1]))
        try:
            with pytest.raises(StorageError, match="disk"):
                ledger.commit("big", bytes(1_000_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert ledger.verify() == head
    with open_ledger(path) as ledger:
        assert ledger.reserve("big", "h", release(), "run").answer is None
        assert ledger.commit("big", bytes(1_000_000)) == ledger.verify()


def test_no_room_for_the_head_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with open_ledger(path) as ledger:
        old = read_head(path)
        with monkeypatch.context() as patch:
            patch.setattr("fedtranscribe.privacy.chain.os.fsync", no_space)
            with pytest.raises(StorageError, match="No space left"):
                ledger.reserve("q9", "h", release(), "run")
        assert read_head(path) == old
        assert sorted(f.name for f in path.parent.glob("*.new")) == []
        # Booked, but never computed: asking again costs nothing more and fixes the head file.
        spent = epsilon_of(ledger)
        assert ledger.reserve("q9", "h", release(), "run").answer is None
        assert epsilon_of(ledger) == spent
        assert read_head(path) == ledger.head == Head(13, ledger.head.hash)


# The chain by itself


def test_walk_names_the_first_break() -> None:
    fields = {"time": "t", "kind": "k", "run": "", "query_id": "", "query_hash": "", "content": ""}
    first = Entry.after(START, **fields)
    second = Entry.after(first.head, **fields)
    assert list(walk([first, second])) == [first, second]
    for broken, match in (
        ([second], "entry 1 after 0, found 2"),
        ([first, first], "entry 2 after 1, found 1"),
        ([first, Entry.after(Head(1, "f" * 64), **fields)], "entry 2 "),
    ):
        with pytest.raises(CorruptLedgerError, match=match):
            list(walk(broken))


def test_head_file_is_plain_json(path: Path) -> None:
    with open_ledger(path) as ledger:
        content = json.loads(head_path(path).read_text())
        assert content == {"sequence": ledger.head.sequence, "hash": ledger.head.hash}
        assert content["sequence"] == 2 + 2 * QUERIES


def test_foreign_bytes_in_the_data_id(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "l.sqlite", "Röntgen α 'x'") as ledger:
        assert ledger.data_id == "Röntgen α 'x'" != DATA
