"""Masked sums of large cohorts: what one holder does, and the server with a tenth missing.

The protocol alone: no node, ledger or network, and CPU seconds of one process.

- One holder goes through all steps with real messages of all its neighbours.
- The server opens the sum from real shares and from vectors on disk. What is simulated: those
  vectors. Their first numbers are values under the own mask and the pair masks with those who
  dropped out, and are compared with the values; the others are zeros. Pair masks between two
  survivors cancel in the sum. Nothing that the server does depends on what the vectors hold.
"""

import os
import resource
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks.harness import Benchmark, Case, Line, Options, grid, page
from fedtranscribe.noise import mask_keys as keys
from fedtranscribe.noise.mask_graph import Graph, graph_of
from fedtranscribe.noise.mask_keys import Cohort, KeyBook, RunKey, sign
from fedtranscribe.noise.masks import (
    RoundKey,
    keystream,
    residue_type,
    signed_keystream,
    split,
    tag,
)
from fedtranscribe.noise.secagg import MaskingHolder, Task, survivors_statement
from fedtranscribe.noise.secagg_server import MaskingServer
from fedtranscribe.rounds.round_state import VectorFile

TASK = Task("query", "bound", 130_761, 64)
# Holders, and whether the graph is sparse. A complete one of a thousand takes a quarter of an hour
# to set up, since each of the others deals a thousand shares.
CASES: list[Case] = [
    {"holders": m, "graph": graph}
    for m, graph in (
        *((20, "complete"), (100, "complete"), (300, "complete")),
        *((300, "sparse"), (1_000, "sparse")),
    )
]
COLUMNS = {
    **{"holders": "holders", "graph": "graph", "drawn": "drawn", "pairs": "pairs"},
    **{"keys_s": "holder: keys, once per run, s", "open_s": "holder: open, s"},
    **{"mask_s": "holder: mask, s", "sign_s": "holder: sign, s", "reveal_s": "holder: reveal, s"},
    **{"round_s": "holder: a round, s", "beside_kb": "holder: kB beside the vector"},
    **{"vector_kb": "vector, kB", "server_masks": "server: masks taken off"},
    **{"server_s": "server: a round, s", "server_more_mb": "server: more memory than before, MB"},
    "process_mb": "process, MB",
}
CHECKED = 1_000
"""Numbers of a vector that are really masked, and compared."""
SLACK = 10
"""Drop-outs tolerated per 9 that are missing: a sparse graph keeps a tenth in reserve."""


@dataclass
class Run:
    """Long-lived keys, run keys and round secrets of everybody."""

    cohort: Cohort
    signers: dict[str, ec.EllipticCurvePrivateKey]
    keys: dict[str, RunKey]
    server: MaskingServer

    @classmethod
    def make(cls, m: int, dropouts: int) -> "Run":
        signers = {f"holder-{i:04}": ec.generate_private_key(ec.SECP384R1()) for i in range(m)}
        roster = {name: signer.public_key() for name, signer in signers.items()}
        cohort = Cohort("run", roster, dropouts, 1)
        made = {name: RunKey.make(cohort, name, signer) for name, signer in signers.items()}
        server = MaskingServer(cohort.members, {name: key.drawn for name, key in made.items()})
        return cls(cohort, signers, made, server)


def measure(case: Case, options: Options) -> Line:
    m = case["holders"]
    missing = m // 10
    dropouts = -(-missing * SLACK // 9)
    sparse = case["graph"] == "sparse"
    graph = graph_of(m, dropouts, 1) if sparse else Graph(m - 1, m - dropouts)
    assert graph.complete is not sparse
    with the_graph(graph):
        run = Run.make(m, dropouts)
        names = run.cohort.names
        gone = set(names[-missing:])
        pairs = len(run.server.neighbours[names[0]])
        holder = one_holder(run, names[0], gone)
        return {"drawn": graph.drawn, "pairs": pairs, **holder, **the_server(run, gone)}


@contextmanager
def the_graph(graph: Graph):
    usual = keys.graph_of
    keys.graph_of = lambda *numbers: graph  # type: ignore[assignment]
    try:
        yield
    finally:
        keys.graph_of = usual


def one_holder(run: Run, name: str, gone: set[str]) -> dict[str, float]:
    """CPU seconds of each step, and the bytes of its messages in and out."""
    server, digest = run.server, TASK.digest(run.cohort)
    told = server.adverts(name, {each: key.advert for each, key in run.keys.items()})
    seconds, began = {}, time.process_time()

    def lap(what: str) -> None:
        nonlocal began
        seconds[what] = round(time.process_time() - began, 4)
        began = time.process_time()

    book = run.keys[name].agree(told)
    for other in book.others:
        book.shared_with(other)
    lap("keys")
    holder = MaskingHolder(book, run.signers[name])
    state = holder.open(TASK)
    lap("open")
    books = {
        other: KeyBook(
            run.cohort,
            other,
            run.keys[other].secret,
            {each: run.keys[each].advert.key for each in (name, other)},
            run.keys[other].drawn,
        )
        for other in book.others
    }
    inbox = {
        other: MaskingHolder(books[other], run.signers[other]).open(TASK).sent[name]
        for other in book.others
    }
    values = np.arange(TASK.length, dtype=residue_type(TASK.word))
    began = time.process_time()
    state = holder.mask(state, inbox, values)
    lap("mask")
    survivors = [each for each in run.cohort.names if each not in gone]
    tags = {
        other: tag(books[other], name, digest, other) for other in book.others if other not in gone
    }
    message = survivors_statement(digest, survivors)
    signatures = {
        each: sign(run.signers[each], message) for each in book.circle if each not in gone
    }
    own_tags = holder.tags(state)
    began = time.process_time()
    state = holder.sign(state, survivors, tags)
    lap("sign")
    shares = holder.reveal(state, signatures)
    lap("reveal")
    assert state.masked is not None
    each_round = sum(seconds[step] for step in ("open", "mask", "sign", "reveal"))
    vector = len(state.masked)
    small = sum(
        sum(map(len, part.values()))
        for part in (state.sent, inbox, own_tags, tags, signatures, shares)
    )
    return {
        **{f"{what}_s": value for what, value in seconds.items()},
        "round_s": round(each_round, 3),
        "beside_kb": round(small / 1e3, 1),
        "vector_kb": round(vector / 1e3, 1),
    }


def the_server(run: Run, gone: set[str]) -> dict[str, float]:
    """CPU seconds of opening the sum, and the process's largest resident memory."""
    server, kind = run.server, residue_type(TASK.word)
    seeds = {name: (os.urandom(32), os.urandom(32)) for name in run.cohort.names}
    round_keys = {name: RoundKey(secret) for name, (_, secret) in seeds.items()}
    sent = {name: dict.fromkeys(server.neighbours[name], round_keys[name].public) for name in seeds}
    signed = server.survivors(name for name in seeds if name not in gone)
    revealed: dict[str, dict[str, bytes]] = {name: {} for name in signed}
    for owner, circle in server.circles.items():
        which = 0 if owner in revealed else 1
        rows = split([seeds[owner][which]], run.cohort.graph.threshold, len(circle))
        for each, row in zip(circle, rows, strict=True):
            if each in revealed:
                revealed[each][owner] = row[0]
    expected = np.zeros(CHECKED, dtype=kind)
    rest = bytes(TASK.size - CHECKED * kind.itemsize)
    with tempfile.TemporaryDirectory() as folder:
        vectors = VectorFile(Path(folder) / "vectors", run.cohort.names, TASK.size, ())
        for number, name in enumerate(signed):
            values = np.full(CHECKED, number, dtype=kind)
            expected += values
            # A shorter stream is the beginning of a longer one.
            values += keystream(seeds[name][0], CHECKED, TASK.word)
            for other in server.neighbours[name] & gone:
                seed = round_keys[name].pair_seed(name, other, round_keys[other].public)
                values += signed_keystream(seed, CHECKED, TASK.word, name, other)
            vectors.put(name, values.tobytes() + rest)
        vectors.sync()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.process_time()
        total = server.unmask(TASK, sent, signed, vectors, revealed)
        seconds = time.process_time() - began
    assert (total[:CHECKED] == expected).all()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    masks = len(signed) + sum(len(server.neighbours[name] - gone) for name in gone)
    return {
        "server_masks": masks,
        "server_s": round(seconds, 2),
        "server_more_mb": round((after - before) / 1024, 1),
        "process_mb": round(after / 1024),
    }


def table(lines: list[Line]) -> str:
    return page(
        "# Masked sums of large cohorts",
        f"By `benchmarks/secagg_scale.py`, {lines[-1]['date']}; CPU seconds of one process on a "
        "busy machine, so compare lines with each other only. "
        f"{TASK.length:,} numbers of 64 bits; a tenth of the holders drop out after they have "
        "sent shares, and one may collude. One holder was measured with all of its masks and "
        "messages; it is not the mean of all. The server opens the sum from real shares and reads "
        f"vectors from disk one by one; their first {CHECKED:,} numbers are masked and compared "
        "with the values, the others are zeros.",
        grid(tuple(COLUMNS.values()), ([line[name] for name in COLUMNS] for line in lines)),
    )


BENCHMARK = Benchmark(table, CASES, measure, quick=({"holders": 20, "graph": "complete"},))
