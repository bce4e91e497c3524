"""One data set, one ledger: every place where another could be is looked at."""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

import fedtranscribe
from fedtranscribe.errors import SecondLedgerError, StorageError
from fedtranscribe.privacy import ledger_place
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.ledger_place import LedgerPlace

DATA = "npz:scans"
NAME = "npz%3Ascans.ledger.sqlite"
MARKER = "npz%3Ascans.ledger.place"
Find = Callable[..., LedgerPlace]


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home, where no FEDTRANSCRIBE_HOME is set."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("FEDTRANSCRIBE_HOME")
    return tmp_path / "user" / ".fedtranscribe" / "ledgers"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture
def find(folder: Path) -> Find:
    return lambda named=None, **options: LedgerPlace.find(DATA, folder, named, **options)


@pytest.fixture
def read_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Takes the right to write to the data's folder away, which root would still have."""

    real = ledger_place._writable

    def switch(on: bool) -> None:
        monkeypatch.setattr(
            ledger_place, "_writable", lambda path: real(path) and not (on and path == folder)
        )

    return switch


def begun(place: LedgerPlace) -> LedgerPlace:
    """What a run does with its place."""
    Ledger.open(place.path, place.data_id).close()
    place.mark()
    return place


# ---------------------------------------------------------------- which place


def test_beside_the_data_even_where_others_may_list_them(find: Find, folder: Path) -> None:
    place = begun(find())
    assert place.path == folder / NAME
    assert find() == place
    assert find(folder / NAME) == place, "the same place by name"
    assert {file.name for file in folder.iterdir()} == {NAME, f"{NAME}.head"}, "needs no marker"
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in folder.iterdir())


def test_packaged_sets_and_read_only_folders_use_the_home(
    find: Find, user: Path, read_only: Callable[[bool], None]
) -> None:
    assert LedgerPlace.find("digits", None).path == user / "digits.ledger.sqlite"
    read_only(True)
    assert begun(find()).path == user / NAME
    assert find().path == user / NAME


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_folder_that_everybody_may_write_is_never_chosen(
    find: Find, folder: Path, user: Path, tmp_path: Path, mode: int
) -> None:
    folder.chmod(mode)
    assert begun(find()).path == user / NAME
    assert (folder / MARKER).read_text() == f"{user / NAME}\n"
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(StorageError, match=r"chmod o-w .*open"):
        find(tmp_path / "open" / "book.sqlite")


# ---------------------------------------------------------------- a second one is refused


def test_a_folder_that_became_writable(
    find: Find, user: Path, read_only: Callable[[bool], None]
) -> None:
    read_only(True)
    begun(find())
    read_only(False)
    with pytest.raises(SecondLedgerError, match=f"have a ledger already, {user / NAME}"):
        find()
    assert find(user / NAME).path == user / NAME, "the fix that it names"


def test_a_folder_that_became_read_only(
    find: Find, folder: Path, read_only: Callable[[bool], None]
) -> None:
    begun(find())
    read_only(True)
    with pytest.raises(SecondLedgerError, match=str(folder / NAME)):
        find()


def test_a_folder_that_became_open_to_all(find: Find, folder: Path) -> None:
    begun(find())
    folder.chmod(0o777)
    with pytest.raises(SecondLedgerError, match=str(folder / NAME)):
        find()


@pytest.mark.parametrize("first", ["", "one"])
@pytest.mark.parametrize("second", ["", "two"])
def test_another_home(
    find: Find,
    tmp_path: Path,
    read_only: Callable[[bool], None],
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    second: str,
) -> None:
    """An empty value is no value: the user's own home."""

    def move(name: str) -> None:
        monkeypatch.setenv("FEDTRANSCRIBE_HOME", str(tmp_path / name) if name else "")

    read_only(True)
    move(first)
    here = begun(find())
    move(second)
    if first == second:
        assert find() == here
    else:
        with pytest.raises(SecondLedgerError, match=str(here.path)):
            find()
        assert find(here.path).path == here.path


def test_a_named_ledger_of_own_data(find: Find, folder: Path, tmp_path: Path) -> None:
    book = tmp_path / "books" / "book.sqlite"
    begun(find(book))
    marker = folder / MARKER
    assert marker.read_text() == f"{book}\n"
    assert stat.S_IMODE(marker.stat().st_mode) == 0o600
    assert find(book).path == book
    for named in (None, tmp_path / "other.sqlite"):
        with pytest.raises(SecondLedgerError, match=str(book)):
            find(named)


def test_a_named_ledger_where_there_is_one_in_its_usual_place(find: Find, tmp_path: Path) -> None:
    begun(find())
    with pytest.raises(SecondLedgerError, match="would not count"):
        find(tmp_path / "book.sqlite")
    begun(find(tmp_path / "book.sqlite", published=True))


def test_two_that_exist_both_count(find: Find, user: Path) -> None:
    begun(find())
    Ledger.open(user / NAME, DATA).close()
    with pytest.raises(SecondLedgerError, match="two ledgers"):
        find()


def test_a_ledger_that_was_moved(find: Find, folder: Path, tmp_path: Path) -> None:
    old, new = tmp_path / "book.sqlite", tmp_path / "new.sqlite"
    begun(find(old))
    for end in ("", ".head"):
        old.with_name(old.name + end).rename(new.with_name(new.name + end))
    with pytest.raises(SecondLedgerError, match=f"is {old}, says {folder / MARKER}"):
        find(new)
    (folder / MARKER).write_text(f"{new}\n")
    assert find(new).path == new


def test_a_lost_ledger_is_not_begun_again_elsewhere(find: Find, folder: Path, user: Path) -> None:
    begun(find())
    (folder / NAME).unlink()
    folder.chmod(0o777)
    with pytest.raises(SecondLedgerError, match=str(folder / NAME)):
        find()


def test_a_link_to_the_folder_is_the_folder(find: Find, folder: Path, tmp_path: Path) -> None:
    begun(find())
    (tmp_path / "link").symlink_to(folder)
    assert LedgerPlace.find(DATA, tmp_path / "link").path == folder / NAME


@pytest.mark.parametrize("content", [b"", b"\xff\xfe"])
def test_a_marker_that_cannot_be_read_is_a_ledger_too(
    find: Find, folder: Path, content: bytes
) -> None:
    (folder / MARKER).write_bytes(content)
    with pytest.raises(SecondLedgerError, match="Ask its owner"):
        find()


def test_a_published_set_may_have_ledgers_of_its_own(
    find: Find, folder: Path, tmp_path: Path
) -> None:
    begun(find(published=True))
    place = begun(find(tmp_path / "book.sqlite", published=True))
    assert place.words is not None
    assert str(folder / NAME) in place.words
    assert not (folder / MARKER).exists()
    assert find(published=True).path == folder / NAME


# ---------------------------------------------------------------- names and faults


@pytest.mark.parametrize(
    "data", ["癌" * 16, "癌" * 25, "癌" * 30, "clinic/" * 28 + "x", "癌" * 200]
)
def test_a_long_id_has_one_ledger_and_one_marker(folder: Path, tmp_path: Path, data: str) -> None:
    """A name may have 255 bytes, and a quoted id has up to nine for a character."""
    beside = begun(LedgerPlace.find(data, folder)).path
    assert LedgerPlace.find(data, folder).path == beside
    for end in ("", ".head"):
        beside.with_name(beside.name + end).unlink()
    begun(LedgerPlace.find(data, folder, tmp_path / "one.sqlite"))
    for named in (None, tmp_path / "two.sqlite"):
        with pytest.raises(SecondLedgerError, match=r"one\.sqlite"):
            LedgerPlace.find(data, folder, named)


def test_long_ids_that_begin_alike_are_two(folder: Path) -> None:
    one, other = (LedgerPlace.find("癌" * 30 + end, folder).path for end in "ab")
    assert one != other


def test_a_ledger_under_the_uncut_name_of_an_earlier_version(folder: Path) -> None:
    data = "癌" * 20
    old = folder / f"{quote(data, safe='')}.ledger.sqlite"
    Ledger.open(old, data).close()
    with pytest.raises(SecondLedgerError, match="have a ledger already"):
        LedgerPlace.find(data, folder)


def test_a_marker_that_is_not_written_for_want_of_space_is_an_error(
    find: Find, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StorageError("No space left on device")

    place = find(tmp_path / "book.sqlite")
    monkeypatch.setattr(ledger_place, "write_atomically", full)
    with pytest.raises(StorageError, match="No space"):
        place.mark()


def test_a_marker_that_may_not_be_written_is_left_out(
    find: Find, folder: Path, user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network's file system may refuse what modes allow."""

    def forbidden(**options: Path) -> None:
        if options["dir"] == folder:
            raise PermissionError(errno.EACCES, "Permission denied")
        raise OSError(errno.ENOSPC, "No space left on device")

    place = find(tmp_path / "book.sqlite")
    with monkeypatch.context() as patch:
        patch.setattr(ledger_place.tempfile, "TemporaryFile", forbidden)
        with pytest.raises(StorageError, match=f"Cannot write {user}.*No space"):
            place.mark()
        patch.setattr(Path, "mkdir", forbidden_folder)
        place.mark()
    assert not list(folder.iterdir())


def forbidden_folder(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


def test_a_fault_that_hides_a_marker_is_told(
    find: Find, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path, encoding: str) -> str:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "read_text", broken)
    with pytest.raises(StorageError, match=f"Cannot read {folder}.*Input/output error"):
        find()


# ---------------------------------------------------------------- another user

OTHER_USER = """
import os, sys
from pathlib import Path
from fedtranscribe.errors import SecondLedgerError
from fedtranscribe.privacy.ledger_place import LedgerPlace
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
os.environ["HOME"] = "/nonexistent"
try:
    print("BEGINS", LedgerPlace.find("npz:scans", Path(sys.argv[1])).path)
except SecondLedgerError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
@pytest.mark.parametrize("named", [False, True])
def test_another_user(find: Find, folder: Path, tmp_path: Path, named: bool) -> None:
    """Who may read the data, and neither their folder's ledger nor its marker."""
    begun(find(tmp_path / "book.sqlite" if named else None))
    for parent in [folder, *folder.parents]:
        if str(parent).startswith("/tmp/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    package = Path(fedtranscribe.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", OTHER_USER, str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(package)},
        check=True,
    )
    there = MARKER if named else NAME
    assert f"already{';' if named else ','} " in done.stdout
    assert str(folder / there) in done.stdout
