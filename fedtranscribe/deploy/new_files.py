"""Files that appear whole, with their final mode, and never in place of another."""

import os
import tempfile
from pathlib import Path

from fedtranscribe.errors import StorageError
from fedtranscribe.files import unwritable

PRIVATE = 0o600
PUBLIC = 0o644


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Make a file that nobody else can ever have seen half written or with a wider mode.

    Raises:
        StorageError: there is such a file already, or the folder cannot be written.
    """
    _write(path, content, mode, replace=False)


def write_again(path: Path, content: bytes, mode: int) -> None:
    """The same, in place of what is there.

    Raises:
        StorageError: the folder cannot be written.
    """
    _write(path, content, mode, replace=True)


def refuse_existing(*paths: Path) -> None:
    """See that none of these is there, before anything is made.

    Raises:
        StorageError: names those that are.
    """
    there = [str(path) for path in paths if os.path.lexists(path)]
    if there:
        raise StorageError(
            f"{' and '.join(there)} exist{'s' if len(there) == 1 else ''} already, and keys are "
            "never overwritten; choose another place, or move the old ones away."
        )


def _write(path: Path, content: bytes, mode: int, replace: bool) -> None:
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # mkstemp makes it 0600; it is widened, if at all, only under its temporary name.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        if replace:
            temporary.replace(path)
        else:
            # Unlike a rename, a link fails where the name is taken.
            path.hardlink_to(temporary)
    except FileExistsError:
        refuse_existing(path)
        raise
    except OSError as error:
        raise unwritable(path, error) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
