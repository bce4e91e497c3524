"""Writing files so that a crash leaves the old content or the new, never half of it."""

import os
import tempfile
from pathlib import Path

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
