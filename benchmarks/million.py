"""What a sum over a million records takes: rate and memory beside those of fewer records.

    OMP_NUM_THREADS=1 python benchmarks/million.py          # ten minutes of a CPU for 10^6 records
    OMP_NUM_THREADS=1 python benchmarks/million.py --records 1000 20000     # to try it

Grey images of 28x28 in a folder of `.npy` files, two of each patient. One question for second
moments and sums by class in the usual features (wavelets, 500 axes), answered with noise and
charged to a ledger, in a process of its own for each number of records. Rates are records per CPU
second, of one thread: other work may share the machine. Memory is the highest resident set of the
process (VmHWM) and what of it belongs to no file (RssAnon), looked at after each segment and at the
end. The second largest number of records is also summed with an interrupt at 70 %. A line per
process goes to `results/million.jsonl`, and the table of the last run to `results/million.md`.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedtranscribe.data import draw_shapes, load
from fedtranscribe.holder.answering import Holder
from fedtranscribe.models import build
from fedtranscribe.noise.sources import SeededNoise
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import Adjacency, NoiseMode, Unit
from fedtranscribe.questions.kinds import of_records
from fedtranscribe.questions.moments import MomentsQuery
from fedtranscribe.questions.question import Kind

RESULTS = Path(__file__).parent / "results"
RECORDS, CLASSES, DRAWN = (10_000, 100_000, 1_000_000), 10, 1_000
STOP_AT = 0.7
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, nargs="*", default=list(RECORDS))
    parser.add_argument("--work", type=Path, help="folder for the images; a temporary one")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(answer(**options.child)))
        return
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        lines = measure(sorted(options.records), Path(folder))
    with (RESULTS / "million.jsonl").open("a") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in lines)
    (RESULTS / "million.md").write_text(table(lines))


def measure(records: list[int], folder: Path) -> list[dict[str, Any]]:
    lines = []
    for n in records:
        data = folder / str(n)
        write_images(n, data)
        lines.append(in_a_process(data, folder / f"{n}-book"))
        if len(records) > 1 and n == records[-2]:
            stopped = in_a_process(data, folder / "stopped", stop=int(STOP_AT * n))
            resumed = in_a_process(data, folder / "stopped")
            assert resumed["answer"] == lines[-1]["answer"], "an interrupt changed the answer"
            assert resumed["questions"] == 1, "an interrupt was charged for"
            lines += [stopped | {"what": "stopped"}, resumed | {"what": "resumed"}]
        shutil.rmtree(data)
    return lines


def in_a_process(data: Path, book: Path, stop: int | None = None) -> dict[str, Any]:
    asked = json.dumps({"data": str(data), "book": str(book), "stop": stop})
    command = [sys.executable, __file__, "--child", asked]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    line = json.loads(told)
    print(json.dumps(line), flush=True)
    return line


def write_images(n: int, folder: Path) -> None:
    """Drawn shapes, moved about and darkened: no two images are alike."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    drawn = draw_shapes(DRAWN, 1, 28, torch.Generator().manual_seed(0)).numpy()[:, 0]
    images = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, (n, 28, 28))
    for first in range(0, n, DRAWN):
        moved = np.roll(drawn, tuple(rng.integers(-4, 5, 2)), (1, 2))
        share = rng.uniform(0.5, 1, (DRAWN, 1, 1))
        images[first : first + DRAWN] = (moved * share)[: n - first].astype(np.uint8)
    images.flush()
    labels = rng.integers(0, CLASSES, n)
    np.save(folder / "labels.npy", labels)
    np.save(folder / "ids.npy", np.array([f"patient-{i // 2}" for i in range(n)]))
    np.save(folder / "classes.npy", CLASSES)
    # So that no record is held out.
    np.save(folder / "test_images.npy", np.asarray(images[:10]))
    np.save(folder / "test_labels.npy", labels[:10])


def answer(data: str, book: str, stop: int | None) -> dict[str, Any]:
    """What one question takes; `stop` ends it, as a kill would, after so many records."""
    began = time.process_time()
    records = load(data).train
    loading = time.process_time() - began
    anonymous = [resident("RssAnon")]

    def look(stage: str, done: int, total: int) -> None:
        anonymous.append(resident("RssAnon"))
        if stop is not None and done >= stop:
            raise KeyboardInterrupt

    torch.manual_seed(0)
    student = build("scatter", CLASSES, 1, 28)
    features: Any = student.backbone
    query = MomentsQuery(
        "million/1", Kind.MOMENTS, features.centre, features.map, "scatter", CLASSES
    )
    plan = NoisePlan(NoiseMode.LOCAL, 1.0, 1)
    folder = Path(book)
    folder.mkdir(exist_ok=True)
    statistics = of_records(records, torch.device("cpu"), folder, progress=look)
    budget = Budget(10.0, 1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
    found, began, wall = None, time.process_time(), time.monotonic()
    with Ledger.open(folder / "ledger.sqlite", records.data_id, budget) as ledger:
        holder = Holder(statistics, ledger, "million", positional_ids=False, noise=SeededNoise(0))
        try:
            values = holder.answer(query, plan).values
            found = hashlib.sha256(values.numpy().tobytes()).hexdigest()
        except KeyboardInterrupt:
            pass
        questions = ledger.usage("million").queries
    seconds = time.process_time() - began
    return {
        "what": "whole",
        "records": len(records),
        "seconds": round(seconds, 2),
        "wall": round(time.monotonic() - wall, 1),
        "loading": round(loading, 2),
        "rate": round(len(records) / seconds, 1),
        "resident": round(resident("VmHWM"), 1),
        "anonymous": round(max(*anonymous, resident("RssAnon")), 1),
        "questions": questions,
        "answer": found,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def resident(key: str) -> float:
    """A line of the kernel's account of this process, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{key}:")).split()[1]) / 1024


def table(lines: list[dict[str, Any]]) -> str:
    whole = [line for line in lines if line["what"] == "whole"]
    least, base = whole[0], whole[-2] if len(whole) > 1 else whole[0]
    rows = [
        "# A million records",
        "",
        "By `benchmarks/million.py`: grey images of 28x28 from a folder of `.npy` files, two of "
        "each patient; one question for second moments and sums by class in wavelet features (500 "
        "axes), one thread, a process for each line. Slower: CPU seconds per record over those of "
        f"{least['records']:,} records. Memory over: the resident set over that of "
        f"{base['records']:,} records.",
        "",
        "| records | records per CPU second | slower | highest resident set, MiB | memory over | "
        "of no file, MiB | loading, CPU s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for line in whole:
        rows.append(
            f"| {line['records']:,} | {line['rate']:,.0f} | {least['rate'] / line['rate']:.2f} | "
            f"{line['resident']:,.0f} | {line['resident'] / base['resident']:.2f} | "
            f"{line['anonymous']:,.0f} | {line['loading']:.1f} |"
        )
    for line in lines:
        if line["what"] == "resumed":
            share = line["seconds"] / base["seconds"]
            rows += [
                "",
                f"Stopped at {STOP_AT:.0%} of {line['records']:,} records and asked again: the "
                f"same answer, charged once, for {share:.0%} of the seconds of a whole question.",
            ]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
