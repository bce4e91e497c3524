"""What a run claims, and the bookkeeping that its guarantee rests on."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedtranscribe.data import ImageSet, assign_shards
from fedtranscribe.errors import ConfigError, LedgerError, StorageError, UnsupportedAdjacencyError
from fedtranscribe.evaluation.findings import Check, Claim
from fedtranscribe.files import read_json_lines
from fedtranscribe.models.teacher_training import shard_file
from fedtranscribe.models.teachers import load_manifest
from fedtranscribe.privacy.accountant import guarantee
from fedtranscribe.privacy.chain import EntryKind
from fedtranscribe.privacy.events import Event
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import MechanismRelease, PrivacyPlan
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions.descent import GRADIENTS
from fedtranscribe.questions.mixture import ENERGIES, PRODUCTS
from fedtranscribe.questions.moments import MOMENTS
from fedtranscribe.results.result import Result
from fedtranscribe.text import counted

EVENTS = "events.jsonl"
THE_HOLDER = "the holder"

HolderEvents = dict[str, tuple[MechanismRelease, ...]]
"""What each holder gave away."""

# A record that is used or left out comes and goes; where that has no guarantee, replacing it has.
IN_OR_OUT = (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE)
# One of the run's own records might as well have been another one.
EXCHANGED = (Adjacency.REPLACE,)


def read_events(folder: Path) -> HolderEvents:
    """Everything that a run's holders gave away, by holder; empty where it says nothing."""
    path = folder / EVENTS
    if not path.exists():
        return {}
    holder_events: dict[str, tuple[MechanismRelease, ...]] = {}
    try:
        for entry in read_json_lines(path):
            # A line of a federated run names its holder; one of a local run is the release itself.
            holder, release = entry.get("holder", THE_HOLDER), entry.get("release", entry)
            holder_events[holder] = (
                *holder_events.get(holder, ()),
                MechanismRelease.from_json(release),
            )
    except (OSError, ValueError, TypeError, AttributeError, ConfigError):
        raise StorageError(f"{path} is damaged; it says what the run gave away.") from None
    return holder_events


def epsilon_of(
    releases: Iterable[MechanismRelease], unit: Unit, adjacency: Adjacency, delta: float
) -> float | None:
    """ε of one holder's releases; None where nothing follows from them."""
    try:
        return guarantee(PrivacyPlan(tuple(releases), unit, adjacency, delta)).epsilon
    except UnsupportedAdjacencyError:
        return None


def worst(
    holder_events: HolderEvents, unit: Unit, adjacency: Adjacency, delta: float
) -> float | None:
    """ε of the holder that gave most away; None without events, or where one has no guarantee."""
    found = [epsilon_of(releases, unit, adjacency, delta) for releases in holder_events.values()]
    known = [epsilon for epsilon in found if epsilon is not None]
    return max(known) if known and len(known) == len(found) else None


def claim_of(
    result: Result, holder_events: HolderEvents, adjacencies: Sequence[Adjacency] = IN_OR_OUT
) -> Claim:
    """What an attack on single records is held against.

    Args:
        result: of the run.
        holder_events: what `events.jsonl` holds.
        adjacencies: the change that the attack is about, or the next best; the first with a
            guarantee counts. Where ids are positional, a record that comes or goes has none.
    """
    delta = result.guarantee.delta
    if not result.guarantee.private:
        return Claim(None, delta)
    for adjacency in adjacencies:
        epsilon = worst(holder_events, Unit.RECORD, adjacency, delta)
        if epsilon is not None:
            return Claim(epsilon, delta, Unit.RECORD, adjacency)
    return Claim(None, delta)


def event_lists(holder_events: HolderEvents, adjacency: Adjacency) -> tuple[tuple[Event, ...], ...]:
    """Every distinct list of record-level events that a holder gave away; empty if one has none."""
    try:
        lists = [
            tuple(release.event(Unit.RECORD, adjacency) for release in releases)
            for releases in holder_events.values()
        ]
    except UnsupportedAdjacencyError:
        return ()
    return tuple(dict.fromkeys(lists))


def most_exposed(holder_events: HolderEvents, adjacency: Adjacency, delta: float) -> str | None:
    """The holder whose records a run costs the most; None without any events."""

    costs: dict[Any, float] = {}

    def cost(releases: tuple[MechanismRelease, ...]) -> float:
        # Most holders of a run gave away the same.
        events = tuple(release.costs.get(Unit.RECORD, {}).get(adjacency) for release in releases)
        if events not in costs:
            epsilon = epsilon_of(releases, Unit.RECORD, adjacency, delta)
            costs[events] = math.inf if epsilon is None else epsilon
        return costs[events]

    return max(holder_events, key=lambda holder: cost(holder_events[holder]), default=None)


_AGREEMENT = 1e-6
_MASKED = "secagg-"


def check_events(result: Result, holder_events: HolderEvents) -> Check:
    """Whether a run's events cost what its result says, and cover the rows that it learned from.

    Args:
        result: of the run.
        holder_events: what `events.jsonl` holds.
    """
    guarantee, asked = result.guarantee, result.rows
    stated = guarantee.epsilon
    if not holder_events:
        stated_events = (
            "the run states no ε and no events" if stated is None else "no events, yet an ε"
        )
        return Check("events", None if stated is None else False, stated_events)
    found = worst(holder_events, guarantee.unit, guarantee.adjacency, guarantee.delta)
    if found is None or stated is None:
        agree = found is stated
    else:
        agree = math.isclose(found, stated, rel_tol=_AGREEMENT)
    if not agree:
        return Check("events", False, f"the events cost ε = {found}, the result says {stated}")
    for holder, releases in holder_events.items():
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
    ledger: Ledger,
    run: str,
    rows: int,
    holder_events: HolderEvents | None = None,
    k: int | None = None,
) -> Check:
    """Whether a run was charged for every row that it was answered, once.

    Args:
        ledger: of the data; the whole of it is proved first.
        run: the run's id.
        rows: that the run says it asked.
        holder_events: what the run says it gave away, which has to cost what the ledger booked;
            None does not compare.
        k: classes per row; None takes that of the first answer.
    """
    try:
        ledger.verify()
    except LedgerError as error:
        return Check("ledger", False, str(error))
    mine = [entry for entry in ledger.entries() if entry.run == run]
    reserved = [entry for entry in mine if entry.kind == EntryKind.RESERVE]
    charged = sum(release.rows for release in ledger.releases(run))
    if charged != rows:
        return Check(
            "ledger",
            False,
            f"it was charged for {counted(charged, 'row')}, the run says {rows:,}"
            + (": rows were answered twice, or by somebody else" if charged > rows else ""),
        )
    if holder_events is not None and not _cost_alike(ledger.releases(run), holder_events):
        return Check("ledger", False, "it was charged another cost than the run's events say")
    twice = [h for h, n in Counter(entry.query_hash for entry in reserved).items() if n > 1]
    if twice:
        return Check("ledger", False, f"{len(twice)} queries were booked under two ids")
    for entry, release in zip(reserved, ledger.releases(run), strict=True):
        answer = ledger.answer(entry.query_id)
        # How many numbers sums have follows from the query, not from rows.
        if answer is None or release.mechanism.endswith((MOMENTS, GRADIENTS, PRODUCTS, ENERGIES)):
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


def _cost_alike(booked: Sequence[MechanismRelease], holder_events: HolderEvents) -> bool:
    """Whether both cost the same under every unit and adjacency that both have."""
    stated_events = [release for releases in holder_events.values() for release in releases]
    for unit in Unit:
        for adjacency in Adjacency:
            found = [_rho(releases, unit, adjacency) for releases in (booked, stated_events)]
            if not math.isclose(*found, rel_tol=_AGREEMENT):
                return False
    return True


def _rho(releases: Sequence[MechanismRelease], unit: Unit, adjacency: Adjacency) -> float:
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
