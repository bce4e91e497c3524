"""What a federation would cost that is too large to measure here, from slopes that were measured.

Made from the lines of `secagg_scale` and `million`: 10,000 holders of 100,000 records. The graph of
masks is the one that the protocol would use.
"""

from dataclasses import dataclass

from benchmarks.harness import Benchmark, Line, grid, page, read_lines, select
from fedtranscribe.noise.mask_graph import graph_of

HOLDERS, RECORDS = 10_000, 100_000


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


def table(_: list[Line]) -> str:
    lines = select(read_lines("secagg_scale"), {"graph": "sparse"})
    lines = sorted(lines, key=lambda line: line["holders"])
    whole = select(read_lines("million"), {"what": "whole"})
    rate = max(whole, key=lambda line: line["records"])["rate"]
    holders, records = HOLDERS, RECORDS
    missing = holders // 10
    graph = graph_of(holders, -(-missing * 10 // 9), 1)
    # Who draws whom is independent: of those that a holder drew, few drew it as well.
    pairs = graph.drawn * (2 - graph.drawn / (holders - 1))
    survivors = holders - missing
    masks = survivors + missing * pairs * survivors / holders
    vector, last = lines[-1]["vector_kb"], lines[-1]
    beside = Slope.of(lines, "pairs", "beside_kb")(pairs)
    keys = Slope.of(lines, "pairs", "keys_s")(pairs)
    masking = Slope.of(lines, "pairs", "round_s")(pairs)
    opening = Slope.of(lines, "server_masks", "server_s")(masks)
    rows = (
        ("**each holder**", ""),
        ("pairs of masks", f"{pairs:,.0f} of {holders - 1:,} other holders"),
        ("keys, once per run", f"{keys:.2f} CPU s"),
        ("features and sum of its records", f"{records / rate:,.0f} CPU s"),
        ("masks", f"{masking:.2f} CPU s"),
        ("messages", f"{(vector + beside) / 1e3:.2f} MB, of which {beside / 1e3:.2f} are not sums"),
        ("**the server**", ""),
        ("masks taken off", f"{masks:,.0f}"),
        ("opening the sum", f"{opening:,.0f} CPU s"),
        (
            "memory, beside replies that have just arrived",
            f"{Slope.of(lines, 'holders', 'process_mb')(holders):,.0f} MB",
        ),
        ("vectors on disk, and received", f"{holders * vector / 1e6:.1f} GB"),
    )
    return page(
        f"# {holders:,} holders of {records:,} records",
        "By `benchmarks/ahead.py`. **Extrapolated, not measured**: straight lines through "
        f"cohorts of {lines[-2]['holders']:,.0f} and {last['holders']:,.0f} holders "
        "([masked sums](secagg_scale.md)) and the rate of a million records on one thread "
        "([a million records](million.md)). One masked question for 130,761 sums, a tenth of "
        "the holders missing, one colluder. A holder's masks grow with the pairs, and pairs "
        f"with log m; here {graph.words}. The server's work grows with the masks that it takes "
        "off, its memory with the holders.",
        grid(("for one question", ""), rows),
        "Features are computed once per run where scratch space is given, so later questions "
        "of the run cost a holder little more than their sums. What the network and Flower "
        "add is not in here: at 100 Mbit/s a holder sends its vector in a tenth of a second, "
        "and a server with 10 Gbit/s receives all of them in "
        f"{holders * vector * 8 / 1e7:,.0f} s. Flower keeps replies in memory until the server "
        "takes them, so all of them at once need as much memory as disk.",
    )


BENCHMARK = Benchmark(table)
