"""Bookkeeping that every guarantee rests on: what was booked, who saw which record, which batches.

An attack cannot find these mistakes on a student; looking can.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from fedtranscribe.data import ImageSet, assign_shards
from fedtranscribe.errors import LedgerError
from fedtranscribe.evaluation.audit.bounds import expect_confidence
from fedtranscribe.evaluation.audit.claims import Given, worst
from fedtranscribe.evaluation.audit.findings import Check
from fedtranscribe.exchange import Answer, QueryBatch
from fedtranscribe.mechanisms import MOMENTS
from fedtranscribe.privacy.chain import Kind
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.teachers import load_manifest
from fedtranscribe.teachers.training import shard_file

_AGREEMENT = 1e-6
_MASKED = "secagg-"


def check_events(result: Mapping[str, Any], given: Given) -> Check:
    """Whether a run's events cost what its result says, and cover the rows that it learned from.

    Args:
        result: what `metrics.json` holds.
        given: what `events.jsonl` holds.
    """
    stated, unit = result.get("epsilon"), Unit(result.get("unit", Unit.RECORD))
    if not given:
        said = "the run states no ε and no events" if stated is None else "no events, yet an ε"
        return Check("events", None if stated is None else False, said)
    adjacency = Adjacency(result.get("adjacency", Adjacency.ZERO_OUT))
    found = worst(given, unit, adjacency, float(result["delta"]))
    if found is None or stated is None:
        agree = found is stated
    else:
        agree = math.isclose(found, stated, rel_tol=_AGREEMENT)
    if not agree:
        return Check("events", False, f"the events cost ε = {found}, the result says {stated}")
    asked = result.get("rows")
    for holder, releases in given.items():
        rows = sum(release.rows for release in releases)
        # A holder may have missed rounds, and a baseline asks for no rows.
        if asked and rows > int(asked):
            words = f"{holder} answered {rows:,} rows where the run asked {asked:,}"
            return Check("events", False, f"{words}: some were answered twice")
    return Check("events", True, f"they cost ε = {found:.6g}, as the result says")


def check_ledger(ledger: Ledger, run: str, rows: int, k: int | None = None) -> Check:
    """Whether a run was charged for every row that it was answered, once.

    Args:
        ledger: of the data; opening it has proved the chain.
        run: the run's id.
        rows: that the run says it asked.
        k: classes per row; None takes that of the first answer.
    """
    try:
        ledger.verify()
    except LedgerError as error:
        return Check("ledger", False, str(error))
    mine = [entry for entry in ledger.entries() if entry.run == run]
    reserved = [entry for entry in mine if entry.kind == Kind.RESERVE]
    charged = sum(release.rows for release in ledger.releases(run))
    if charged != rows:
        return Check(
            "ledger",
            False,
            f"it was charged for {charged:,} rows, the run says {rows:,}"
            + (": rows were answered twice, or by somebody else" if charged > rows else ""),
        )
    twice = [h for h, n in Counter(entry.query_hash for entry in reserved).items() if n > 1]
    if twice:
        return Check("ledger", False, f"{len(twice)} queries were booked under two ids")
    for entry, release in zip(reserved, ledger.releases(run), strict=True):
        answer = ledger.answer(entry.query_id)
        # How many numbers moments have follows from the query, not from rows.
        if answer is None or release.mechanism == MOMENTS:
            continue
        # Integers of masked sums take eight bytes, all other answers four.
        each = 8 if release.mechanism.startswith(_MASKED) else 4
        k = k or max(1, len(answer) // each // release.rows)
        if len(answer) != each * k * release.rows:
            held = len(answer) / each / k
            words = f"{entry.query_id} was charged for {release.rows:,} rows"
            return Check("ledger", False, f"{words}, its answer holds {held:g}")
    return Check("ledger", True, f"{charged:,} rows in {len(reserved)} queries, each charged once")


def check_replay(
    answer: Callable[[QueryBatch], Answer], ledger: Ledger, query: QueryBatch
) -> Check:
    """Whether the same query, asked twice, gets the same answer at no new charge.

    Noise that is drawn again would average out: two answers at the price of one.

    Args:
        answer: of the holder.
        ledger: that it books in.
        query: any that it answers; its first answer is charged.
    """
    first = answer(query).values
    booked = len(ledger.releases())
    second = answer(query).values
    if not bool((first == second).all()):
        return Check("replay", False, f"{query.id} was answered twice, with fresh noise")
    if len(ledger.releases()) != booked:
        return Check("replay", False, f"{query.id} was charged twice for one answer")
    return Check("replay", True, "a query asked twice gets its stored answer, free of charge")


def check_shards(
    parts: Sequence[Sequence[str]], ids: Sequence[str], shards: int, key: bytes
) -> Check:
    """Whether every record reached the one teacher that its id and the key say, and no other.

    Args:
        parts: ids that each teacher was trained on.
        ids: of all records; equal ones stay together.
        shards: how many teachers there are.
        key: the manifest's.
    """
    if len(parts) != shards:
        return Check("shards", False, f"there are {len(parts)} parts for {shards} teachers")
    wanted = dict(zip(ids, assign_shards(ids, shards, key).tolist(), strict=True))
    seen = Counter(record for part in parts for record in set(part))
    several = sum(1 for count in seen.values() if count > 1)
    if several:
        return Check("shards", False, f"{several} records reached more than one teacher")
    strangers = sum(
        1 for shard, part in enumerate(parts) for record in part if wanted.get(record) != shard
    )
    if strangers:
        return Check("shards", False, f"{strangers} records reached another teacher than their own")
    missing = len(set(ids) - set(seen))
    said = f"{len(seen):,} records, each with one of {shards:,} teachers"
    return Check("shards", True, said + (f"; {missing} with none" if missing else ""))


def check_teachers(folder: Path, records: ImageSet, stated: int) -> Check:
    """Whether a folder of teachers fits its manifest, the records and what the run states.

    Args:
        folder: teacher folder of a holder.
        records: its private records.
        stated: teachers that the guarantee counts on.
    """
    manifest = load_manifest(folder)
    if manifest.shards != stated:
        words = f"the guarantee counts on {stated:,} teachers, there are {manifest.shards:,}"
        return Check("teachers", False, words)
    if manifest.data_id != records.data_id:
        return Check("teachers", None, f"they belong to {manifest.data_id!r}")
    own = assign_shards(records.ids, manifest.shards, bytes.fromhex(manifest.key))
    expected = set(own.tolist())
    there = {shard for shard in range(manifest.shards) if shard_file(folder, shard).exists()}
    if there != expected:
        words = f"{len(there ^ expected)} shards have a teacher and no record, or the other way"
        return Check("teachers", False, words)
    words = f"{stated:,} teachers on disjoint records, as the manifest's key assigns them"
    return Check("teachers", True, words)


def check_batches(
    batches: Iterable[Tensor], records: int, probability: float, confidence: float = 0.999
) -> Check:
    """Whether batches look as if every record had tossed its own coin for every step.

    Three statistics that shuffled batches cannot imitate: how batch sizes vary, how often records
    were in, and how much batches overlap with the next. Each is compared with its mean and exact
    variance; the error is split over the three.

    Args:
        batches: indices of each step, int64 [|I|]; secret in a real run.
        records: n.
        probability: q.
        confidence: 1 − how often true Poisson batches are refused.
    """
    expect_confidence(confidence)
    drawn = np.stack([np.bincount(batch.numpy(), minlength=records) for batch in batches])
    if (drawn > 1).any():
        return Check("batches", False, "a record was in one batch twice")
    q, steps = probability, len(drawn)
    lines = {
        "batch sizes": _dispersion(drawn.sum(1), records, q),
        "inclusions of a record": _dispersion(drawn.sum(0), steps, q),
        "overlap with the next batch": _overlap(drawn, q),
    }
    allowed = float(stats.norm.isf((1 - confidence) / 3 / 2))
    wrong = {name: z for name, z in lines.items() if abs(z) > allowed}
    if not wrong:
        return Check("batches", True, f"{steps:,} batches vary as Poisson batches do")
    told = ", ".join(
        f"{name} {'vary' if name != 'overlap with the next batch' else 'is'} "
        f"{abs(z):.3g} standard errors too {'much' if z > 0 else 'little'}"
        for name, z in wrong.items()
    )
    return Check("batches", False, f"these are no Poisson batches: {told}")


def _dispersion(counts: NDArray[np.intp], coins: int, q: float) -> float:
    """How far squared distances from the mean of Binomial(coins, q) are from theirs, in errors."""
    variance = coins * q * (1 - q)
    squares = ((counts - coins * q) ** 2 / variance).sum()
    each = 2 + (1 - 6 * q * (1 - q)) / variance
    return float((squares - len(counts)) / math.sqrt(len(counts) * each))


def _overlap(drawn: NDArray[np.intp], q: float) -> float:
    """Likewise for the records that two batches in a row share."""
    pairs, n = len(drawn) - 1, drawn.shape[1]
    shared = float((drawn[1:] & drawn[:-1]).sum())
    variance = n * (pairs * (q**2 - q**4) + 2 * (pairs - 1) * (q**3 - q**4))
    return (shared - pairs * n * q**2) / math.sqrt(variance)
