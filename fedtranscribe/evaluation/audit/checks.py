"""Bookkeeping that every guarantee rests on: what was booked, and which teachers there are.

An attack cannot find these mistakes on a student; looking can.
"""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedtranscribe.data import ImageSet, assign_shards
from fedtranscribe.errors import LedgerError
from fedtranscribe.evaluation.audit.claims import Given, worst
from fedtranscribe.evaluation.audit.findings import Check
from fedtranscribe.mechanisms import MOMENTS
from fedtranscribe.mechanisms.blocks import PRODUCTS, SQUARES
from fedtranscribe.mechanisms.descent import GRADIENTS
from fedtranscribe.privacy.chain import Kind
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import Release
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.result import Result
from fedtranscribe.teachers import load_manifest
from fedtranscribe.teachers.training import shard_file
from fedtranscribe.text import counted

_AGREEMENT = 1e-6
_MASKED = "secagg-"


def check_events(result: Result, given: Given) -> Check:
    """Whether a run's events cost what its result says, and cover the rows that it learned from.

    Args:
        result: of the run.
        given: what `events.jsonl` holds.
    """
    guarantee, asked = result.guarantee, result.rows
    stated = guarantee.epsilon
    if not given:
        said = "the run states no ε and no events" if stated is None else "no events, yet an ε"
        return Check("events", None if stated is None else False, said)
    found = worst(given, guarantee.unit, guarantee.adjacency, guarantee.delta)
    if found is None or stated is None:
        agree = found is stated
    else:
        agree = math.isclose(found, stated, rel_tol=_AGREEMENT)
    if not agree:
        return Check("events", False, f"the events cost ε = {found}, the result says {stated}")
    for holder, releases in given.items():
        rows = sum(release.rows for release in releases)
        federation = result.federation
        again = 0 if federation is None else federation.abandoned_rows
        words = f"{holder} answered {counted(rows, 'row')} where the run asked {asked:,}"
        # A baseline asks for no rows.
        if asked and rows > asked + again:
            return Check("events", False, f"{words}: some were answered twice")
        # A holder of several may have missed rounds.
        if federation is None and rows < asked:
            return Check("events", False, f"{words}: some are not booked")
    return Check("events", True, f"they cost ε = {found:.6g}, as the result says")


def check_ledger(
    ledger: Ledger, run: str, rows: int, given: Given | None = None, k: int | None = None
) -> Check:
    """Whether a run was charged for every row that it was answered, once.

    Args:
        ledger: of the data; the whole of it is proved first.
        run: the run's id.
        rows: that the run says it asked.
        given: what the run says it gave away, which has to cost what the ledger booked; None does
            not compare.
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
            f"it was charged for {counted(charged, 'row')}, the run says {rows:,}"
            + (": rows were answered twice, or by somebody else" if charged > rows else ""),
        )
    if given is not None and not _cost_alike(ledger.releases(run), given):
        return Check("ledger", False, "it was charged another cost than the run's events say")
    twice = [h for h, n in Counter(entry.query_hash for entry in reserved).items() if n > 1]
    if twice:
        return Check("ledger", False, f"{len(twice)} queries were booked under two ids")
    for entry, release in zip(reserved, ledger.releases(run), strict=True):
        answer = ledger.answer(entry.query_id)
        # How many numbers sums have follows from the query, not from rows.
        if answer is None or release.mechanism.endswith((MOMENTS, GRADIENTS, PRODUCTS, SQUARES)):
            continue
        # Integers of masked sums take eight bytes, all other answers four.
        each = 8 if release.mechanism.startswith(_MASKED) else 4
        k = k or max(1, len(answer) // each // release.rows)
        if len(answer) != each * k * release.rows:
            held = len(answer) / each / k
            words = f"{entry.query_id} was charged for {counted(release.rows, 'row')}"
            return Check("ledger", False, f"{words}, its answer holds {held:g}")
    queries = counted(len(reserved), "query", "queries")
    return Check("ledger", True, f"{counted(charged, 'row')} in {queries}, each charged once")


def _cost_alike(booked: Sequence[Release], given: Given) -> bool:
    """Whether both cost the same under every unit and adjacency that both have."""
    said = [release for releases in given.values() for release in releases]
    for unit in Unit:
        for adjacency in Adjacency:
            found = [_rho(releases, unit, adjacency) for releases in (booked, said)]
            if not math.isclose(*found, rel_tol=_AGREEMENT):
                return False
    return True


def _rho(releases: Sequence[Release], unit: Unit, adjacency: Adjacency) -> float:
    events = [release.costs.get(unit, {}).get(adjacency) for release in releases]
    return math.fsum(event.zcdp_rho for event in events if event is not None)


def check_teachers(folder: Path, records: ImageSet, stated: int) -> Check:
    """Whether a folder of teachers fits its manifest, the records and what the run states.

    Args:
        folder: teacher folder of a holder.
        records: its private records.
        stated: teachers that the guarantee counts on.
    """
    manifest = load_manifest(folder)
    if manifest.shards != stated:
        promised = counted(stated, "teacher")
        words = f"the guarantee counts on {promised}, there are {manifest.shards:,}"
        return Check("teachers", False, words, private=True)
    if manifest.data_id != records.data_id:
        return Check("teachers", None, f"they belong to {manifest.data_id!r}", private=True)
    if manifest.imported is not None:
        by = manifest.imported.declared_by or "nobody"
        words = f"trained elsewhere: {by} declares that they learned from disjoint shards"
        return Check("teachers", None, words, private=True)
    own = assign_shards(records.ids, manifest.shards, bytes.fromhex(manifest.key))
    expected = set(own.tolist())
    there = {shard for shard in range(manifest.shards) if shard_file(folder, shard).exists()}
    if there != expected:
        words = f"{len(there ^ expected)} shards have a teacher and no record, or the other way"
        return Check("teachers", False, words, private=True)
    words = f"{counted(stated, 'teacher')} on disjoint records, as the manifest's key assigns them"
    return Check("teachers", True, words, private=True)
