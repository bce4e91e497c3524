"""Writing files so that a crash leaves the old content or the new, never half of it.

And reading JSON that another process is writing, or that a crash has cut short.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedtranscribe.errors import StorageError


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, durably.

    Raises:
        StorageError: the folder is missing or read-only, or the disk is full.
    """
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


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where it is absent or not whole yet."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def json_objects(lines: Iterable[str | bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects of lines; a line that is none is passed over."""
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value
