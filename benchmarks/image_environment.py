"""What the images weigh, how soon their containers are healthy, and what memory they take.

    IMAGES_BASE=localhost/base:py311 PYTHONPATH=. python benchmarks/image_environment.py  # as root

A server and three holders are built and started as docs/deployment.md says; what the engine has to
offer is said in tests/images. Then every container is started three times, and a run of masked sums
and one of votes are watched. Half an hour where nothing has been built yet.
"""

import argparse
import json
import platform
import statistics
import subprocess
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.images.containers import (
    EVERYBODY,
    LINK,
    NAMES,
    Containers,
    built_wheel,
    node,
    service,
    why_no_engine,
)

RESULT = Path(__file__).parent / "results" / "image_environment.md"
RECORDS, STARTS = 1_300, 3
PAUSE_SECONDS = 0.2
MB, GB = 10**6, 10**9
ROLES = {"SuperLink": [LINK], "holder service": [*map(service, NAMES)]}
ROLES |= {"SuperNode": [*map(node, NAMES)]}
VOTES = {"start": "none", "student": "cnn-small", "rows": 600, "dpsd.round-rows": 200}
VOTES |= {"with-generator": True, "dpsd.pretrain-steps": 5, "dpsd.finish-steps": 20}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    reason = why_no_engine()
    if reason:
        parser.error(reason)
    with tempfile.TemporaryDirectory() as folder:
        place = Containers(Path(folder))
        place.prepare(built_wheel(), RECORDS)
        place.hand_over()
        try:
            began = time.monotonic()
            place.start()
            print(f"built and healthy after {time.monotonic() - began:.0f} s", flush=True)
            seconds = {role: _seconds_to_healthy(place, them) for role, them in ROLES.items()}
            memory = {
                "masked sums": _memory(place, "sums"),
                "votes": _memory(place, "votes", VOTES),
            }
            options.out.write_text(_report(place, seconds, memory))
        finally:
            place.remove()


def _seconds_to_healthy(place: Containers, containers: list[str]) -> list[float]:
    """From the engine's start command to the first check that succeeds, container by container."""
    found = []
    for _ in range(STARTS):
        for container in containers:
            place.podman("stop", "--time", "30", container)
            began = time.monotonic()
            place.podman("start", container)
            place.wait(lambda c=container: place.healthy(c), 300, "health", container, pause=0.1)
            found.append(time.monotonic() - began)
    place.wait_healthy(*EVERYBODY)
    return found


def _memory(
    place: Containers, out: str, settings: dict[str, object] | None = None
) -> dict[str, int]:
    """The most memory that each role's containers had during a run, shared pages in proportion."""
    most = dict.fromkeys(ROLES, 0)
    over = threading.Event()

    def watch() -> None:
        pids = {c: int(place.podman("inspect", "-f", "{{.State.Pid}}", c)) for c in EVERYBODY}
        while not over.wait(PAUSE_SECONDS):
            children = _children()
            for role, containers in ROLES.items():
                now = max(_resident(pids[c], children) for c in containers)
                most[role] = max(most[role], now)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        ended = place.await_run(place.run(out, **(settings or {})), 900)
    finally:
        over.set()
        watcher.join()
    assert ended == "finished:completed", place.logs(LINK)
    return most


def _children() -> dict[int, list[int]]:
    """Processes by their parent."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        found.setdefault(parent, []).append(int(entry.name))
    return found


def _resident(pid: int, children: dict[int, list[int]]) -> int:
    """Bytes of a process and of all below it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        own = next((int(x.split()[1]) * 1024 for x in lines if x.startswith("Pss:")), 0)
    except OSError:
        own = 0
    return own + sum(_resident(child, children) for child in children.get(pid, []))


def _bytes_of(image: str) -> int:
    command = ["podman", "image", "inspect", "--format", "{{.Size}}", image]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def _packages(place: Containers) -> dict[str, int]:
    """The largest packages of a holder's image."""
    code = (
        "import json, pathlib, sysconfig\n"
        "site = pathlib.Path(sysconfig.get_path('purelib'))\n"
        "size = lambda at: sum(p.lstat().st_size for p in at.rglob('*') if p.is_file())\n"
        "sizes = {p.name: size(p) for p in site.iterdir() if p.is_dir()}\n"
        "print(json.dumps(dict(sorted(sizes.items(), key=lambda x: -x[1])[:6])))"
    )
    return json.loads(place.inside(service(NAMES[0]), code))


def _report(
    place: Containers, seconds: dict[str, list[float]], memory: dict[str, dict[str, int]]
) -> str:
    version, machine = place.version_inside(NAMES[0]), platform.machine()
    images = {name: f"localhost/fedtranscribe-{name}:{version}" for name in ("client", "server")}
    base = place.environment["IMAGES_BASE"]
    sizes = {name: _bytes_of(image) for name, image in images.items()} | {"base": _bytes_of(base)}
    rows = [
        "# Container images: size, start and memory",
        "",
        f"By `benchmarks/image_environment.py`, {datetime.now(UTC):%Y-%m-%d}: fedtranscribe "
        f"{version}, podman, {machine}, on a plain Debian base with Python 3.11; a server and "
        f"{len(NAMES)} holders from the compose files, two cores shared with other work.",
        "",
        "| image | GB |",
        "| --- | --- |",
        *(f"| {name} | {size / GB:.2f} |" for name, size in sizes.items()),
        "",
        "| largest packages in it | GB |",
        "| --- | --- |",
        *(f"| {name} | {size / GB:.2f} |" for name, size in _packages(place).items()),
        "",
        "`nvidia` and `triton` come with torch's usual wheel, whose libraries need them even where "
        "there is no GPU. From an index of CPU-only wheels (`TORCH_INDEX`) neither is installed, "
        "and torch's wheel has 0.76 GB unpacked instead of 1.2: about 1.9 GB in all. That is "
        "calculated from a CPU-only wheel of torch 2.13; no such image was built.",
        "",
        "| container | seconds from start to healthy, median (lowest – highest) | most memory in a "
        "run of masked sums, MB | of votes, MB |",
        "| --- | --- | --- | --- |",
        *(
            f"| {role} | {statistics.median(found):.1f} ({min(found):.1f} – {max(found):.1f}) "
            f"| {memory['masked sums'][role] / MB:.0f} | {memory['votes'][role] / MB:.0f} |"
            for role, found in seconds.items()
        ),
        "",
        "Memory is resident, pages shared with other processes in proportion (PSS); that of the "
        "SuperLink includes the ServerApp, that of the SuperNode the ClientApp. Every holder has "
        f"{RECORDS:,} images of 28 pixels and 20 small teachers. The health check itself, a Python "
        "process, is part of the seconds.",
    ]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
