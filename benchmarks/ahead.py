"""What a federation would cost that is too large to measure here, from slopes that were measured.

    python benchmarks/ahead.py                                  # 10,000 holders of 100,000 records
    python benchmarks/ahead.py --holders 3000 --records 1000000

Reads `results/secagg_scale.md` and `results/million.jsonl`, measures nothing, and writes
`results/ahead.md`. The graph of masks is the one that the protocol would use.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from fedtranscribe.noise.mask_graph import graph_of

RESULTS = Path(__file__).parent / "results"
PAIRS, TAKEN_OFF = "pairs", "server: masks taken off"
KEYS, ROUND = "holder: keys, once per run, s", "holder: a round, s"
SERVER, BESIDE = "server: a round, s", "holder: kB beside the vector"
VECTOR, MEMORY = "vector, kB", "process, MB"
Line = dict[str, float]


@dataclass(frozen=True)
class Slope:
    """A straight line through the two largest sparse cohorts that were measured."""

    per: float
    at: float
    value: float

    @classmethod
    def of(cls, lines: list[Line], x: str, y: str) -> "Slope":
        small, large = lines[-2:]
        return cls((large[y] - small[y]) / (large[x] - small[x]), large[x], large[y])

    def __call__(self, x: float) -> float:
        return self.value + self.per * (x - self.at)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--holders", type=int, default=10_000)
    parser.add_argument("--records", type=int, default=100_000, help="of each holder")
    options = parser.parse_args()
    text = page(options.holders, options.records, measured(), records_per_second())
    (RESULTS / "ahead.md").write_text(text, encoding="utf-8")
    print(text)


def measured() -> list[Line]:
    """The sparse cohorts of the table, by size."""
    text = (RESULTS / "secagg_scale.md").read_text(encoding="utf-8")
    rows = [row.strip("| ").split(" | ") for row in text.splitlines() if row.startswith("| ")]
    names, _, *cells = rows
    tables = [dict(zip(names, row, strict=True)) for row in cells]
    numbers = (
        {name: float(value) for name, value in row.items() if name != "graph"}
        for row in tables
        if row["graph"] == "sparse"
    )
    return sorted(numbers, key=lambda line: line["holders"])


def records_per_second() -> float:
    """Of the largest data set, per CPU second of one thread."""
    text = (RESULTS / "million.jsonl").read_text(encoding="utf-8")
    whole = [line for line in map(json.loads, text.splitlines()) if line["what"] == "whole"]
    return max(whole, key=lambda line: line["records"])["rate"]


def page(holders: int, records: int, lines: list[Line], rate: float) -> str:
    missing = holders // 10
    graph = graph_of(holders, -(-missing * 10 // 9), 1)
    # Who draws whom is independent: of those that a holder drew, few drew it as well.
    pairs = graph.drawn * (2 - graph.drawn / (holders - 1))
    survivors = holders - missing
    masks = survivors + missing * pairs * survivors / holders
    vector, last = lines[-1][VECTOR], lines[-1]
    beside = Slope.of(lines, PAIRS, BESIDE)(pairs)
    rows = (
        ("**each holder**", ""),
        ("pairs of masks", f"{pairs:,.0f} of {holders - 1:,} other holders"),
        ("keys, once per run", f"{Slope.of(lines, PAIRS, KEYS)(pairs):.2f} CPU s"),
        ("features and sum of its records", f"{records / rate:,.0f} CPU s"),
        ("masks", f"{Slope.of(lines, PAIRS, ROUND)(pairs):.2f} CPU s"),
        ("messages", f"{(vector + beside) / 1e3:.2f} MB, of which {beside / 1e3:.2f} are not sums"),
        ("**the server**", ""),
        ("masks taken off", f"{masks:,.0f}"),
        ("opening the sum", f"{Slope.of(lines, TAKEN_OFF, SERVER)(masks):,.0f} CPU s"),
        (
            "memory, beside replies that have just arrived",
            f"{Slope.of(lines, 'holders', MEMORY)(holders):,.0f} MB",
        ),
        ("vectors on disk, and received", f"{holders * vector / 1e6:.1f} GB"),
    )
    return "\n".join(
        [
            f"# {holders:,} holders of {records:,} records",
            "",
            "By `benchmarks/ahead.py`. **Extrapolated, not measured**: straight lines through "
            f"cohorts of {lines[-2]['holders']:,.0f} and {last['holders']:,.0f} holders "
            "([masked sums](secagg_scale.md)) and the rate of a million records on one thread "
            "([a million records](million.md)). One masked question for 130,761 sums, a tenth of "
            "the holders missing, one colluder. A holder's masks grow with the pairs, and pairs "
            f"with log m; here {graph.words}. The server's work grows with the masks that it takes "
            "off, its memory with the holders.",
            "",
            "| for one question | |",
            "| --- | --- |",
            *(f"| {name} | {value} |" for name, value in rows),
            "",
            "Features are computed once per run where scratch space is given, so later questions "
            "of the run cost a holder little more than their sums. What the network and Flower "
            "add is not in here: at 100 Mbit/s a holder sends its vector in a tenth of a second, "
            "and a server with 10 Gbit/s receives all of them in "
            f"{holders * vector * 8 / 1e7:,.0f} s. Flower keeps replies in memory until the server "
            "takes them, so all of them at once need as much memory as disk.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
