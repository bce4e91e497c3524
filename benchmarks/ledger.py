"""What a ledger of years costs: opening, a query, rows of a run, and the proof of the whole.

Ledgers of 10^2 to 10^5 entries are made by the code that a holder runs, many entries a
transaction. Every figure is taken from all of them in turn, so that other work on the machine slows
all alike; a ratio is over the smallest ledger of the same table. Seconds are those of the
processor, medians: what the disk takes to make an entry durable depends on the disk and not on the
ledger. The query's seconds by the clock are given as well. `first` is opening and one query, in a
process that has read no release yet.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.harness import Benchmark, Case, Line, Options, grid, page, select
from fedtranscribe.privacy.budget import Budget, release_of
from fedtranscribe.privacy.chain import EntryKind, canonical
from fedtranscribe.privacy.events import Gaussian
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, Unit

ENTRIES = (100, 1_000, 10_000, 100_000)
DATA = "digits"
LIMIT = Budget(1e4, 1e-5, Unit.RECORD, Adjacency.ZERO_OUT)
ANSWER = bytes(2_000)
AT_ONCE = 500
OPENED, ASKED, PROVED = 25, 40, 1

KINDS = {
    "50 queries a run, 7 different releases": (50, 7),
    "50 queries a run, every run under noise of its own": (50, 10**9),
    "one run of all queries": (10**9, 7),
}
CASES: list[Case] = [{"ledgers": kind} for kind in KINDS]
FIGURES = ("opening", "query", "query by the clock", "first", "`rows`")


def measure(case: Case, options: Options) -> Line:
    """Milliseconds by number of entries, and what there is of them."""
    per_run, releases = KINDS[case["ledgers"]]
    entries = ENTRIES[:2] if options.quick else ENTRIES
    with tempfile.TemporaryDirectory() as folder:
        paths = {n: Path(folder) / f"{n}.sqlite" for n in entries}
        for n, path in paths.items():
            _make(path, n, per_run, releases)
        return _figures(paths)


def table(lines: list[Line]) -> str:
    """A table for each kind of ledger."""
    parts = []
    for kind in KINDS:
        for line in select(lines, {"ledgers": kind})[-1:]:
            parts += [f"## {kind[0].upper()}{kind[1:]}", _table(line)]
    return page(
        "# A ledger of years",
        f"Milliseconds of the processor, medians of {OPENED} openings, {ASKED} queries "
        f"(reserve and commit, answers of {len(ANSWER):,} bytes) and {ASKED} calls of `rows`; × is "
        "the ratio to the smallest ledger. First: opening and one query, where no release was read "
        "before. The proof of the whole is no part of opening or a query.",
        *parts,
    )


def _table(line: Line) -> str:
    head = [cell for name in FIGURES for cell in (name, "×")]
    sizes = line["entries"]
    least = sizes[min(sizes, key=int)]
    rows = []
    for n, own in sizes.items():
        cells = [f"{int(n):,}", f"{own['runs']:,}", f"{own['bytes'] / 2**20:.1f}"]
        for name in FIGURES:
            cells += [f"{own[name]:.3g}", f"{own[name] / least[name]:.2f}"]
        rows.append([*cells, f"{own['proof']:,.0f}"])
    return grid(("entries", "runs", "MiB", *head, "proof of the whole"), rows)


def _release(i: int) -> MechanismRelease:
    event = Gaussian(0.001 + i * 1e-7)
    return MechanismRelease("noisy-sum", 1, {Unit.RECORD: dict.fromkeys(Adjacency, event)})


def _make(path: Path, entries: int, per_run: int, releases: int) -> None:
    """A ledger of about so many entries: the queries of run after run, each answered."""
    with Ledger.open(path, DATA, LIMIT) as ledger:
        book, asked = ledger._book, 0
        while book.totals.head.sequence < entries:
            with book.writing():
                for _ in range(AT_ONCE):
                    run = asked // per_run
                    content = canonical(_release(run % releases).to_json()).decode()
                    if releases < per_run:
                        content = canonical(_release(asked % releases).to_json()).decode()
                    query = f"run-{run}-{asked}"
                    book.append(EntryKind.RESERVE, content, f"run-{run}", query, "0" * 64)
                    book.append_answer(query, f"run-{run}", ANSWER)
                    asked += 1
                    if book.totals.head.sequence >= entries:
                        break


def _figures(paths: dict[int, Path]) -> Line:
    opened = _in_turn(
        {n: lambda path=path: Ledger.open(path, DATA, LIMIT).close() for n, path in paths.items()},
        OPENED,
    )
    number = iter(range(10**9))

    def ask(ledger: Ledger) -> None:
        query = f"new-{next(number)}"
        ledger.reserve(query, "0" * 64, _release(0), "run-0")
        ledger.commit(query, ANSWER)

    def ask_first(path: Path) -> None:
        release_of.cache_clear()
        with Ledger.open(path, DATA, LIMIT) as ledger:
            ask(ledger)

    first = _in_turn({n: lambda path=path: ask_first(path) for n, path in paths.items()}, OPENED)
    ledgers = {n: Ledger.open(path, DATA, LIMIT) for n, path in paths.items()}
    sizes = {n: (ledger.size, len(ledger.runs())) for n, ledger in ledgers.items()}
    asked = _in_turn({n: lambda ledger=ledger: ask(ledger) for n, ledger in ledgers.items()}, ASKED)
    rows = _in_turn(
        {n: lambda ledger=ledger: ledger.rows("run-0", "new") for n, ledger in ledgers.items()},
        ASKED,
    )
    proved = _in_turn({n: ledger.verify for n, ledger in ledgers.items()}, PROVED)
    for ledger in ledgers.values():
        ledger.close()
    figures = dict(
        zip(FIGURES, ((opened, 0), (asked, 0), (asked, 1), (first, 0), (rows, 0)), strict=False)
    )
    return {
        "entries": {
            str(n): {
                **dict(zip(("bytes", "runs"), sizes[n], strict=True)),
                **{
                    name: round(1e3 * found[n][which], 3)
                    for name, (found, which) in figures.items()
                },
                "proof": round(1e3 * proved[n][0], 1),
            }
            for n in paths
        }
    }


def _in_turn(calls: dict[int, Callable[[], object]], times: int) -> dict[int, tuple[float, float]]:
    """Median seconds of the processor and of the clock; the first call of each does not count."""
    spent: dict[int, list[tuple[float, float]]] = {n: [] for n in calls}
    for _ in range(times + 1):
        for n, call in calls.items():
            cpu, clock = time.process_time(), time.perf_counter()
            call()
            spent[n].append((time.process_time() - cpu, time.perf_counter() - clock))
    return {n: (_median(s, 0), _median(s, 1)) for n, s in spent.items()}


def _median(spent: Sequence[tuple[float, float]], which: int) -> float:
    return statistics.median(each[which] for each in spent[1:])


BENCHMARK = Benchmark(table, CASES, measure, quick=CASES[:1])
