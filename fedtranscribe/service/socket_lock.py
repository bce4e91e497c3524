"""One holder service per socket."""

import fcntl
import os
from pathlib import Path
from typing import IO

from fedtranscribe.errors import StorageError
from fedtranscribe.files import open_private, unwritable


class SocketLock:
    """Hold the lock beside the socket: a second service would take it away unnoticed."""

    def __init__(self, socket: Path) -> None:
        self._path = socket.with_name(f"{socket.name}.lock")
        self._file: IO[str] | None = None

    def __enter__(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # For us alone: who may open it may hold the lock, and no service could start again.
            self._file = os.fdopen(open_private(self._path, os.O_RDWR), "r+")
        except OSError as error:
            raise unwritable(self._path, error) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise StorageError(
                f"Another holder service answers on {self._path.with_suffix('')}; stop it first."
            ) from None

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
