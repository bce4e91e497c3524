"""How long an ensemble of small networks takes to answer a query, read from disk or kept in memory.

    OMP_NUM_THREADS=1 python benchmarks/inference.py       # a few minutes
    python benchmarks/inference.py --threads 2 --only cnn:50

`disk` is how the package asked its teachers first, kept here as the yardstick: every shard's file
read and checked for each query, one network after the other. The others are `Ensemble` with its
weights in memory. All answer in turn, the best of several rounds counts, each case has a process
of its own. `fresh` is `disk` in rounds of its own before that: `Ensemble` changes how the C library
treats freed memory (`keep_freed_memory`), which `disk` then gains from as well. What `fresh` loses
depends on how the heap happens to lie. CPU seconds are those of the process: they bear other work
on the machine where there is one thread, and count waiting threads where there are more.

Lines go to `results/inference.jsonl`, the table to `results/inference.md`; a case measured again
with the same number of threads replaces its line. Weights are as initialised: values do not
change the time.
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

import torch
from kept_lines import read_lines
from torch import Tensor

from fedtranscribe.config import TeacherSettings
from fedtranscribe.models import build, load_state, restore, save
from fedtranscribe.models.ensemble import Ensemble, Way
from fedtranscribe.models.teacher_training import shard_file
from fedtranscribe.models.teachers import Manifest

RESULTS = Path(__file__).parent / "results"
FRESH, DISK = "fresh", "disk"
WAYS = [FRESH, DISK, *Way]
CLASSES, CHANNELS, SIZE = 10, 1, 28
BATCH = 250
Ask = Callable[[], Iterator[Tensor]]


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    architecture: str
    shards: int
    rows: int = 500
    rounds: int = 7


CASES = [
    Case("cnn", 10, rounds=15),
    Case("cnn", 50),
    Case("cnn", 250, rounds=5),
    Case("cnn-small", 50),
    Case("cnn-wide", 50, rounds=5),
]


def main() -> None:
    options = _options()
    path = RESULTS / "inference.jsonl"
    lines = read_lines(path)
    for case in CASES:
        if options.only not in ("", case.architecture, f"{case.architecture}:{case.shards}"):
            continue
        arguments = case, options.threads, options.device
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
            line = fresh.submit(_measure, *arguments).result()
        print(json.dumps(line), flush=True)
        lines = [other for other in lines if _key(other) != _key(line)] + [line]
        path.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
        (RESULTS / "inference.md").write_text(_table(lines))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1, help="of torch on the CPU")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="network, or network:shards")
    return parser.parse_args()


def _key(line: dict) -> list:
    return [line[name] for name in ("device", "threads", "architecture", "shards", "rows")]


def _measure(case: Case, threads: int, device: str) -> dict:
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        _make_teachers(case, Path(folder))
        figures = _in_turn(case, Path(folder), torch.device(device))
    return {
        "device": device,
        "threads": threads,
        "architecture": case.architecture,
        "shards": case.shards,
        "rows": case.rows,
        **figures,
        "torch": torch.__version__,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def _in_turn(case: Case, folder: Path, device: torch.device) -> dict[str, object]:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (case.rows, CHANNELS, SIZE, SIZE), generator=rng)
    images = images.to(torch.uint8)

    def disk() -> Iterator[Tensor]:
        return _from_disk(case, folder, images, device)

    best = _best({FRESH: disk}, case.rounds)
    ensembles = {way: Ensemble(folder, device, way=way) for way in Way}
    asks: dict[str, Ask] = {DISK: disk}
    asks |= {way: lambda way=way: ensembles[way].logits(images) for way in Way}
    answers = {way: torch.cat(list(ask())) for way, ask in asks.items()}  # reads the weights
    best |= _best(asks, case.rounds)
    return {
        "wall_s": {way: round(wall, 4) for way, (wall, _) in best.items()},
        "cpu_s": {way: round(cpu, 4) for way, (_, cpu) in best.items()},
        "largest_difference": max(float((a - answers[DISK]).abs().max()) for a in answers.values()),
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
        architecture=case.architecture,
        mode="full",
        classes=CLASSES,
        channels=CHANNELS,
        size=SIZE,
        shards=case.shards,
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
    for shard in range(case.shards):
        network = build(case.architecture, CLASSES, CHANNELS, SIZE, seed=shard)
        save(network, shard_file(folder, shard))


@torch.no_grad()
def _from_disk(case: Case, folder: Path, images: Tensor, device: torch.device) -> Iterator[Tensor]:
    network = build(case.architecture, CLASSES, CHANNELS, SIZE).to(device).eval()
    for shard in range(case.shards):
        path = shard_file(folder, shard)
        restore(network, load_state(path), path)
        parts = [network(x.to(device).float() / 255).cpu() for x in images.split(BATCH)]
        yield torch.cat(parts)[None]


def _table(lines: list[dict]) -> str:
    worst = max(line["largest_difference"] for line in lines)
    rows = [
        "# Answering a query with an ensemble of small networks",
        "",
        f"Images of {CHANNELS}x{SIZE}x{SIZE}, {CLASSES} classes. Seconds per query, best of "
        "several rounds; in brackets how many times as fast as `disk`, which reads every shard's "
        "file (in the page cache) for each query. `loop`, `grouped` and `vmap` keep the weights in "
        "memory; these four were measured in turn. `fresh` is `disk` before `keep_freed_memory`, "
        f"in rounds of its own. Largest difference of any logit: {worst:.0e}.",
    ]
    setups = sorted({(line["device"], line["threads"]) for line in lines})
    for device, threads in setups:
        rows += ["", f"## {device}, {threads} thread{'s' * (threads > 1)}"]
        chosen = [line for line in lines if (line["device"], line["threads"]) == (device, threads)]
        for unit, title in (("cpu_s", "CPU seconds"), ("wall_s", "Seconds on the wall clock")):
            rows += ["", f"{title}:", "", f"| network | shards | rows | {' | '.join(WAYS)} |"]
            rows.append("| --- " * (3 + len(WAYS)) + "|")
            rows += [_row(line, line[unit]) for line in chosen]
    return "\n".join(rows) + "\n"


def _row(line: dict, seconds: dict[str, float]) -> str:
    cells = [f"{seconds[way]:.3f} ({seconds[DISK] / seconds[way]:.2f})" for way in WAYS]
    return f"| {line['architecture']} | {line['shards']} | {line['rows']} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
