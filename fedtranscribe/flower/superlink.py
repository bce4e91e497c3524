"""A SuperLink for one simulated run: private, temporary, and gone afterwards with all it started.

`flwr run` alone starts a daemon that stays, that keeps the first caller's environment, and its exit
code is 0 when a run has failed. Here a SuperLink of our own listens on a free local port with a
temporary home, `flwr ls` says how the run ended, and leaving the context ends every process below
the SuperLink, Ray's included (see `keeper.py`).

`flwr.simulation.run_simulation` would be shorter, and was tried with flwr 1.41: it is deprecated,
takes no run-config, ends with exit code 0 when the ServerApp left with another, and after
`kill -9` processes of Ray stay.

Nobody but this machine's users can reach it; it is for simulations, never for a deployment.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import tomli_w

from fedtranscribe.errors import SimulationError
from fedtranscribe.files import parse_json
from fedtranscribe.flower.apps import Scalar
from fedtranscribe.flower.keeper import GRACE_SECONDS, KEEPER, LOG

# The first start after an installation compiles Flower and Ray, which takes minutes on a busy disk.
START_SECONDS = 300
COMMAND_SECONDS = 180
# The keeper waits three times at most, then takes down the rest.
END_SECONDS = 6 * GRACE_SECONDS

_CONNECTION = "private"
# Ray puts Unix sockets about 70 characters below its folder, and a socket's path may have 107.
_LONGEST_BASE = 20


class RunStatus(NamedTuple):
    """What `flwr ls` says of a run, such as `finished:completed`, with Flower's own words."""

    state: str
    details: str

    @property
    def finished(self) -> bool:
        """Whether it has ended, well or not."""
        return self.state.startswith("finished")

    @property
    def completed(self) -> bool:
        """Whether it has ended well."""
        return self.state == "finished:completed"


class PrivateSuperLink:
    """Enter it to start, leave it to end everything."""

    def __init__(self, log_copy: Path) -> None:
        self._log_copy = log_copy.absolute()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "PrivateSuperLink":
        with contextlib.ExitStack() as stack:
            stack.enter_context(_handled(_ENDING, _leave))
            self.home = Path(tempfile.mkdtemp(prefix="fts-", dir=_short_base()))
            stack.callback(shutil.rmtree, self.home, ignore_errors=True)
            self._port = _free_port()
            self._environment = _environment(self.home)
            (self.home / "config.toml").write_text(_connection(self._port), encoding="utf-8")
            (self.home / "ray").mkdir()
            self._keeper = self._start()
            stack.callback(self._end)
            self._await_health()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def submit(
        self, app: Path, settings: Mapping[str, Scalar], federation: Mapping[str, int | float]
    ) -> str:
        """Start a run of an app."""
        # A file: inline, Flower finds no way to write a text that holds both kinds of quotes.
        overrides = self.home / "run-config.toml"
        overrides.write_text(tomli_w.dumps(settings), encoding="utf-8")
        nodes = " ".join(f"{key}={value}" for key, value in federation.items())
        answer = self._flwr(
            "run", str(app), _CONNECTION, "--federation-config", nodes, "-c", str(overrides)
        )
        return str(answer["run-id"])

    def status(self, run: str) -> RunStatus:
        """How a run stands."""
        self.check()
        answer = self._flwr("ls", _CONNECTION, "--run-id", run)
        found = answer["runs"][0]
        return RunStatus(found["status"], found.get("status-details") or "")

    def check(self) -> None:
        """See that the SuperLink still runs."""
        code = self._keeper.poll()
        if code is not None:
            raise SimulationError(
                f"The SuperLink ended with exit code {code}: {self._last_lines()} "
                f"(log: {self._log_copy})."
            )

    def add_run_log(self, run: str) -> None:
        """Add what ServerApp and ClientApps said to the log; Flower keeps it apart."""
        # That a log is missing must not turn a good run into a bad one.
        with contextlib.suppress(SimulationError), (self.home / LOG).open("ab") as log:
            self._ask(["log", run, _CONNECTION, "--show"], log)

    # ---------------------------------------------------------------- start

    def _start(self) -> subprocess.Popen[bytes]:
        """Start it under a keeper, in another session, so that a Ctrl-C reaches us alone."""
        keeper = [sys.executable, "-P", KEEPER, str(self.home), str(self._log_copy)]
        superlink = [self._executable("flower-superlink"), "--insecure", "--simulation"]
        return subprocess.Popen(
            [*keeper, *superlink, "--host", "127.0.0.1", "--port", str(self._port)],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _end(self) -> None:
        """Let the keeper end everything; a second Ctrl-C waits for it."""
        with _handled([signal.SIGINT, *_ENDING], signal.SIG_IGN):
            if self._keeper.stdin is not None:
                self._keeper.stdin.close()
            try:
                self._keeper.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._keeper.kill()
                self._keeper.wait()

    def _await_health(self) -> None:
        # A proxy of the environment must not be asked for an address of this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self.check()
            try:
                opener.open(f"http://127.0.0.1:{self._port}/health", timeout=5).close()
                return
            except OSError:
                time.sleep(0.2)
        raise SimulationError(
            f"The SuperLink was not up after {START_SECONDS} s: {self._last_lines()} "
            f"(log: {self._log_copy})."
        )

    def _executable(self, name: str) -> str:
        found = shutil.which(name, path=self._environment["PATH"])
        if found is None:
            raise SimulationError(f"Cannot find {name}; reinstall 'fedtranscribe[simulation]'.")
        return found

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        """Ask Flower's own command, which speaks JSON behind a line or two for people."""
        done = self._ask([*arguments, "--format", "json"], subprocess.PIPE)
        try:
            answer = parse_json(done.stdout[done.stdout.index("{") :])
        except ValueError:
            answer = {}
        if done.returncode != 0 or not answer.get("success", False):
            why = answer.get("error-message") or done.stderr or done.stdout
            raise SimulationError(
                f"flwr {arguments[0]} failed: {_tail(why)} (log: {self._log_copy})."
            )
        return answer

    def _ask(self, arguments: list[str], output: Any) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [self._executable("flwr"), *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                timeout=COMMAND_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SimulationError(
                f"No answer to flwr {arguments[0]} within {COMMAND_SECONDS} s "
                f"(log: {self._log_copy})."
            ) from None

    def _last_lines(self) -> str:
        """Of the log, which the keeper has moved if the SuperLink is gone."""
        logs = [self.home / LOG, self._log_copy]
        return next(
            (
                _tail(log.read_text(encoding="utf-8", errors="replace"))
                for log in logs
                if log.exists()
            ),
            "",
        )


def _tail(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-3:]) or "it printed nothing"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _short_base() -> str | None:
    """A folder for temporary files whose name leaves room for Ray's sockets."""
    usual = tempfile.gettempdir()
    return "/tmp" if len(usual) > _LONGEST_BASE and os.access("/tmp", os.W_OK) else usual


def _connection(port: int) -> str:
    table = {"default": _CONNECTION}
    address = {"address": f"127.0.0.1:{port}", "insecure": True}
    return tomli_w.dumps({"superlink": {**table, _CONNECTION: address}})


def _environment(home: Path) -> dict[str, str]:
    """What the SuperLink and everything below it see."""
    scripts = [str(Path(sys.executable).parent), sysconfig.get_path("scripts")]
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([*scripts, os.environ.get("PATH", "")]),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_TMPDIR": str(home / "ray"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    for name in ("NO_PROXY", "no_proxy"):
        listed = os.environ.get(name)
        environment[name] = f"{listed},127.0.0.1" if listed else "127.0.0.1"
    # Without .pyc files the first start can miss a limit of 15 s inside Flower; with an address,
    # Ray would join a cluster that is not ours. A notebook asks for colours, which are not JSON.
    for name in ("PYTHONDONTWRITEBYTECODE", "RAY_ADDRESS", "FORCE_COLOR", "CLICOLOR_FORCE"):
        environment.pop(name, None)
    return environment


_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def _leave(number: int, _: object) -> None:
    """Unwind at a signal that would end the program at once, so that the keeper is waited for."""
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _handled(numbers: list[signal.Signals], handler: Any) -> Iterator[None]:
    """Handle signals so; Python allows it in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
