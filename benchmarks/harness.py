"""What all benchmarks share: cases, lines of JSON, tables, and the clocks.

A benchmark is a module of this folder with a `BENCHMARK`. Its cases are dictionaries that name what
is measured. Each measured case is one line of `results/NAME.jsonl`: the case, what was found,
`seconds` on the wall clock, `cpu_seconds` and `date`. `results/NAME.md` is made from these lines.
An interrupted benchmark continues after its last line.
"""

import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

RESULTS = Path(__file__).parent / "results"
PACKAGED = ("digits",)
"""Data sets that need no `--data-root`."""
PROGRAM = Path(sys.executable).with_name("fedtranscribe")
"""The command line of this environment."""
MIB = 2**20

Case = dict[str, Any]
Line = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """Where a case finds its data and leaves its runs.

    Attributes:
        work: folder for teachers, runs and ledgers; what lies there is used again.
        data_root: where the data sets are that no package ships.
        device: torch's name of it.
        quick: whether sizes are cut, so that a case takes seconds; nothing is recorded then.
    """

    work: Path
    data_root: Path | None = None
    device: str = "cpu"
    quick: bool = False


@dataclass(frozen=True)
class Benchmark:
    """One file of results.

    Attributes:
        cases: what is measured, most important first; empty if the table is made from the lines of
            other benchmarks.
        measure: what is found for one case.
        table: the Markdown page of all lines.
        quick: a few small cases.
        also: what else is made from the lines, such as a figure.
    """

    table: Callable[[list[Line]], str]
    cases: Sequence[Case] = ()
    measure: Callable[[Case, Options], Line] | None = None
    quick: Sequence[Case] = ()
    also: Callable[[], None] | None = None

    def chosen(self, only: Sequence[str], seeds: Sequence[int]) -> list[Case]:
        """The cases whose values are those of `only` (NAME=VALUE), for these seeds if any."""
        wanted: dict[str, set[str]] = {}
        for word in only:
            name, _, value = word.partition("=")
            wanted.setdefault(name, set()).add(value)
        names = {name for case in self.cases for name in case}
        if unknown := wanted.keys() - names:
            raise SystemExit(f"Expected --only {' or '.join(sorted(names))}=…, got {unknown}.")
        cases: Iterable[Case] = self.cases
        if seeds:
            bare = [{k: v for k, v in case.items() if k != "seed"} for case in cases]
            bare = [case for i, case in enumerate(bare) if case not in bare[:i]]
            cases = [{**case, "seed": seed} for seed, case in itertools.product(seeds, bare)]
        return [
            case
            for case in cases
            if all(str(case.get(n)) in values for n, values in wanted.items())
        ]


def path_of(name: str) -> Path:
    """The file of a benchmark's lines."""
    return RESULTS / f"{name}.jsonl"


def read_lines(name: str) -> list[Line]:
    """All lines of a benchmark, oldest first; none if nothing has been measured."""
    path = path_of(name)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def select(lines: Iterable[Line], case: Case) -> list[Line]:
    """The lines of a case."""
    return [line for line in lines if case.items() <= line.items()]


def measure(name: str, benchmark: Benchmark, cases: Iterable[Case], options: Options) -> None:
    """Measure the cases that have no line yet."""
    for case in cases:
        if select(read_lines(name), case):
            continue
        line = measured(benchmark, case, options)
        with path_of(name).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, ensure_ascii=False) + "\n")
        print(json.dumps(line, ensure_ascii=False), flush=True)


def measured(benchmark: Benchmark, case: Case, options: Options) -> Line:
    """A case's line."""
    assert benchmark.measure is not None
    options.work.mkdir(parents=True, exist_ok=True)
    began, cpu = time.time(), sum(os.times()[:4])
    found = benchmark.measure(case, options)
    took = {
        "seconds": round(time.time() - began, 1),
        "cpu_seconds": round(sum(os.times()[:4]) - cpu, 1),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    return {**case, **took, **found}


def try_quickly(benchmark: Benchmark) -> str:
    """The table of the small cases; nothing is recorded."""
    if not benchmark.quick:
        raise SystemExit("Expected a benchmark with cases; this table is made from other lines.")
    with tempfile.TemporaryDirectory() as folder:
        options = Options(Path(folder), quick=True)
        lines = [measured(benchmark, case, options) for case in benchmark.quick]
    print("\n".join(json.dumps(line, ensure_ascii=False) for line in lines), file=sys.stderr)
    return benchmark.table(lines)


def write_table(name: str, benchmark: Benchmark) -> None:
    """Make the page of the lines anew."""
    lines = read_lines(name)
    if benchmark.cases and not lines:
        # Measured before there were lines: the page is the record.
        return
    (RESULTS / f"{name}.md").write_text(benchmark.table(lines), encoding="utf-8")
    if benchmark.also is not None:
        benchmark.also()


def page(*parts: str) -> str:
    """A Markdown page of paragraphs and tables."""
    return "\n\n".join(parts) + "\n"


def grid(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def values(lines: Iterable[Line], name: str, factor: float = 1) -> list[float]:
    """One column of the lines that have it."""
    return [factor * line[name] for line in lines if line.get(name) is not None]


def spread(found: Sequence[float]) -> str:
    """Mean (lowest – highest); of a single run, its figure."""
    if not found:
        return "–"
    mean = f"{statistics.mean(found):.1f}"
    return mean if len(found) == 1 else f"{mean} ({min(found):.1f} – {max(found):.1f})"


def per_cent(lines: Iterable[Line], name: str) -> str:
    """The spread of a share, in per cent."""
    return spread(values(lines, name, 100))


def median(lines: Iterable[Line], name: str, factor: float = 1, digits: int = 1) -> str:
    """The median of a column."""
    found = values(lines, name, factor)
    return f"{statistics.median(found):.{digits}f}" if found else "–"


def in_a_fresh_process(work: Callable[..., T], *arguments: object) -> T:
    """What a function returns in a process that has done nothing else."""
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        return fresh.submit(work, *arguments).result()


def resident(entry: str) -> int:
    """Bytes of an entry of Linux's process status, such as VmHWM, the most memory so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{entry}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"Expected {entry} in /proc/self/status: memory is measured on Linux.")
