"""What the images install and run, in a clean virtual environment: its size, and memory at work.

    python benchmarks/image_environment.py            # ten minutes, 7 GB of disk for a while

No container engine is needed. A wheel is built, installed with the extra that the images install
and nothing else, and used to do what the containers do: a ready folder each, certificates, keys,
teachers, checks, the holder service, SuperLink, SuperNode, and a short run over TLS. Every command
has to succeed. The environment is deleted afterwards.
"""

import argparse
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
RESULT = Path(__file__).parent / "results" / "image_environment.md"
NAME = "fedtranscribe"
PAUSE_SECONDS = 0.2
RUN_SECONDS = 480
MIB, GIB = 2**20, 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", type=Path, default=ROOT, help="checkout to build from")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    # A socket's path is short.
    with tempfile.TemporaryDirectory(prefix="fte-", dir="/tmp") as folder:
        place = Place(Path(folder))
        place.install(options.source)
        sizes = place.sizes()
        version = place.say("fedtranscribe", "--version").split()[-1]
        flower = place.say("flower-supernode", "--version").split()[-1]
        place.say("flower-superlink", "--version")
        place.prepare()
        memory = place.run()
    report(options.out, sizes, memory, f"fedtranscribe {version}, flwr {flower}")


class Place:
    """A folder with the environment and everything that is made with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(folder / "flwr")}
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
        self.environment = {**kept, **quiet, "PATH": f"{self.bin}:{kept['PATH']}"}

    def install(self, source: Path) -> None:
        """Build the wheel, and install what client/Dockerfile and server/Dockerfile install."""
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "wheel", "--no-deps", "--wheel-dir", self.folder, str(source)], check=True
        )
        (wheel,) = self.folder.glob("*.whl")
        subprocess.run([sys.executable, "-m", "venv", self.folder / "venv"], check=True)
        self.say("pip", "install", "--quiet", "--no-cache-dir", f"{wheel}[federation]")
        self.say("pip", "check")

    def sizes(self) -> dict[str, int]:
        """Bytes of the largest packages, and of all."""
        (site,) = (self.folder / "venv" / "lib").glob("python*/site-packages")
        sizes = {entry.name: _size(entry) for entry in site.iterdir() if entry.is_dir()}
        largest = sorted(sizes, key=lambda name: -sizes[name])[:6]
        return {"whole": _size(self.folder / "venv")} | {name: sizes[name] for name in largest}

    def say(self, *command: str) -> str:
        """Run a command of the environment; it has to succeed."""
        began = time.monotonic()
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        print(
            f"{done.returncode} {time.monotonic() - began:6.1f} s  {' '.join(command)}", flush=True
        )
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)
        return done.stdout

    def prepare(self) -> None:
        """Everything before the first process, as docs/tutorials/two-holders.md tells it."""
        self.port = _free_port()
        deploy = ("fedtranscribe", "deploy")
        self.say(*deploy, "init", "server", "server")
        self.say(*deploy, "init", "client", "client")
        self.say(*deploy, "certs", "create", "server/certificates", "--name", "localhost")
        ca = (self.folder / "server/certificates/ca.crt").read_bytes()
        (self.folder / "client/certificates/ca.crt").write_bytes(ca)
        self.say(*deploy, "keys", "create", "client/keys/node")
        (self.folder / "client/.env").write_text(f"SUPERLINK=localhost:{self.port}\n")
        _images(self.folder / "images.npz")
        teachers = ("--arch", "cnn-small", "--shards", "10", "--out", "client/teachers")
        self.say("fedtranscribe", "teacher", "train", "--data", "images.npz", *teachers)
        (self.folder / "client/teachers").chmod(0o700)
        self.say("fedtranscribe", "holder", "policy", "check", "--help")
        self.say("fedtranscribe", "holder", "policy", "check", "client/policy.toml")
        self.say(*deploy, "check", "client", "client")
        self.say(*deploy, "check", "server", "server", "--name", "localhost")
        (self.folder / "flwr").mkdir(exist_ok=True)
        (self.folder / "flwr/config.toml").write_text(
            f'[superlink.{NAME}]\naddress = "localhost:{self.port}"\n'
            f'root-certificates = "{self.folder}/server/certificates/ca.crt"\n'
        )

    def run(self) -> dict[str, int]:
        """A short run; the most memory that each kind of process had."""
        memory = Memory()
        deploy = ("fedtranscribe", "deploy")
        policy = ("--policy", "client/policy.toml")
        with (
            self._started("superlink", *deploy, "serve", "server", "--port", str(self.port)),
            self._started("holder", "fedtranscribe", "holder", "serve", *policy),
        ):
            self._wait("localhost", self.port)
            self.say("flwr", "supernode", "register", "client/keys/node.pub", NAME)
            port = str(_free_port())
            with self._started("supernode", *deploy, "join", "client", "--port", port):
                settings = (
                    "holders=1 quorum=1 rows=200 student='cnn-small' force=true "
                    "dpsd.round-rows=100 dpsd.student-steps=2 dpsd.finish-steps=2"
                )
                self.say("flwr", "run", "server/app", NAME, "-c", settings)
                self._follow(memory)
            self.say("fedtranscribe", "holder", "status", *policy)
        self.say("fedtranscribe", "holder", "ledger", "verify", "client/ledger/ledger.sqlite")
        return memory.most

    def _follow(self, memory: "Memory") -> None:
        """Look at memory until the run has ended well."""
        until = time.monotonic() + RUN_SECONDS
        asked = time.monotonic()
        while time.monotonic() < until:
            memory.look(str(self.folder))
            if time.monotonic() - asked > 10:
                listed = self.say("flwr", "ls", NAME, "--format", "json")
                status = json.loads(listed[listed.index("{") :])["runs"][0]["status"]
                asked = time.monotonic()
                if status == "finished:completed":
                    return
                if status.startswith("finished"):
                    break
            time.sleep(PAUSE_SECONDS)
        logs = "\n".join(f"{p}:\n{p.read_text()[-3000:]}" for p in self.folder.glob("*.log"))
        sys.exit(f"The run did not end well.\n{logs}")

    @contextmanager
    def _started(self, name: str, *command: str) -> Iterator[None]:
        with (self.folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [str(self.bin / command[0]), *command[1:]],
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                yield
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(60)

    def _wait(self, host: str, port: int) -> None:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            try:
                socket.create_connection((host, port), 1).close()
            except OSError:
                time.sleep(1)
            else:
                return
        sys.exit((self.folder / "superlink.log").read_text())


class Memory:
    """The largest resident memory of each kind of process of an environment."""

    KINDS = (
        ("flwr-clientapp", "ClientApp, a process per message"),
        ("flwr-serverapp", "ServerApp, a process per run"),
        ("superexec", "SuperExec, beside SuperLink and SuperNode"),
        ("holder serve", "holder service"),
        ("flower-supernode", "SuperNode"),
        ("flower-superlink", "SuperLink"),
    )

    def __init__(self) -> None:
        self.most: dict[str, int] = {}

    def look(self, mark: str) -> None:
        """Look at every process whose command names `mark`."""
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                status = (entry / "status").read_text()
            except OSError:
                continue
            kind = next((words for part, words in self.KINDS if part in command), None)
            if mark not in command or kind is None or "VmRSS:" not in status:
                continue
            resident = int(status.split("VmRSS:")[1].split()[0]) * 1024
            self.most[kind] = max(self.most.get(kind, 0), resident)


def report(path: Path, sizes: dict[str, int], memory: dict[str, int], versions: str) -> None:
    """Write the figures down."""
    now = f"{datetime.now(UTC):%Y-%m-%d}"
    rows = [f"| {name} | {size / GIB:.2f} |" for name, size in sizes.items()]
    kinds = [f"| {name} | {size / MIB:.0f} |" for name, size in sorted(memory.items())]
    lines = [
        "# What the images install and run",
        "",
        f"By `benchmarks/image_environment.py`, {now}: {versions}, Python "
        f"{platform.python_version()}, {platform.machine()}, in a clean virtual environment with "
        "the extra `federation` alone. Every command that the containers and their owners give "
        "succeeded in it, to the end of a run over TLS; no container was built.",
        "",
        "| package | GiB |",
        "| --- | --- |",
        *rows,
        "",
        "`nvidia` and `triton` come with torch's usual wheel; a CPU-only wheel of torch brings "
        "neither, and is smaller itself.",
        "",
        "Largest resident memory during a run of 200 rows with ten tiny teachers:",
        "",
        "| process | MiB |",
        "| --- | --- |",
        *kinds,
    ]
    path.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def _images(path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 3
    images = rng.integers(0, 80, (300, 28, 28)) + 60 * labels[:, None, None]
    ids = np.array([f"patient-{i}" for i in range(300)])
    np.savez(path, images=images.astype(np.uint8), labels=labels, ids=ids, classes=3)


def _size(folder: Path) -> int:
    # Blocks, as `du` counts them; links are not followed.
    return sum(entry.lstat().st_blocks * 512 for entry in folder.rglob("*") if not entry.is_dir())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    main()
