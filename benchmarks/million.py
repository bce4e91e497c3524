"""What a sum over a million records takes: rate and memory beside those of fewer records.

Grey images of 28x28 in a folder of `.npy` files, two of each patient. One question for second
moments and sums by class in the usual features (wavelets, 500 axes), answered with noise and
charged to a ledger, in a process of its own for each number of records. Rates are records per CPU
second, of one thread (set OMP_NUM_THREADS=1): other work may share the machine. Memory is the
highest resident set of the process (VmHWM) and what of it belongs to no file (RssAnon), read
after each segment and at the end. `resumed` is a sum with an interrupt at 70 %.
"""

import hashlib
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import (
    MIB,
    Benchmark,
    Case,
    Line,
    Options,
    grid,
    in_a_fresh_process,
    page,
    resident,
    select,
)
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

RECORDS, CLASSES, DRAWN = (10_000, 100_000, 1_000_000), 10, 1_000
STOP_AT = 0.7
CASES = [
    *({"what": "whole", "records": n} for n in RECORDS),
    {"what": "resumed", "records": RECORDS[-2]},
]


def measure(case: Case, options: Options) -> Line:
    """One question, or one that is interrupted and asked again."""
    n = case["records"]
    folder = options.work / f"{n}-{time.time_ns()}"
    write_images(n, folder / "images")
    try:
        line = in_a_fresh_process(answer, folder / "images", folder / "whole", None)
        if case["what"] == "resumed":
            whole, book = line, folder / "stopped"
            in_a_fresh_process(answer, folder / "images", book, int(STOP_AT * n))
            line = in_a_fresh_process(answer, folder / "images", book, None)
            assert line["answer"] == whole["answer"], "an interrupt changed the answer"
            assert line["questions"] == 1, "an interrupt was charged for"
    finally:
        shutil.rmtree(folder)
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


def answer(data: Path, folder: Path, stop: int | None) -> Line:
    """What one question takes; `stop` ends it, as a kill would, after so many records."""
    began = time.process_time()
    records = load(str(data)).train
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
        "cpu_seconds": round(seconds, 2),
        "seconds": round(time.monotonic() - wall, 1),
        "loading": round(loading, 2),
        "rate": round(len(records) / seconds, 1),
        "resident": round(resident("VmHWM") / MIB, 1),
        "anonymous": round(max(*anonymous, resident("RssAnon")) / MIB, 1),
        "questions": questions,
        "answer": found,
    }


def table(lines: list[Line]) -> str:
    """The latest line of each number of records."""
    latest = {(line["what"], line["records"]): line for line in lines}
    whole = [line for (what, _), line in sorted(latest.items()) if what == "whole"]
    least, base = whole[0], whole[-2] if len(whole) > 1 else whole[0]
    resumed = []
    for line in select(latest.values(), {"what": "resumed", "records": base["records"]}):
        share = line["cpu_seconds"] / base["cpu_seconds"]
        resumed.append(
            f"Stopped at {STOP_AT:.0%} of {line['records']:,} records and asked again: the "
            f"same answer, charged once, for {share:.0%} of the seconds of a whole question."
        )
    return page(
        "# A million records",
        "By `benchmarks/million.py`: grey images of 28x28 from a folder of `.npy` files, two of "
        "each patient; one question for second moments and sums by class in wavelet features (500 "
        "axes), one thread, a process for each line. Slower: CPU seconds per record over those of "
        f"{least['records']:,} records. Memory over: the resident set over that of "
        f"{base['records']:,} records.",
        grid(
            (
                *("records", "records per CPU second", "slower", "highest resident set, MiB"),
                *("memory over", "of no file, MiB", "loading, CPU s"),
            ),
            (
                (
                    *(f"{line['records']:,}", f"{line['rate']:,.0f}"),
                    *(f"{least['rate'] / line['rate']:.2f}", f"{line['resident']:,.0f}"),
                    f"{line['resident'] / base['resident']:.2f}",
                    *(f"{line['anonymous']:,.0f}", f"{line['loading']:.1f}"),
                )
                for line in whole
            ),
        ),
        *resumed,
    )


BENCHMARK = Benchmark(
    table,
    CASES,
    measure,
    quick=({"what": "whole", "records": 1_000}, {"what": "resumed", "records": 1_000}),
)
