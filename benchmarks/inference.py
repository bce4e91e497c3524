"""How long an ensemble of small networks takes to answer a query, read from disk or from memory.

`disk` is how the package asked its teachers first, here as the yardstick: every shard's file read
and checked for each query, one network after the other. The others are `Ensemble` with its weights
in memory. All answer in turn, the best of several rounds counts, each case has a process of its
own. `fresh` is `disk` in rounds of its own before that: `Ensemble` changes how the C library treats
freed memory (`keep_freed_memory`), which `disk` then gains from as well. What `fresh` loses depends
on how the heap happens to lie. CPU seconds are those of the process: they bear other work on the
machine where there is one thread, and count waiting threads where there are more. Weights are as
initialised: values do not change the time.
"""

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.harness import (
    Benchmark,
    Case,
    Line,
    Options,
    grid,
    in_a_fresh_process,
    page,
    select,
)
from fedtranscribe.config import TeacherSettings
from fedtranscribe.models import build, load_state, restore, save
from fedtranscribe.teachers import Ensemble, Manifest
from fedtranscribe.teachers.stacked import Way
from fedtranscribe.teachers.training import shard_file

FRESH, DISK = "fresh", "disk"
WAYS = [FRESH, DISK, *Way]
CLASSES, CHANNELS, SIZE = 10, 1, 28
BATCH, ROWS = 250, 500
# Network, shards -> rounds.
ENSEMBLES = {
    ("cnn", 10): 15,
    ("cnn", 50): 7,
    ("cnn", 250): 5,
    ("cnn-small", 50): 7,
    ("cnn-wide", 50): 5,
}
SETUPS = [("cpu", 1), ("cpu", 2)] + [("cuda", 1)] * torch.cuda.is_available()
CASES = [
    {"device": device, "threads": threads, "architecture": name, "shards": shards, "rows": ROWS}
    for device, threads in SETUPS
    for name, shards in ENSEMBLES
]
Ask = Callable[[], Iterator[Tensor]]


def measure(case: Case, options: Options) -> Line:
    """Each way's seconds."""
    return in_a_fresh_process(_in_turn, case)


def _in_turn(case: Case) -> Line:
    torch.set_num_threads(case["threads"])
    device = torch.device(case["device"])
    rounds = ENSEMBLES.get((case["architecture"], case["shards"]), 1)
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (case["rows"], CHANNELS, SIZE, SIZE), generator=rng)
    images = images.to(torch.uint8)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make_teachers(case, folder)

        def disk() -> Iterator[Tensor]:
            return _from_disk(case, folder, images, device)

        best = _best({FRESH: disk}, rounds)
        ensembles = {way: Ensemble(folder, device, way=way) for way in Way}
        asks: dict[str, Ask] = {DISK: disk}
        asks |= {way: lambda way=way: ensembles[way].logits(images) for way in Way}
        answers = {way: torch.cat(list(ask())) for way, ask in asks.items()}  # reads the weights
        best |= _best(asks, rounds)
    return {
        "wall_s": {str(way): round(wall, 4) for way, (wall, _) in best.items()},
        "cpu_s": {str(way): round(cpu, 4) for way, (_, cpu) in best.items()},
        "largest_difference": max(float((a - answers[DISK]).abs().max()) for a in answers.values()),
        "torch": torch.__version__,
    }


def _best(asks: dict[str, Ask], rounds: int) -> dict[str, tuple[float, float]]:
    """Least seconds on the wall clock and least CPU seconds, each way once a round."""
    best = dict.fromkeys(asks, (math.inf, math.inf))
    for _ in range(rounds):
        for way, ask in asks.items():
            before = time.perf_counter(), time.process_time()
            for _ in ask():
                pass
            wall, cpu = time.perf_counter() - before[0], time.process_time() - before[1]
            best[way] = min(best[way][0], wall), min(best[way][1], cpu)
    return best


def _make_teachers(case: Case, folder: Path) -> None:
    manifest = Manifest(
        architecture=case["architecture"],
        mode="full",
        classes=CLASSES,
        channels=CHANNELS,
        size=SIZE,
        shards=case["shards"],
        data="none",
        data_root=None,
        data_id="none",
        record_ids="positional",
        key="00",
        seed=0,
        weights=None,
        settings=TeacherSettings(),
        complete=True,
    )
    manifest.save(folder)
    for shard in range(case["shards"]):
        network = build(case["architecture"], CLASSES, CHANNELS, SIZE, seed=shard)
        save(network, shard_file(folder, shard))


@torch.no_grad()
def _from_disk(case: Case, folder: Path, images: Tensor, device: torch.device) -> Iterator[Tensor]:
    network = build(case["architecture"], CLASSES, CHANNELS, SIZE).to(device).eval()
    for shard in range(case["shards"]):
        path = shard_file(folder, shard)
        restore(network, load_state(path), path)
        parts = [network(x.to(device).float() / 255).cpu() for x in images.split(BATCH)]
        yield torch.cat(parts)[None]


def table(lines: list[Line]) -> str:
    """CPU seconds and wall seconds for each device and number of threads."""
    worst, parts = max(line["largest_difference"] for line in lines), []
    for device, threads in sorted({(line["device"], line["threads"]) for line in lines}):
        parts.append(f"## {device}, {threads} thread{'s' * (threads > 1)}")
        found = select(lines, {"device": device, "threads": threads})
        for unit, title in (("cpu_s", "CPU seconds:"), ("wall_s", "Seconds on the wall clock:")):
            head = ("network", "shards", "rows", *WAYS)
            parts += [title, grid(head, [_row(line, line[unit]) for line in found])]
    return page(
        "# Answering a query with an ensemble of small networks",
        f"By `benchmarks/inference.py`: images of {CHANNELS}x{SIZE}x{SIZE}, {CLASSES} classes. "
        "Seconds per query, best of several rounds; in brackets how many times as fast as `disk`, "
        "which reads every shard's file (in the page cache) for each query. `loop`, `grouped` and "
        "`vmap` hold the weights in memory; these four were measured in turn. `fresh` is `disk` "
        "before `keep_freed_memory`, in rounds of its own. Largest difference of any logit: "
        f"{worst:.0e}.",
        *parts,
    )


def _row(line: Line, seconds: dict[str, float]) -> tuple[object, ...]:
    cells = (f"{seconds[way]:.3f} ({seconds[DISK] / seconds[way]:.2f})" for way in WAYS)
    return line["architecture"], line["shards"], line["rows"], *cells


BENCHMARK = Benchmark(
    table,
    CASES,
    measure,
    quick=(
        {"device": "cpu", "threads": 1, "architecture": "cnn-small", "shards": 4, "rows": 50},
    ),
)
