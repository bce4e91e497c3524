"""Metrics in a file for node_exporter's textfile collector, and who may read it.

A file and not a port: the holder service has no network, and a port on this machine would be open
to the SuperNode's user, whose app comes from the server. A file has an owner and a group.
"""

import logging
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path

from fedtranscribe.errors import StorageError
from fedtranscribe.files import write_atomically

log = logging.getLogger(__name__)

_SECONDS = 15.0
_PATIENCE_SECONDS = 5.0
_MODE = 0o640


class MetricsFile:
    """Writes the metrics every 15 seconds, as long as it is entered; then the file is gone.

    Args:
        path: of the file.
        render: gives what is written.
        measure: brings the ledger's values up to date, on the thread that owns it. If that is busy
            with a long answer, the values of before are written.

    Raises:
        StorageError: on entering, if the file cannot be written.
    """

    def __init__(
        self, path: Path, render: Callable[[], bytes], measure: Callable[[], Future[None]]
    ) -> None:
        self._path, self._render, self._measure = path, render, measure
        self._measuring: Future[None] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_writing, name="metrics", daemon=True)

    def __enter__(self) -> None:
        # Zeros that only mean "not looked at yet" would raise alerts.
        self._measuring = self._measure()
        wait([self._measuring])
        self.write()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._path.unlink(missing_ok=True)

    def write(self) -> None:
        """Write the file now.

        Raises:
            StorageError: it cannot be written.
        """
        if self._measuring is None or self._measuring.done():
            self._measuring = self._measure()
        wait([self._measuring], timeout=_PATIENCE_SECONDS)
        write_atomically(self._path, self._render(), mode=_MODE)

    def _keep_writing(self) -> None:
        failing = False
        while not self._stop.wait(_SECONDS):
            try:
                self.write()
                failing = False
            except StorageError as error:
                # Answers matter more; the age of the file raises the alert.
                if not failing:
                    log.warning("Metrics are not written: %s", error)
                failing = True


def expect_closed(path: Path, socket: Path) -> None:
    """Refuse a folder whose metrics the SuperNode's user, and so the server, could read.

    Args:
        path: of the metrics' file.
        socket: the service's, whose group the SuperNode's user is in.

    Raises:
        StorageError: the folder is absent, open to others or to that group, or would not hand its
            own group on to the file.
    """
    folder = path.parent
    fix = f"sudo install -d -o USER -g COLLECTOR -m 2750 {folder}"
    if not folder.is_dir():
        raise StorageError(
            f"The metrics' folder {folder} is absent; make it for the service's user and the "
            f"collector's group: {fix}"
        )
    found = folder.stat()
    if found.st_mode & stat.S_IRWXO:
        raise StorageError(
            f"The metrics' folder {folder} is open to all users (mode "
            f"{stat.S_IMODE(found.st_mode):o}), the SuperNode's among them; {fix}"
        )
    if not found.st_mode & stat.S_IRWXG:
        return
    if socket.parent.is_dir() and found.st_gid == socket.parent.stat().st_gid:
        raise StorageError(
            f"The metrics' folder {folder} is open to the group of the socket's folder, in which "
            f"the SuperNode's user is; {fix}"
        )
    if not found.st_mode & stat.S_ISGID:
        raise StorageError(
            f"The metrics' folder {folder} does not hand its group on to the file in it; {fix}"
        )
