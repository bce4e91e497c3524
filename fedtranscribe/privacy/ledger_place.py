"""Where the ledger of a data set lies: one data set, one ledger.

A second ledger would begin at nothing while the first goes on counting, and neither would know what
both have given away. So before a ledger is opened, every place is looked at where another of the
same data id could be: beside the data, under `FEDTRANSCRIBE_HOME`, under `~/.fedtranscribe`, and
where a marker points. If there is one elsewhere, the run is refused.

Which place is chosen
    The one that is named. Otherwise the data's own folder, if we may write there and not everybody
    may; otherwise the user's home, as for packaged sets, which have no folder. Others may list the
    data's folder (most systems make a folder 0755): the ledger's files are 0600, and what a listing
    shows, sizes and times, is public by decision. But a user who may write to the folder could take
    the ledger away, so such a folder is never chosen, and is refused where it is named. A holder's
    service keeps its ledger in a folder of its own, of which more is asked (`files.who_may_open`).

Markers
    A ledger that does not lie beside its data leaves a marker, `<data id>.ledger.place`, with its
    path: in the data's folder or, where that cannot be written, in `~/.fedtranscribe/ledgers`.
    Someone who may not read the marker still sees that there is one. Only where neither may be
    written is there no marker; any other fault is told. Names of long ids are cut, and end in a
    digest.

Published sets
    Trying a benchmark twice harms nobody. A ledger that is named for one may be a second one.

What is noticed, and what is not
    Noticed: a folder that became writable or read-only, another FEDTRANSCRIBE_HOME and another
    named ledger; another user, if the data's folder could be written when the ledger was made.
    Not noticed: another user's ledger for data in a folder that neither may write; another data id
    for the same records; a copy of the data in another folder, or in memory, where data have no
    folder; a ledger deleted with its marker.
"""

import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from fedtranscribe.errors import SecondLedgerError, StorageError
from fedtranscribe.files import unwritable, write_atomically
from fedtranscribe.privacy.chain import head_path

LEDGER = ".ledger.sqlite"
MARKER = ".ledger.place"

_LONGEST_QUOTED = 150
"""Bytes of a quoted id that a file's name has in full; SQLite and the head file add endings."""

_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT)
"""What it means that a folder cannot be written: not by us, or nobody can."""


@dataclass(frozen=True)
class LedgerPlace:
    """The place of one data set's ledger; `find` makes it, and looks at all others.

    Attributes:
        data_id: of the data.
        path: the ledger, absolute.
        folder: where the data lie; None for packaged sets.
        beside: ledgers of the same data that this one, named for published data, does not count.
        marks: whether a marker is left where it does not lie beside the data.
    """

    data_id: str
    path: Path
    folder: Path | None
    beside: tuple[Path, ...]
    marks: bool

    @classmethod
    def find(
        cls,
        data_id: str,
        folder: Path | None,
        named: Path | None = None,
        *,
        published: bool = False,
    ) -> "LedgerPlace":
        """Choose the place, and see that there is no ledger of these data in another.

        Args:
            data_id: of the data.
            folder: where they lie; None for packaged sets.
            named: what the user asks for.
            published: whether the data are a benchmark's, known by name.

        Raises:
            SecondLedgerError: there is one elsewhere; names it and the fix.
            StorageError: the named folder can be written by everybody.
        """
        folder = None if folder is None else folder.resolve()
        path = (named or _default(data_id, folder)).absolute()
        if named is not None and _open_to_all(path.parent):
            raise StorageError(
                f"All users may write to {path.parent}, and could remove a ledger; "
                f"chmod o-w {path.parent}, or name another place by --ledger."
            )
        others = tuple(dict.fromkeys(_others(data_id, folder, path)))
        own_books = published and named is not None
        if others and not own_books:
            raise SecondLedgerError(_refusal(data_id, folder, path, others[0]))
        return cls(data_id, path, folder, others, marks=not published)

    @property
    def words(self) -> str | None:
        """What has to be said about it; None: nothing."""
        if not self.beside:
            return None
        return (
            f"ledger {self.path}: a separate one, for a public set; it does not count what is "
            f"booked in {self.beside[0]}"
        )

    def mark(self) -> None:
        """Leave a marker where somebody would look who does not know of the ledger.

        Where no marker may be written there is none; `find` says what is not noticed then.

        Raises:
            StorageError: a full disk, or another fault that says nothing about who may write.
        """
        if not self.marks:
            return
        for home in _homes(self.folder):
            if self.path == home / _name(self.data_id, LEDGER):
                return
            marker = home / _name(self.data_id, MARKER)
            if _target(marker) == self.path:
                return
            if home == self.folder and not _writable(home):
                continue
            if _takes_files(home):
                write_atomically(marker, f"{self.path}\n".encode())
                return


def _name(data_id: str, ending: str) -> str:
    """Name of a file of these data; a long id is cut, since a name may have 255 bytes."""
    quoted = quote(data_id, safe="")
    if len(quoted) > _LONGEST_QUOTED:
        digest = hashlib.sha256(data_id.encode()).hexdigest()[:16]
        quoted = f"{quoted[:100]}-{digest}"
    return f"{quoted}{ending}"


def _names(data_id: str, ending: str) -> list[str]:
    """`_name`, and the one in which earlier versions did not cut the id."""
    uncut = f"{quote(data_id, safe='')}{ending}"
    return list(dict.fromkeys([_name(data_id, ending), uncut]))


def _default(data_id: str, folder: Path | None) -> Path:
    if folder is not None and _writable(folder) and not _open_to_all(folder):
        return folder / _name(data_id, LEDGER)
    return _own_home() / _name(data_id, LEDGER)


def _user_home() -> Path:
    return Path.home() / ".fedtranscribe" / "ledgers"


def _own_home() -> Path:
    """The same, unless it was moved."""
    moved = os.environ.get("FEDTRANSCRIBE_HOME")
    return Path(moved) / "ledgers" if moved else _user_home()


def _homes(folder: Path | None) -> list[Path]:
    """Where markers may lie: with the data, then with the user."""
    return [_user_home()] if folder is None else [folder, _user_home()]


def _others(data_id: str, folder: Path | None, chosen: Path) -> Iterator[Path]:
    """Ledgers of the data in other places than the chosen one."""
    for home in dict.fromkeys([*_homes(folder), _own_home()]):
        for name in _names(data_id, LEDGER):
            ledger = (home / name).absolute()
            if _present(ledger) and not _same(ledger, chosen):
                yield ledger
        for name in _names(data_id, MARKER):
            target = _target(home / name)
            if target is not None and not _same(target, chosen):
                yield target


def _target(marker: Path) -> Path | None:
    """The ledger that a marker names; the marker itself where this user may not read it."""
    try:
        text = marker.read_text(encoding="utf-8").strip()
    except (PermissionError, IsADirectoryError, ValueError):
        return marker
    except OSError as error:
        # A name too long for the file system names no file, in particular none of ours.
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            return None
        raise StorageError(
            f"Cannot read {marker} ({error.strerror or error}), which may say where the ledger of "
            f"these data lies; fix the folder, or wait until it is there again."
        ) from None
    return Path(text) if text else marker


def _present(ledger: Path) -> bool:
    """Whether there is a ledger, or what is left of one."""
    try:
        return (ledger.is_file() and ledger.stat().st_size > 0) or head_path(ledger).exists()
    except OSError:
        return False  # a folder that we may not look into


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _takes_files(folder: Path) -> bool:
    """Whether files can be made in a folder, which is made if it is not there.

    It is tried: what modes allow, a network's file system may still refuse.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        if error.errno in _NOT_OURS:
            return False
        raise unwritable(folder, error) from None


def _open_to_all(folder: Path) -> bool:
    try:
        return bool(folder.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False  # not there yet: it is made for the ledger alone


def _refusal(data_id: str, folder: Path | None, chosen: Path, other: Path) -> str:
    """Why a second ledger is not begun, and what to do."""
    if other.name.endswith(MARKER):
        return (
            f"The data {data_id!r} have a ledger already; the marker {other} says where, and this "
            f"user may not read it. Ask its owner for the ledger."
        )
    if not _present(other):
        marker = next(
            marker
            for home in dict.fromkeys([*_homes(folder), _own_home()])
            for name in _names(data_id, MARKER)
            if _target(marker := home / name) == other
        )
        return (
            f"The ledger of the data {data_id!r} is {other}, says {marker}, and it is not there, "
            f"or this user may not look there. Put it back with its .head and .record "
            f"files; if it was moved, write its new path into {marker.name}."
        )
    if _present(chosen):
        return (
            f"The data {data_id!r} have two ledgers, {other} and {chosen}, and neither counts what "
            f"is booked in the other. Look at both (fedtranscribe holder ledger show), go on with "
            f"one under a limit that leaves room for the other, and archive the other elsewhere."
        )
    return (
        f"The data {data_id!r} have a ledger already, {other}; a second one, {chosen}, would not "
        f"count what is booked there. Name the first one (--ledger, or ledger in a holder's "
        f"policy file), or move it with its .head and .record files to {chosen}. If these are "
        f"other data under the same name, give them a data_id of their own (key data_id of an "
        f"archive), or rename their folder or file."
    )
