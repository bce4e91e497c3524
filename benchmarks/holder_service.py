"""Load on one holder service: four clients at once, memory, ledger, speed over bare teachers.

    python benchmarks/holder_service.py             # a quarter of an hour on two cores
    python benchmarks/holder_service.py --quick     # a hundredth of the rows

Speed is a ratio in one run: rows per second through socket, policy, ledger and noise, over rows per
second of the same teachers in a loop of this process, before and after. Memory is the service's
resident set, looked at after every answer.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import torch

from fedtranscribe.config import TeacherSettings, TranscribeSettings
from fedtranscribe.data import load
from fedtranscribe.holder.link import call
from fedtranscribe.models.ensemble import Ensemble
from fedtranscribe.models.teacher_training import train_teachers
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.questions import messages as wire
from fedtranscribe.questions import query_messages as queries
from fedtranscribe.questions.messages import pack, unpack
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.rows import ImageQuery
from fedtranscribe.runs.preparation import make_manifest

RESULT = Path(__file__).parent / "results" / "holder_service.md"
CLIENTS = 4
SMALLEST, LARGEST = 2_000, 20_000
# (rows in all, teachers, architecture)
LOADS = ((1_000_000, 1, "cnn-small"), (20_000, 250, "cnn"))
POLICY = """
epsilon = 1e9
kinds = ["vote"]
rows_per_message = 20000
rows_per_run = 100000000
[holder]
name = "loaded"
teachers = "teachers"
ledger = "book/ledger.sqlite"
socket = "h.sock"
log = "log.jsonl"
device = "cpu"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a hundredth of the rows")
    parser.add_argument("--rows", type=int, help="instead of a million, for the tiny teacher")
    options = parser.parse_args()
    lines = []
    for rows, shards, architecture in LOADS:
        if options.rows and shards > 1:
            continue
        rows = options.rows or rows
        wanted = max(rows // 100, CLIENTS * SMALLEST) if options.quick else rows
        with tempfile.TemporaryDirectory() as folder:
            line = measure(wanted, shards, architecture, Path(folder))
        print(line, flush=True)
        lines.append(line)
    if not (options.quick or options.rows):
        RESULT.write_text(table(lines))


def measure(rows: int, shards: int, architecture: str, home: Path) -> dict[str, Any]:
    make_teachers(shards, architecture, home / "teachers")
    (home / "policy.toml").write_text(POLICY)
    before = bare_speed(home / "teachers", shards)
    program = Path(sys.executable).with_name("fedtranscribe")
    service = subprocess.Popen(
        [str(program), "holder", "serve", "--policy", str(home / "policy.toml")],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert service.stdout is not None
        service.stdout.readline()
        seconds, memory = load_it(rows, home / "h.sock", psutil.Process(service.pid))
    finally:
        service.terminate()
        service.wait()
    after = bare_speed(home / "teachers", shards)
    with Ledger.open_read_only(home / "book" / "ledger.sqlite") as ledger:
        ledger.verify()
        booked = sum(run.rows for run in ledger.runs())
        commits = sum(entry.kind == "commit" for entry in ledger.entries())
    assert booked == rows, f"{booked} rows are booked, {rows} were answered"
    assert commits == len(memory)
    quarters = [memory[i * len(memory) // 4 : (i + 1) * len(memory) // 4] for i in range(4)]
    return {
        "rows": rows,
        "teachers": shards,
        "messages": len(memory),
        "rows_per_second": rows / seconds,
        "over_bare": rows / seconds / ((before + after) / 2),
        "memory": [round(max(part)) for part in quarters if part],
        "ledger_mib": (home / "book" / "ledger.sqlite").stat().st_size / 2**20
        if (home / "book").exists()
        else None,
    }


def make_teachers(shards: int, architecture: str, folder: Path) -> None:
    images = load("digits").train
    described = TranscribeSettings(
        teacher=architecture, data="digits", teachers=TeacherSettings(steps=5)
    )
    manifest = make_manifest(described, images, shards, "full")
    train_teachers(
        images, manifest, folder, device=torch.device("cpu"), progress=lambda done, total: None
    )


def bare_speed(folder: Path, shards: int) -> float:
    """Rows per second of the teachers alone, their votes added up."""
    teachers = Ensemble(folder, torch.device("cpu"))
    images = drawn(SMALLEST if shards > 1 else LARGEST, 0)
    teachers.verify()
    began, done = time.monotonic(), 0
    while time.monotonic() - began < 20:
        votes = torch.zeros(len(images), teachers.manifest.classes)
        for logits in teachers.logits(images):
            votes += logits[0].softmax(-1)
        done += len(images)
    return done / (time.monotonic() - began)


def load_it(rows: int, socket: Path, process: psutil.Process) -> tuple[float, list[float]]:
    """Seconds for all rows, and the service's MiB after every message."""
    sizes = split(rows)
    memory: list[float] = []
    lock = threading.Lock()
    plan = NoisePlan(NoiseMode.LOCAL, 1.0, 1)

    def ask(number: int) -> None:
        asked = ImageQuery(
            f"q-{number}",
            Kind.VOTE,
            drawn(sizes[number], number),
            torch.arange(10).repeat(sizes[number], 1),
        )
        frame = pack(queries.ask(queries.Envelope(asked, plan, "load")))
        reply = unpack(call(socket, wire.ANSWER, frame, 3_600))
        assert queries.read_answer(reply, asked).values.shape == (sizes[number], 10)
        with lock:
            memory.append(process.memory_info().rss / 2**20)

    began = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(ask, range(len(sizes))))
    return time.monotonic() - began, memory


def split(rows: int) -> list[int]:
    """Messages of 2,000 to 20,000 rows, the same every time."""
    rng, sizes = torch.Generator().manual_seed(0), []
    while rows > 0:
        size = int(torch.randint(SMALLEST, LARGEST + 1, (), generator=rng))
        # The last one is no smaller than the others may be.
        if 0 < rows - size < SMALLEST:
            size = rows - SMALLEST
        sizes.append(min(size, rows))
        rows -= sizes[-1]
    return sizes


def drawn(n: int, seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 1, 28, 28), generator=rng).to(torch.uint8)


def table(lines: list[dict[str, Any]]) -> str:
    rows = [
        "# One holder service under load",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, 2 CPU cores, {CLIENTS} clients at once, messages of "
        f"{SMALLEST:,}-{LARGEST:,} rows of 28x28. The ledger was verified afterwards and holds "
        "every row once.",
        "",
        "| rows | teachers | messages | rows/s | over bare teachers | most MiB, by quarter | "
        "ledger, MiB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows += [
        f"| {x['rows']:,} | {x['teachers']} | {x['messages']} | {x['rows_per_second']:,.0f} | "
        f"{x['over_bare']:.2f} | {', '.join(f'{m:,}' for m in x['memory'])} | "
        f"{x['ledger_mib']:.1f} |"
        for x in lines
    ]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
