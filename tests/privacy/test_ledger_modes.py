"""Nobody but its owner reads a ledger, its log, its index or its head."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger_cases import answered, open_ledger

from fedtranscribe.files import who_may_open
from fedtranscribe.privacy.ledger import Ledger

ENDS = ("", "-wal", "-shm", ".head")


@pytest.fixture
def wide() -> Iterator[None]:
    """The most careless umask."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(path: Path) -> dict[str, int]:
    files = {end: path.with_name(path.name + end) for end in ENDS}
    return {end: stat.S_IMODE(file.stat().st_mode) for end, file in files.items() if file.exists()}


def test_new_files_are_for_their_owner_alone(tmp_path: Path, wide: None) -> None:
    path = tmp_path / "new" / "ledger.sqlite"
    with open_ledger(path) as ledger:
        answered(ledger, "q1")
        assert modes(path) == dict.fromkeys(ENDS, 0o600)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700, "it was made for the ledger"
        assert {file.name for file in path.parent.iterdir()} == {path.name + end for end in ENDS}


def test_older_files_are_narrowed_when_the_ledger_is_opened(tmp_path: Path, wide: None) -> None:
    path = tmp_path / "ledger.sqlite"
    with open_ledger(path) as writer:
        answered(writer, "q1")
        for end in ENDS:
            path.with_name(path.name + end).chmod(0o644)
        with Ledger.open_read_only(path):
            assert set(modes(path).values()) == {0o644}, "reading changes nothing"
        with open_ledger(path) as ledger:
            answered(ledger, "q2")
            assert modes(path) == dict.fromkeys(ENDS, 0o600)


def test_a_draft_of_the_head_that_a_crash_left_is_narrowed(tmp_path: Path, wide: None) -> None:
    path = tmp_path / "ledger.sqlite"
    draft = path.with_name("ledger.sqlite.head.new")
    draft.write_bytes(b"half")
    with open_ledger(path):
        assert modes(path)[".head"] == 0o600


@pytest.mark.parametrize(
    ("mode", "who"),
    [
        (0o700, None),
        (0o500, None),
        (0o701, "all users"),
        (0o755, "all users"),
        (0o777, "all users"),
        (0o1777, "all users"),
        (0o750, "its group"),
        (0o2770, "its group"),
    ],
)
def test_who_may_open_a_folder_of_ours(tmp_path: Path, mode: int, who: str | None) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(mode)
    assert who_may_open(folder) == who


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
@pytest.mark.parametrize(
    ("mode", "who"),
    [
        (0o2775, None),  # what kubelet makes of a new volume's 0755 under an fsGroup
        (0o2770, None),
        (0o750, None),
        (0o2777, "all users"),
        (0o775, "all users"),  # no fsGroup: any group folder that others can list
    ],
)
def test_who_may_open_a_folder_that_a_cluster_lent(
    tmp_path: Path, mode: int, who: str | None
) -> None:
    folder = tmp_path / "volume"
    folder.mkdir()
    os.chown(folder, 10001, os.getegid())
    folder.chmod(mode)
    assert who_may_open(folder) == who
