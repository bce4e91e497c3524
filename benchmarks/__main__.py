"""Lists the benchmarks, runs one, or makes its table anew.

    python -m benchmarks                                  what there is, and how long it takes
    python -m benchmarks utility --dry-run                its cases
    python -m benchmarks utility --data-root DIR --only data=mnist case=moments-1
    python -m benchmarks utility --table                  the table from the recorded lines
    python -m benchmarks dpsd-table5 --data-root DIR      all of a table of a paper

Finished cases are not measured again. `--quick` tries a small case and records nothing.
"""

import argparse
import ast
import importlib
import statistics
from pathlib import Path

from benchmarks.harness import (
    PACKAGED,
    Benchmark,
    Case,
    Line,
    Options,
    measure,
    read_lines,
    select,
    try_quickly,
    write_table,
)
from benchmarks.papers import TABLES, Run

HERE = Path(__file__).parent
ROOT = HERE.parent


def main() -> None:
    options = _options()
    if options.name is None:
        _list()
        return
    if options.name in TABLES:
        print(TABLES[options.name])
        runs = TABLES[options.name].runs
    else:
        runs = (Run(options.name, tuple(options.only), tuple(options.seed)),)
    for run in runs:
        _run(run, options)


def names() -> list[str]:
    """Every benchmark, by its module."""
    return sorted(p.stem for p in HERE.glob("*.py") if "\nBENCHMARK = " in p.read_text("utf-8"))


def quoting(name: str) -> list[str]:
    """The pages with a link to the benchmark's table."""
    link = f"benchmarks/results/{name}.md"
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(p.relative_to(ROOT)) for p in pages if link in p.read_text("utf-8")]


def about(name: str) -> str:
    """The first line of the module's docstring."""
    text = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text("utf-8"))) or ""
    return text.splitlines()[0]


def took(lines: list[Line]) -> str:
    """The median time of a case, as far as it was recorded."""
    for fields, clock in (
        (("seconds", "minutes"), ""),
        (("cpu_seconds", "run_cpu_seconds"), "CPU "),
    ):
        factors = {"minutes": 60}
        found = [
            line[field] * factors.get(field, 1)
            for line in lines
            for field in fields
            if line.get(field) is not None
        ]
        if found:
            middle, total = statistics.median(found), sum(found) / 3600
            return f"{_time(middle)} {clock}a case, {total:.1f} h for all {len(found)} timed"
    return "not timed"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _list() -> None:
    for name in names():
        lines = read_lines(name)
        print(f"{name:<20} {about(name)}")
        print(f"{'':<20} {len(lines)} lines; {took(lines)}; {', '.join(quoting(name))}")
    print("\nTables and figures of the papers, each a choice of the cases above:")
    for name, table in TABLES.items():
        print(f"{name:<20} {table.about}")


def _run(run: Run, options: argparse.Namespace) -> None:
    benchmark: Benchmark = importlib.import_module(f"benchmarks.{run.name}").BENCHMARK
    if options.quick:
        print(try_quickly(benchmark))
        return
    if not options.table:
        cases = _possible(benchmark.chosen(run.only, run.seeds), options)
        if options.dry_run:
            _describe(run.name, cases)
            return
        work = options.work or Path("runs") / run.name
        measure(run.name, benchmark, cases, Options(work, options.data_root, options.device))
    write_table(run.name, benchmark)
    print(f"benchmarks/results/{run.name}.md")


def _possible(cases: list[Case], options: argparse.Namespace) -> list[Case]:
    """Without a data root, the cases of packaged data."""
    if options.data_root is not None or options.dry_run:
        return cases
    possible = [case for case in cases if case.get("data", PACKAGED[0]) in PACKAGED]
    if len(possible) < len(cases):
        print(f"{len(cases) - len(possible)} cases need --data-root DIR.")
    return possible


def _describe(name: str, cases: list[Case]) -> None:
    lines = read_lines(name)
    for case in cases:
        found = select(lines, case)
        words = " ".join(f"{key}={value}" for key, value in case.items())
        print(f"{name} {words}: {took(found) if found else 'not measured yet'}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    choices = [*names(), *TABLES]
    parser.add_argument("name", nargs="?", metavar="NAME", choices=choices)
    parser.add_argument("--data-root", type=Path, help="where the data sets are, as for transcribe")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME=VALUE", help="these cases")
    parser.add_argument("--seed", type=int, nargs="*", default=[], help="these seeds")
    parser.add_argument("--work", type=Path, help="teachers and runs; default: runs/NAME")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, …")
    parser.add_argument("--dry-run", action="store_true", help="print the cases, and stop")
    parser.add_argument("--table", action="store_true", help="only make the table anew")
    parser.add_argument("--quick", action="store_true", help="try a small case, record nothing")
    options = parser.parse_args()
    if options.data_root is not None:
        options.data_root = options.data_root.resolve()
    return options


if __name__ == "__main__":
    main()
