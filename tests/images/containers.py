"""A server and data holders in containers, by the compose files that `deploy init` writes.

Everything is done as docs/deployment.md says; what stands in no file of the product is how this
machine gets at an engine, a base image and a package index:

- `IMAGES_BASE`: base image with Python 3.11 or newer, instead of Flower's published one;
- `IMAGES_PIP`: folder with a `pip.conf` for the build, and what that names.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
NAMES = ("hospital", "clinic", "institute")
SERVER = "server"
_MASKED = """key = "ledger/key"
roster = "ledger/roster"
records = "ledger/records.npz"
"""


LINK = f"{SERVER}_superlink_1"


def service(name: str) -> str:
    """Container of a holder's service."""
    return f"{name}_holder_1"


def node(name: str) -> str:
    """Container of a holder's SuperNode."""
    return f"{name}_supernode_1"


EVERYBODY = [LINK, *map(service, NAMES), *map(node, NAMES)]


def built_wheel() -> Path:
    """The one that `make dist` has built."""
    (wheel,) = (ROOT / "dist").glob("fedtranscribe-*.whl")
    return wheel


def wheel_of_version(version: str, folder: Path) -> Path:
    """The same wheel under another version, as `make dist` would build it."""
    source = folder / "source"
    ignored = shutil.ignore_patterns(".venv", ".git", "dist", "runs", "__pycache__")
    shutil.copytree(ROOT, source, ignore=ignored)
    place = source / "fedtranscribe" / "__init__.py"
    text = re.sub(r'__version__ = ".*"', f'__version__ = "{version}"', place.read_text())
    place.write_text(text)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--wheel-dir", folder, str(source)]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def why_no_engine() -> str:
    """Why containers cannot be had here; empty where they can."""
    if os.geteuid() != 0:
        return "files get the containers' owners: run this as root"
    if shutil.which("podman") is None:
        return "no podman"
    if not (BIN / "podman-compose").exists() and shutil.which("podman-compose") is None:
        return "no podman-compose: pip install podman-compose"
    if subprocess.run(["podman", "info"], capture_output=True, check=False).returncode:
        return "podman does not work: podman info says why"
    base = os.environ.get("IMAGES_BASE")
    if base is None:
        return "no base image: set IMAGES_BASE, or pull Flower's and name that"
    if subprocess.run(["podman", "image", "exists", base], check=False).returncode:
        return f"no image {base}"
    return ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def own_address() -> str:
    """An address of this machine that its containers reach as well."""
    said = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True)
    return said.stdout.split()[0]


class Containers:
    """Folders as `deploy init` makes them, and a compose project for each.

    Args:
        home: an empty folder; sockets lie in the engine's volumes, so its path may be long.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port, self.address = free_port(), own_address()
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(home / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FEDTRANSCRIBE_HOME": str(home / "own"),
            # Without this the images forget their health checks.
            "BUILDAH_FORMAT": "docker",
            "OMP_NUM_THREADS": "2",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }

    # ---------------------------------------------------------------- folders

    def prepare(self, wheel: Path, records: int) -> None:
        """Folders, certificates, keys, teachers and policies, before anybody is made an owner."""
        self.fedtranscribe("deploy", "init", "server", SERVER)
        for name in NAMES:
            self.fedtranscribe("deploy", "init", "client", name)
        self._certificates()
        for folder in (SERVER, *NAMES):
            self._wheels(self.home / folder / "wheels", wheel)
        self.set_environment(SERVER, PORT=str(self.port))
        for number, name in enumerate(NAMES):
            self.set_environment(name, SUPERLINK=f"{self.address}:{self.port}")
            self._holder(name, range(number * records, (number + 1) * records))
        for name in NAMES:
            roster = self.home / name / "ledger" / "roster"
            roster.mkdir()
            for other in NAMES:
                shutil.copy(self.home / other / "ledger" / "key.pub", roster / f"{other}.pub")

    def hand_over(self) -> None:
        """Give every file the owner that its container has, as the docs say."""
        own = {SERVER: {"certificates/server.key": 49999, "state": 49999, "runs": 49999}}
        own |= {name: {"teachers": 10001, "ledger": 10001, "keys": 49999} for name in NAMES}
        for folder, owners in own.items():
            for name, user in owners.items():
                group = 10000 if user == 10001 else user
                place = self.home / folder / name
                subprocess.run(["chown", "-R", f"{user}:{group}", place], check=True)

    def _certificates(self) -> None:
        names = ("--name", "localhost", "--name", self.address, "--name", "127.0.0.1")
        self.fedtranscribe("deploy", "certs", "create", f"{SERVER}/certificates", *names)
        for name in NAMES:
            target = self.home / name / "certificates"
            shutil.copy(self.home / SERVER / "certificates" / "ca.crt", target)
        (self.home / "flower").mkdir()
        (self.home / "flower" / "config.toml").write_text(
            f'[superlink.fedtranscribe]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.home / SERVER}/certificates/ca.crt"\n'
        )

    def _wheels(self, folder: Path, wheel: Path) -> None:
        shutil.copy(wheel, folder)
        given = os.environ.get("IMAGES_PIP")
        if given:
            shutil.copytree(given, folder, dirs_exist_ok=True)

    def use_wheel(self, name: str, wheel: Path, version: str) -> None:
        """Have a holder's next build install another wheel."""
        wheels = self.home / name / "wheels"
        for old in wheels.glob("*.whl"):
            old.unlink()
        shutil.copy(wheel, wheels)
        self.set_environment(name, FEDTRANSCRIBE_VERSION=version)

    def set_environment(self, folder: str, **settings: str) -> None:
        """Write lines of `.env`."""
        path = self.home / folder / ".env"
        kept = [x for x in path.read_text().splitlines() if x.partition("=")[0] not in settings]
        added = settings | {"BASE": os.environ["IMAGES_BASE"]}
        path.write_text("\n".join([*kept, *(f"{k}={v}" for k, v in added.items())]) + "\n")

    def _holder(self, name: str, numbers: range) -> None:
        from fedtranscribe.data import load

        home = self.home / name
        digits = load("digits").train.subset(numbers)
        facts = {"labels": digits.labels.numpy(), "ids": np.array(digits.ids), "classes": 10}
        records = home / "ledger" / "records.npz"
        np.savez(records, images=digits.images[:, 0].numpy(), **facts)
        records.chmod(0o600)
        self.fedtranscribe("deploy", "keys", "create", f"{name}/keys/node", "--comment", name)
        self.fedtranscribe("deploy", "keys", "create", f"{name}/ledger/key")
        (self.home / "teachers.toml").write_text("[teachers]\nsteps = 20\n")
        training = ("--shards", "20", "--config", "teachers.toml", "--out", f"{name}/made")
        self.fedtranscribe("teacher", "train", "--data", f"{name}/ledger/records.npz", *training)
        shutil.rmtree(home / "teachers")
        (home / "made").rename(home / "teachers")
        (home / "teachers").chmod(0o700)
        policy = (home / "policy.toml").read_text()
        for old, new in (
            ('noise = "local"', 'noise = "secagg"'),
            ("dropouts = 0", "dropouts = 1"),
            ("colluders = 1", "colluders = 0"),
            ("epsilon = 10.0", "epsilon = 100.0"),
            ('name = "hospital"', f'name = "{name}"'),
            ('# teachers = "teachers"', 'teachers = "teachers"'),
            ('records = "ledger/records.npz"', "# no sums over the records"),
        ):
            assert f"\n{old}\n" in policy
            policy = policy.replace(f"\n{old}\n", f"\n{new}\n")
        (home / "policy.toml").write_text(policy + _MASKED)

    # ---------------------------------------------------------------- the deployment

    def start(self) -> None:
        """Build both images, start every container, and have the nodes registered."""
        self.compose(SERVER, "up", "--build", "--detach")
        self.forget_build_stages()
        self.wait_healthy(LINK)
        for name in NAMES:
            public = f"{name}/keys/node.pub"
            self.flwr("supernode", "register", public, "fedtranscribe", "--name", name)
            # Holders have one image, and so have both of their containers; the first one builds it.
            if name == NAMES[0]:
                self.compose(name, "build", "holder")
                self.forget_build_stages()
            self.compose(name, "up", "--no-build", "--detach")
        self.wait_healthy(*EVERYBODY)

    def forget_build_stages(self) -> None:
        """Each is as large as the image that was made from it."""
        self.podman("image", "prune", "--force")

    def remove(self) -> None:
        """Containers, networks and volumes; images stay."""
        for project in (*NAMES, SERVER):
            self.compose(project, "down", "--volumes", "--timeout", "5", code=None)

    def ledger(self, name: str) -> dict[str, Any]:
        """How many entries a holder's ledger has, and its head, once it is proved."""
        path = f"{name}/ledger/ledger.sqlite"
        return json.loads(self.fedtranscribe("holder", "ledger", "verify", path, "--json"))

    def version_of(self, name: str) -> str:
        """The one that `.env` names."""
        (found,) = re.findall(
            r"^FEDTRANSCRIBE_VERSION=(.+)$", (self.home / name / ".env").read_text(), re.M
        )
        return found

    def version_inside(self, name: str) -> str:
        """The one that a holder's service runs."""
        code = "import fedtranscribe; print(fedtranscribe.__version__)"
        return self.inside(service(name), code).strip()

    # ---------------------------------------------------------------- commands

    def fedtranscribe(self, *arguments: str, code: int | None = 0) -> str:
        return self._advert_content([str(BIN / "fedtranscribe"), *arguments], self.home, code)

    def compose(self, project: str, *arguments: str, code: int | None = 0) -> str:
        command = ["podman-compose", "--project-name", project, *arguments]
        return self._advert_content(command, self.home / project, code)

    def podman(self, *arguments: str, code: int | None = 0) -> str:
        return self._advert_content(["podman", *arguments], self.home, code)

    def inside(self, container: str, code: str) -> str:
        """What a Python program says inside of a container, as its own user."""
        return self.podman("exec", container, "python", "-c", code)

    def flwr(self, *arguments: str) -> dict[str, Any]:
        said = self._advert_content(["flwr", *arguments, "--format", "json"], self.home, None)
        assert "{" in said, said
        return json.JSONDecoder().raw_decode(said[said.index("{") :])[0]

    def _advert_content(self, command: list[str], folder: Path, code: int | None) -> str:
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        said = f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}"
        assert code is None or done.returncode == code, said
        return done.stdout

    # ---------------------------------------------------------------- containers

    def healthy(self, container: str) -> bool:
        return not subprocess.run(
            ["podman", "healthcheck", "run", container], capture_output=True, check=False
        ).returncode

    def wait_healthy(self, *containers: str) -> None:
        """Until each of them is."""
        for container in containers:
            self.wait(lambda c=container: self.healthy(c), 300, "health", container)

    def logs(self, container: str) -> str:
        return self._advert_content(["podman", "logs", "--tail", "60", container], self.home, None)

    def wait(
        self, until: Callable[[], bool], seconds: float, what: str, *logs: str, pause: float = 1.0
    ) -> float:
        """Seconds until something holds.

        Raises:
            AssertionError: it never did; with the containers' last lines.
        """
        began = time.monotonic()
        while not until():
            if time.monotonic() - began > seconds:
                tails = "\n".join(f"--- {name}\n{self.logs(name)}" for name in logs)
                raise AssertionError(f"{what} did not come in {seconds} s:\n{tails}")
            time.sleep(pause)
        return time.monotonic() - began

    # ---------------------------------------------------------------- runs

    def run(self, out: str, **settings: Any) -> str:
        """Start a run; gives its id."""
        facts = {
            "out": f"/server/runs/{out}",
            "holders": len(NAMES),
            "noise": "secagg",
            "epsilon": 10.0,
            "device": "cpu",
            "with-generator": False,
            "descent-rounds": 0,
            "force": True,
        } | settings
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in facts.items())
        app = str(self.home / SERVER / "app")
        told = self.flwr("run", app, "fedtranscribe", "-c", words)
        assert "run-id" in told, told
        return str(told["run-id"])

    def state(self, run: str) -> str:
        return self.flwr("ls", "fedtranscribe", "--run-id", run)["runs"][0]["status"]

    def await_run(self, run: str, seconds: float) -> str:
        """How the run ended."""
        logs = [f"{SERVER}_superlink_1", *(f"{n}_{s}_1" for n in NAMES for s in ("holder",))]
        self.wait(
            lambda: self.state(run).startswith("finished"),
            seconds,
            f"the end of {run}",
            *logs,
            pause=10,  # Flower's own command takes seconds of both cores
        )
        return self.state(run)
