"""Keeps one program and ends all that descends from it, when it ends or when its caller goes.

    python keeper.py HOME LOG PROGRAM [ARGUMENT …]

HOME is the program's temporary folder, known to every descendant as FLWR_HOME. Its `superlink.log`,
where the program's output goes, is added to LOG in the end, and the folder is removed.

Killing a process group would not do: Ray puts its processes into sessions of their own, and one
whose parent has gone is nobody's descendant any more. On Linux the keeper is therefore the parent
that orphans get; elsewhere they are known from an earlier look, or by FLWR_HOME (which alone would
not do either, for Ray's workers overwrite their environment when they rename themselves).

The caller holds the other end of the keeper's standard input and just closes it; the kernel does
that for a caller that is killed. So even `kill -9` leaves nothing behind.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

# Flower takes down its own run and Ray its workers, if they are let.
GRACE_SECONDS = 10
LOG = "superlink.log"
KEEPER = str(Path(__file__).resolve())

_LOOK_SECONDS = 0.5
_PR_SET_CHILD_SUBREAPER = 36


class Family:
    """All that descends from this process."""

    def __init__(self, home: Path) -> None:
        self._home = str(home)
        self._known: set[psutil.Process] = set()

    def look(self) -> None:
        """Note who there is, so that they are known when their parents have gone."""
        for process in [psutil.Process(), *self._known]:
            with contextlib.suppress(psutil.Error):
                self._known |= {*process.children(recursive=True)}
        self._known = {process for process in self._known if lives(process)}

    def living(self) -> set[psutil.Process]:
        """Who is there now, orphans included."""
        _reap()
        self.look()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get("FLWR_HOME") == self._home:
                    self._known.add(process)
        return {process for process in self._known if lives(process)}

    def end(self) -> None:
        """Wait for the members to end, then ask them to, then kill them."""
        self._wait()
        for send in (psutil.Process.terminate, psutil.Process.kill):
            for process in self.living():
                with contextlib.suppress(psutil.Error):
                    send(process)
            self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + GRACE_SECONDS
        while self.living() and time.monotonic() < deadline:
            time.sleep(0.2)


def lives(process: psutil.Process) -> bool:
    """Whether it runs; a dead one that nobody has asked for yet does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def keep(home: Path, log_copy: Path, command: list[str]) -> int:
    """Run a command until it ends or we are told to end it."""
    ended = _end_requested()
    _adopt_orphans()
    family = Family(home)
    with (home / LOG).open("ab") as log:
        program = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        while program.poll() is None and not ended.wait(_LOOK_SECONDS):
            family.look()
    finally:
        family.look()
        program.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(GRACE_SECONDS)
        family.end()
        with contextlib.suppress(OSError), log_copy.open("ab") as copy:
            copy.write((home / LOG).read_bytes())
        shutil.rmtree(home, ignore_errors=True)
    code = program.wait()
    return code if code >= 0 else 128 - code


def _end_requested() -> threading.Event:
    """An event for the end of standard input, and for the signals that ask for it."""
    ended = threading.Event()

    def read() -> None:
        while os.read(0, 1):
            pass
        ended.set()

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda *_: ended.set())
    threading.Thread(target=read, daemon=True).start()
    return ended


def _adopt_orphans() -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _reap() -> None:
    """Take note of dead orphans that became our children, so that they do not stay as zombies."""
    if hasattr(os, "WNOHANG"):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    sys.exit(keep(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
