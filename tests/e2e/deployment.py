"""A whole deployment on 127.0.0.1: TLS SuperLink, holder services, SuperNodes, by the commands.

Every process is this machine's real one and runs until told otherwise; leaving the context ends
them all.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from fedtranscribe.data import load

APP = Path(__file__).parents[2] / "server" / "app"
BIN = Path(sys.executable).parent

POLICY = """
epsilon = {epsilon}
delta = 1e-5
noise = "{noise}"
kinds = {kinds}
rows_per_message = {rows_per_message}

[holder]
name = "{name}"
teachers = "teachers"
ledger = "book/ledger.sqlite"
socket = "run/h.sock"
log = "log/holder.jsonl"
device = "cpu"
"""
RECORDS = "book/records.npz"
MASKED = """
key = "book/key"
roster = "book/roster"
"""


def write_records(folder: Path, numbers: range) -> Path:
    """Some of the packaged digits as a holder's own records, in a new folder."""
    folder.mkdir()
    path = folder / Path(RECORDS).name
    digits = load("digits").train.subset(numbers)
    images, labels = digits.images[:, 0].numpy(), digits.labels.numpy()
    np.savez(path, images=images, labels=labels, ids=np.array(digits.ids), classes=10)
    return path


def train_teachers(records: Path, shards: int = 2, steps: int = 1) -> Path:
    """Teachers of these records, beside them."""
    folder = records.parent
    (folder / "teachers.toml").write_text(f"[teachers]\nsteps = {steps}\n")
    subprocess.run(
        [
            *(str(BIN / "fedtranscribe"), "teacher", "train", "--data", str(records)),
            *("--shards", str(shards), "--arch", "cnn-small"),
            *("--config", str(folder / "teachers.toml"), "--out", str(folder / "teachers")),
        ],
        check=True,
        capture_output=True,
    )
    return folder / "teachers"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Deployment:
    """Starts, kills and restarts the parts; every part logs into `home`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self.parts: dict[str, subprocess.Popen[bytes]] = {}
        self.holders: list[Path] = []
        # A Unix socket's path may have 107 bytes, and pytest's folders are long.
        self._short = Path(tempfile.mkdtemp(prefix="fd-"))
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(home / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FEDTRANSCRIBE_TEST": str(home),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def __enter__(self) -> "Deployment":
        (self.home / "flwr").mkdir(parents=True)
        (self.home / "flwr" / "config.toml").write_text(
            '[superlink]\ndefault="here"\n[superlink.here]\n'
            f'address="127.0.0.1:{self.port}"\n'
            f'root-certificates="{self.home / "tls" / "ca.crt"}"\n'
        )
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.parts):
            self.stop(name)
        for process in self._descendants():
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self._short, ignore_errors=True)

    # ---------------------------------------------------------------- set-up

    def fedtranscribe(self, *arguments: str | Path, code: int | None = 0) -> str:
        done = subprocess.run(
            [str(BIN / "fedtranscribe"), *map(str, arguments)],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert code is None or done.returncode == code, done.stderr + done.stdout
        return done.stdout + done.stderr

    def make_certificates(self, folder: str = "tls") -> Path:
        from fedtranscribe.flower.certificates import make_authority, make_server

        path = self.home / folder
        make_authority(path)
        make_server(path, path, ["127.0.0.1", "localhost"])
        return path

    def expire(self, tls: Path) -> None:
        """Sign the server's certificate again, so that it ended yesterday."""
        authority = x509.load_pem_x509_certificate((tls / "ca.crt").read_bytes())
        old = x509.load_pem_x509_certificate((tls / "server.crt").read_bytes())
        key = serialization.load_pem_private_key((tls / "ca.key").read_bytes(), None)
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(old.subject)
            .issuer_name(authority.subject)
            .public_key(old.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now - timedelta(days=1))
        )
        for extension in old.extensions:
            builder = builder.add_extension(extension.value, extension.critical)
        signed = builder.sign(key, hashes.SHA384())  # type: ignore[arg-type]
        (tls / "server.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def make_holder(
        self, name: str, teachers: Path, records: Path | None = None, **limits: Any
    ) -> Path:
        """A holder's folder with teachers, policy, a node key and perhaps records."""
        from fedtranscribe.flower.certificates import make_node_key

        home = self._short / name
        (home / "book").mkdir(parents=True, mode=0o700)
        (home / "run").mkdir()
        shutil.copytree(teachers, home / "teachers")
        (home / "teachers").chmod(0o700)
        if records is not None:
            shutil.copy(records, home / RECORDS)
            (home / RECORDS).chmod(0o600)
        self.write_policy(home, **limits)
        make_node_key(home / "node")
        return home

    def write_policy(self, home: Path, **limits: Any) -> None:
        there = (home / RECORDS).exists()
        facts = {
            "epsilon": 1e4,
            "noise": "central",
            "rows_per_message": 1000,
            "kinds": '["vote", "moments"]' if there else '["vote"]',
            "more": "",
        } | limits
        policy = facts.pop("more") + POLICY.format(name=home.name, **facts)
        (home / "policy.toml").write_text(policy + f'records = "{RECORDS}"\n' * there)

    def make_roster(self, holders: list[Path], colluders: int = 1) -> None:
        """Keys for masked sums, every public half with every holder."""
        from fedtranscribe.flower.certificates import make_node_key

        for holder in holders:
            make_node_key(holder / "book" / "key")
            self.write_policy(
                holder, noise="secagg", more=f"dropouts = 1\ncolluders = {colluders}\n"
            )
            with (holder / "policy.toml").open("a") as policy:
                policy.write(MASKED)
        for holder in holders:
            (holder / "book" / "roster").mkdir()
            for other in holders:
                known = holder / "book" / "roster" / f"{other.name}.pub"
                shutil.copy(other / "book" / "key.pub", known)

    # ---------------------------------------------------------------- parts

    def start_superlink(self, tls: Path | None = None) -> None:
        tls = tls or self.home / "tls"
        self._start(
            "superlink",
            *("flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--ssl-ca-certfile", tls / "ca.crt", "--ssl-certfile", tls / "server.crt"),
            *("--ssl-keyfile", tls / "server.key", "--enable-supernode-auth"),
            *("--database", self.home / "superlink.db"),
        )

    def await_superlink(self) -> None:
        import ssl

        context = ssl.create_default_context(cafile=str(self.home / "tls" / "ca.crt"))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )

        def up() -> bool:
            try:
                opener.open(f"https://127.0.0.1:{self.port}/health", timeout=5).close()
            except OSError:
                return False
            return True

        self.wait(up, 120, "the SuperLink", "superlink")

    def register(self, holder: Path) -> None:
        self.flwr("supernode", "register", str(holder / "node.pub"), "here", "--name", holder.name)

    def start_service(self, holder: Path) -> None:
        name = f"service-{holder.name}"
        self._start(name, "fedtranscribe", "holder", "serve", "--policy", holder / "policy.toml")
        self.wait(lambda: b"answers on" in self.log(name), 120, name, name)

    def start_node(self, holder: Path, tls: Path | None = None) -> None:
        config = f'holder-socket="{holder / "run" / "h.sock"}"'
        self._start(
            f"node-{holder.name}",
            *("flower-supernode", "--superlink", f"127.0.0.1:{self.port}"),
            *("--root-certificates", (tls or self.home / "tls") / "ca.crt"),
            *("--auth-supernode-private-key", holder / "node", "--port", str(free_port())),
            *("--node-config", config),
        )

    def rejoin(self, holder: Path, seconds: float = 240) -> None:
        """Start a node again and again, as a container engine would.

        Flower 1.41 turns a node away whose key it still takes for connected, and it takes a killed
        one for connected until its heartbeat is overdue.
        """
        until = time.monotonic() + seconds
        while True:
            self.start_node(holder)
            try:
                self.parts[f"node-{holder.name}"].wait(15)
            except subprocess.TimeoutExpired:
                return
            assert time.monotonic() < until, self.log(f"node-{holder.name}")[-3000:].decode()

    def kill(self, name: str) -> None:
        """kill -9, the children too."""
        process = self.parts.pop(name)
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
        process.kill()
        process.wait()

    def stop(self, name: str) -> int:
        """SIGTERM, as an administrator or a container engine would."""
        process = self.parts.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def log(self, name: str) -> bytes:
        path = self.home / f"{name}.log"
        return path.read_bytes() if path.exists() else b""

    # ---------------------------------------------------------------- runs

    def run(self, out: Path, **settings: Any) -> str:
        """Start a run; gives its id."""
        facts = {
            "out": str(out),
            "data": "digits",
            "student": "cnn-small",
            "noise": "central",
            "device": "cpu",
            "force": True,
            "rows": 120,
            "dpsd.round-rows": 40,
            "dpsd.student-steps": 2,
            "dpsd.finish-steps": 2,
            "dpsd.pretrain-steps": 5,
            "timeout": 120.0,
            "first-timeout": 120.0,
        } | settings
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in facts.items())
        return str(self.flwr("run", str(APP), "here", "-c", words)["run-id"])

    def state(self, run: str) -> str:
        return self.flwr("ls", "here", "--run-id", run)["runs"][0]["status"]

    def await_run(self, run: str, seconds: float = 400) -> str:
        """How the run ended."""
        ended = ""

        def finished() -> bool:
            nonlocal ended
            ended = self.state(run)
            return ended.startswith("finished")

        self.wait(finished, seconds, f"run {run}", "superlink", pause=3)
        return ended

    def flwr(self, *arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments, "--format", "json"],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "{" in done.stdout, f"{arguments}: {done.stdout}{done.stderr}"
        return json.loads(done.stdout[done.stdout.index("{") :])

    def wait(self, until: Any, seconds: float, what: str, log: str, pause: float = 0.5) -> None:
        deadline = time.monotonic() + seconds
        while not until():
            tail = self.log(log)[-3000:].decode(errors="replace")
            assert time.monotonic() < deadline, f"{what} did not come in {seconds} s:\n{tail}"
            process = self.parts.get(log)
            assert process is None or process.poll() is None or until(), f"{what} ended:\n{tail}"
            time.sleep(pause)

    def _start(self, name: str, program: str, *arguments: str | Path) -> None:
        with (self.home / f"{name}.log").open("ab") as log:
            self.parts[name] = subprocess.Popen(
                [str(BIN / program), *map(str, arguments)],
                env=self.environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _descendants(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("FEDTRANSCRIBE_TEST") == str(self.home):
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found
