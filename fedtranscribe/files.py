"""Files: written whole or not at all, for their owner alone; JSON and TOML read strictly."""

import contextlib
import errno
import json
import os
import stat
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedtranscribe.errors import StorageError

PRIVATE = 0o600
"""Mode of a file for its owner alone."""


def write_atomically(path: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Replace `path` by `content`, durably."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise unwritable(path, error) from None
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            if mode != PRIVATE:
                os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError) -> StorageError:
    """The one-line error for a path that cannot be written."""
    return StorageError(
        f"Cannot write {path}: {error.strerror or error}. "
        "Free space, or choose another folder with --out."
    )


def expect_free(out: Path) -> None:
    """Refuse a path at which something would be overwritten."""
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise StorageError(f"{out} exists already; choose another --out.")


def open_private(path: Path, flags: int) -> int:
    """Descriptor of a file for its owner alone; it is made if it is not there."""
    descriptor = os.open(path, flags | os.O_CREAT, PRIVATE)
    keep_private(path)
    return descriptor


def keep_private(path: Path) -> None:
    """Narrow the mode of a file to its owner, where it is wider and ours to change."""
    if os.name != "posix" or not path.exists():
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        with contextlib.suppress(PermissionError):
            path.chmod(mode & stat.S_IRWXU)


def who_may_open(folder: Path) -> str | None:
    """Who, besides its owner, may open a folder, in words; None: nobody that matters.

    Others never may, and the group not where the folder is ours: in the group of the holder's
    service is the SuperNode's user. One kind of folder is let off, a cluster's volume with an
    `fsGroup`: it belongs to root, who has given it to a group of ours (setgid) and has left the
    rights that others had. We could not change them, and nobody else has the volume. Even there
    others must not write.
    """
    found = folder.stat()
    mode, ours = stat.S_IMODE(found.st_mode), found.st_uid == os.geteuid()
    if mode & (stat.S_IWOTH if _lent(found) else stat.S_IRWXO):
        return "all users"
    return "its group" if ours and mode & stat.S_IRWXG else None


def who_may_reach(path: Path) -> str | None:
    """Who, besides owners, may open a file or folder through all folders above it, in words.

    Unlike for `who_may_open`, the group counts in folders of others, too: one that is closed to all
    but its group keeps no SuperNode out that is in that group.
    """
    whole = path.resolve()
    parts = [part.stat() for part in (whole, *whole.parents)]
    if all(found.st_mode & stat.S_IRWXO for found in parts):
        return "all users"
    closed = (not found.st_mode & (stat.S_IRWXO | stat.S_IRWXG) for found in parts)
    return None if any(closed) or any(map(_volume, (whole, *whole.parents))) else "its group"


def _volume(part: Path) -> bool:
    """Whether it is a cluster's volume, of which `who_may_open` speaks, closed to others."""
    found = part.stat()
    return (
        part.is_mount() and found.st_uid == 0 and _lent(found) and not found.st_mode & stat.S_IRWXO
    )


def _lent(found: os.stat_result) -> bool:
    """Whether it is a folder that belongs to somebody else, who gave it to a group of ours."""
    ours, setgid = found.st_uid == os.geteuid(), bool(found.st_mode & stat.S_ISGID)
    return not ours and setgid and found.st_gid in {os.getegid(), *os.getgroups()}


MOST_BYTES = 64 * 2**20
"""Size of the largest document; the events of a thousand holders are a few MiB."""

MOST_LEVELS = 50
"""How deep a document may be nested; ours have about ten levels."""


def read_bounded(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file.

    Args:
        path: of the file; anything but a regular file is refused, since a pipe would block.
        most: bytes that it may have.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with path.open("rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise ValueError(f"more than {most:,} bytes")
    return content


def parse_json(text: str | bytes, most: int = MOST_BYTES) -> Any:
    """What a JSON document holds.

    Args:
        text: the document.
        most: characters or bytes that it may have.
    """
    if len(text) > most:
        raise ValueError(f"more than {most:,} bytes")
    try:
        return _shallow(json.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_toml(text: str, most: int = MOST_BYTES) -> dict[str, Any]:
    """What a TOML document holds."""
    if len(text) > most:
        raise ValueError(f"more than {most:,} bytes")
    try:
        return _shallow(tomllib.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path, most: int = MOST_BYTES) -> Any:
    """What a JSON file holds."""
    return parse_json(read_bounded(path, most), most)


def read_json_lines(path: Path) -> list[Any]:
    """What each line of a file holds."""
    return [parse_json(line) for line in read_bounded(path).splitlines()]


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where it is absent or not whole yet."""
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def json_objects(lines: Iterable[str | bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects of lines; a line that is none is passed over."""
    for line in lines:
        try:
            value = parse_json(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def _shallow(value: Any) -> Any:
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [inner for outer in level for inner in _containers(outer)]
        if not level:
            return value
    raise ValueError("nested too deeply")


def _containers(value: Any) -> Iterator[Any]:
    entries = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        yield from (entry for entry in entries if isinstance(entry, dict | list))
