"""A release finds from events alone what its run was counted by."""

import json

import pytest
from pydantic import ValidationError

from fedtranscribe.privacy.accountant import epsilon, sound_table
from fedtranscribe.privacy.release_plan import MechanismRelease, NoisePlan
from fedtranscribe.privacy.units import Adjacency, NoiseMode, Unit
from fedtranscribe.questions.capabilities import Capabilities
from fedtranscribe.questions.question import Kind
from fedtranscribe.releases.recomputed import by_adjacency, by_holder, by_unit, recompute
from fedtranscribe.releases.statement import HolderRelease, ReleaseRecord
from fedtranscribe.rounds.plan import Part

DELTA = 1e-5


def event(holder: str, release: MechanismRelease) -> HolderRelease:
    record = ReleaseRecord.model_validate_json(json.dumps(release.to_json()))
    return HolderRelease(holder=holder, release=record)


def release(kind: Kind, shards: int, rows: int, positional: bool = False) -> MechanismRelease:
    strength = 0.1 if kind is Kind.LABEL else 2.0
    plan = NoisePlan(NoiseMode.LOCAL, strength, 3)
    part = Part(kind, rows, plan, 4, classes=2 if kind in (Kind.MOMENTS, Kind.DESCENT) else None)
    return part.release(capabilities(shards, positional), rows)


def capabilities(shards: int, positional: bool) -> Capabilities:
    return Capabilities(
        name="a",
        classes=4,
        channels=1,
        size=8,
        shards=shards,
        positional_ids=positional,
        kinds=tuple(Kind),
        noise=NoiseMode.LOCAL,
        rows_per_message=10,
        rows_per_run=10,
    )


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("shards", [1, 5])
def test_one_holder_in_many_queries_costs_what_the_accountant_says(kind, shards):
    given = by_holder(event("a", release(kind, shards, rows)) for rows in (100, 100, 50))
    whole = [release(kind, shards, 250)]
    assert by_adjacency(given, Unit.RECORD, DELTA) == pytest.approx(
        sound_table(whole, Unit.RECORD, DELTA)
    )


def test_of_several_holders_the_worst_counts():
    few, many = release(Kind.VOTE, 2, 50), release(Kind.VOTE, 2, 200)
    given = by_holder([event("a", few), event("b", many)])
    found = recompute(given, Unit.HOLDER, Adjacency.ZERO_OUT, DELTA)
    assert found is not None
    cost = many.event(Unit.HOLDER, Adjacency.ZERO_OUT)
    assert found.epsilon == pytest.approx(epsilon([cost], DELTA))
    assert by_unit(given, Adjacency.ZERO_OUT, DELTA)[Unit.HOLDER] == found.epsilon


def test_where_one_holder_has_no_guarantee_there_is_none():
    lasting = release(Kind.VOTE, 2, 50)
    given = by_holder([event("a", lasting), event("b", release(Kind.VOTE, 2, 50, positional=True))])
    assert set(by_adjacency(given, Unit.RECORD, DELTA)) == {Adjacency.ZERO_OUT, Adjacency.REPLACE}
    alone = by_holder([event("a", lasting)])
    assert set(by_adjacency(alone, Unit.RECORD, DELTA)) == set(Adjacency)


def test_nothing_given_is_no_guarantee():
    assert recompute({}, Unit.RECORD, Adjacency.ZERO_OUT, DELTA) is None


def test_an_event_of_no_known_kind_is_refused():
    costs = {Unit.RECORD: {Adjacency.ZERO_OUT: {"kind": "magic"}}}
    with pytest.raises(ValidationError, match="accounting event of a known kind"):
        ReleaseRecord(mechanism="x", rows=1, costs=costs)
