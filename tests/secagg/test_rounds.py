import json

import numpy as np
import pytest

from fedtranscribe.errors import ConfigError, ProtocolError
from fedtranscribe.noise.secagg import MaskingHolder, Round, Task
from tests.secagg.cohorts import (
    Played,
    cohort_of,
    holders_of,
    node_key,
    random_values,
    run_keys,
    task_of,
)


def played_until(stage: int) -> Played:
    holders = holders_of(cohort_of(4, 1))
    played = Played(holders, task_of(), random_values(holders))
    for step in (played.share, played.mask, played.sign)[:stage]:
        step()
    return played


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_stored_round_comes_back_equal(stage):
    state = played_until(stage).rounds["clinic-1"]
    assert Round.from_bytes(state.to_bytes()) == state


def test_a_restarted_service_says_the_same_byte_for_byte():
    # The whole run again from what was stored: the run's key, the adverts, each round's bytes.
    cohort = cohort_of(4, 1)
    keys = run_keys(cohort)
    adverts = [key.advert for key in keys.values()]
    holders = {
        n: MaskingHolder(k.agree(adverts), node_key(i)) for i, (n, k) in enumerate(keys.items())
    }
    played = Played(holders, task_of(), random_values(holders), {2: {"clinic-3"}})
    played.play()
    name = "clinic-1"
    again = MaskingHolder(keys[name].agree(reversed(adverts)), node_key(1))
    stored = played.rounds[name].to_bytes()
    state = again.resume(stored, played.task)
    assert state.sent == played.rounds[name].sent
    state = again.mask(state, played.inboxes[name], played.values[name])
    assert state.masked == played.vectors[name]
    assert again.tags(state) == played.told_tags[name]
    state = again.sign(state, played.signed, played.tags_for(name))
    assert state.signature == played.signatures[name]
    assert again.reveal(state, played.signatures) == played.revealed[name]
    assert state.to_bytes() == stored


def test_a_round_is_never_masked_twice_in_two_ways():
    played = played_until(2)
    holder, state = played.holders["clinic-0"], played.rounds["clinic-0"]
    inbox = played.inboxes["clinic-0"]
    fewer = {name: sealed for name, sealed in inbox.items() if name != "clinic-3"}
    for other_inbox, values in (
        (fewer, played.values["clinic-0"]),
        (inbox, played.values["clinic-1"]),
    ):
        with pytest.raises(ProtocolError, match="as it was, or never"):
            holder.mask(state, other_inbox, values)
    assert holder.mask(state, inbox, played.values["clinic-0"]) is state


@pytest.mark.parametrize(
    "other",
    [cohort_of(4, 1, run="run-2"), cohort_of(4, 0), cohort_of(3, 1), cohort_of(4, 1, 1)],
)
def test_a_round_stays_with_its_cohort(other):
    played = played_until(2)
    stored = played.rounds["clinic-0"].to_bytes()
    elsewhere = holders_of(other)["clinic-0"]
    with pytest.raises(ProtocolError, match="another content or cohort"):
        elsewhere.resume(stored, played.task)
    state, inbox = played.rounds["clinic-0"], played.inboxes["clinic-0"]
    with pytest.raises(ProtocolError, match="another run or cohort"):
        elsewhere.mask(state, inbox, played.values["clinic-0"])
    with pytest.raises(ProtocolError, match="another run or cohort"):
        elsewhere.sign(state, played.signed, {})
    with pytest.raises(ProtocolError, match="another run or cohort"):
        elsewhere.reveal(state, {})


@pytest.mark.parametrize(
    "changed",
    [
        Task("q1", "bound:q2", 40, 32),
        Task("q2", "bound:q1", 40, 32),
        Task("q1", "bound:q1", 41, 32),
        Task("q1", "bound:q1", 40, 64),
    ],
)
def test_a_round_stays_with_its_content(changed):
    played = played_until(1)
    with pytest.raises(ProtocolError, match="another content"):
        played.holders["clinic-0"].resume(played.rounds["clinic-0"].to_bytes(), changed)


def test_damaged_rounds_are_not_read():
    stored = played_until(2).rounds["clinic-0"].to_bytes()
    values = json.loads(stored)
    without = {name: value for name, value in values.items() if name != "key"}
    for bad in (
        b"",
        stored[: len(stored) // 2],
        b"[]",
        json.dumps(without).encode(),
        json.dumps({**values, "more": 1}).encode(),
        json.dumps({**values, "task": {**values["task"], "word": 31}}).encode(),
        json.dumps({**values, "masked": "né"}).encode(),
    ):
        with pytest.raises(ProtocolError, match="cannot be read"):
            Round.from_bytes(bad)


def test_seeds_do_not_show_in_logs():
    played = played_until(2)
    state = played.rounds["clinic-0"]
    for secret in (state.seed, state.key, state.own_shares, *state.received.values()):
        # All of it: two bytes of a secret may well stand in the digest by chance.
        assert repr(secret)[2:-1] not in repr(state)


def test_two_rounds_of_one_query_would_differ():
    # Why each query id is opened once: its own seed is fresh every time.
    holders = holders_of(cohort_of(3, 0))
    holder = holders["clinic-0"]
    first, second = holder.open(task_of()), holder.open(task_of())
    assert first.seed != second.seed
    assert first.key != second.key
    assert first.sent != second.sent


def test_tasks_out_of_range():
    for bad in (("", "h", 4, 32), ("q", "h", 0, 32), ("q", "h", 4, 31)):
        with pytest.raises(ConfigError):
            Task(*bad)
    played = played_until(1)
    with pytest.raises(ProtocolError, match="40 values"):
        played.holders["clinic-0"].mask(
            played.rounds["clinic-0"], played.inboxes["clinic-0"], np.zeros((2, 20), dtype="<u4")
        )
