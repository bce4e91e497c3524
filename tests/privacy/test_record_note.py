"""The note of how ids are made: what is alike, what is refused, and two processes at once."""

import json
from pathlib import Path
from threading import Event, Thread

import pytest

from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy import budget as record_note
from fedtranscribe.privacy.budget import (
    LISTED,
    OWN,
    PATHS,
    POSITION,
    TRAIN_IDS,
    UNSTATED,
    alike,
    expect_noted,
    note_path,
    settle,
)
from fedtranscribe.privacy.ledger import Ledger

WAYS = (POSITION, OWN, PATHS, LISTED, UNSTATED, TRAIN_IDS, "id_pattern (p.*)_", "id_column patient")


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def test_only_teachers_of_an_earlier_version_leave_two_ways_open():
    pairs = {(one, other) for one in WAYS for other in WAYS if one != other and alike(one, other)}
    assert pairs == {(UNSTATED, OWN), (OWN, UNSTATED), (UNSTATED, PATHS), (PATHS, UNSTATED)}


@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("then", WAYS)
def test_the_first_way_stays_until_the_holder_adds_another(ledger: Path, first: str, then: str):
    expect_noted(ledger, then)
    settle(ledger, first)
    if alike(first, then):
        settle(ledger, then)
    else:
        with pytest.raises(ConfigError, match="Expected records as for the ledger"):
            settle(ledger, then)
        assert json.loads(note_path(ledger).read_text()) == [first]
        note_path(ledger).write_text(json.dumps([first, then]))
        settle(ledger, then)
    settle(ledger, first)


@pytest.mark.parametrize("ids", [POSITION, TRAIN_IDS])
def test_row_numbers_that_were_noted_as_ids_are_named(ledger: Path, ids: str):
    """An earlier version booked each image of an archive in MedMNIST's layout as a record."""
    settle(ledger, OWN)
    with pytest.raises(ConfigError, match=f'earlier versions noted row numbers.*add "{ids}"'):
        settle(ledger, ids)


def test_what_was_not_known_is_noted_once_it_is(ledger: Path):
    settle(ledger, UNSTATED)
    settle(ledger, PATHS)
    settle(ledger, UNSTATED)
    assert json.loads(note_path(ledger).read_text()) == [PATHS]
    with pytest.raises(ConfigError):
        settle(ledger, OWN)


def test_of_two_processes_one_waits_and_sees_the_note_of_the_other(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
):
    begin, refused = Event(), Event()

    def other() -> None:
        with Ledger.open(ledger, "data") as second:
            opened.set()
            begin.wait()
            try:
                second.note_ids(POSITION)
            except ConfigError:
                refused.set()

    def let_the_other_go_first(path: Path, content: bytes) -> None:
        begin.set()
        thread.join(0.3)
        assert thread.is_alive(), "it waits"
        write(path, content)

    opened, thread, write = Event(), Thread(target=other), record_note.write_atomically
    monkeypatch.setattr(record_note, "write_atomically", let_the_other_go_first)
    try:
        with Ledger.open(ledger, "data") as first:
            thread.start()
            opened.wait()
            first.note_ids(OWN)
    finally:
        begin.set()
        thread.join()
    assert refused.is_set()
    assert json.loads(note_path(ledger).read_text()) == [OWN]
