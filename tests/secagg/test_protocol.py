"""The protocol against drop-outs, a server that cheats, and holders that tell it everything."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtranscribe.errors import ProtocolError, QuorumError
from fedtranscribe.secagg import relay, survivors, unmask
from fedtranscribe.secagg.masks import keystream, pair_seed, signed_keystream
from fedtranscribe.secagg.shares import SHARE_BYTES, combine
from tests.secagg.cohorts import (
    Played,
    cohort_of,
    holders_of,
    random_values,
    task_of,
)


def sum_of(played: Played, names) -> np.ndarray:
    total = np.zeros_like(next(iter(played.values.values())))
    for name in names:
        total += played.values[name]
    return total


def playing(
    m: int, dropouts: int, gone=None, *, query: str = "q1", holders=None, word: int = 32, seed=0
) -> Played:
    holders = holders or holders_of(cohort_of(m, dropouts))
    values = random_values(holders, word=word, seed=seed)
    return Played(holders, task_of(query, word=word), values, gone or {})


# ---------------------------------------------------------------- sums and drop-outs


@pytest.mark.parametrize("word", [32, 64])
@pytest.mark.parametrize("m", range(2, 9))
def test_sums_decode_exactly(m, word):
    played = playing(m, 0, word=word)
    assert (played.play() == sum_of(played, played.holders)).all()


@pytest.mark.parametrize("stage", [1, 2, 3, 4])
@pytest.mark.parametrize("m", range(3, 9))
def test_as_many_drop_outs_as_tolerated_are_recovered_at_every_stage(m, stage):
    t = (m - 1) // 2
    gone = set(list(holders_of(cohort_of(m, t)))[:t])
    played = playing(m, t, {stage: gone})
    total = played.play()
    counted = [n for n in played.holders if stage >= 3 or n not in gone]
    assert played.signed == tuple(counted)
    assert (total == sum_of(played, counted)).all()


def test_holders_that_never_advertised_count_as_drop_outs():
    played = playing(5, 2, {2: {"clinic-0"}}, holders=holders_of(cohort_of(5, 2), ("clinic-4",)))
    assert (played.play() == sum_of(played, ["clinic-1", "clinic-2", "clinic-3"])).all()


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_pattern_of_tolerated_drop_outs_is_recovered(data):
    m = data.draw(st.integers(3, 7))
    t = (m - 1) // 2
    silent = data.draw(st.lists(st.integers(0, m - 1), max_size=t, unique=True))
    gone: dict[int, set[str]] = {}
    for number in silent:
        gone.setdefault(data.draw(st.integers(1, 4)), set()).add(f"clinic-{number}")
    played = playing(m, t, gone, seed=m)
    early = gone.get(1, set()) | gone.get(2, set())
    assert (played.play() == sum_of(played, set(played.holders) - early)).all()


@pytest.mark.parametrize("m", [3, 5, 8])
@pytest.mark.parametrize("stage", [1, 2, 3, 4])
def test_one_drop_out_more_gives_the_round_up_and_opens_nothing(m, stage):
    t = (m - 1) // 2
    gone = set(list(holders_of(cohort_of(m, t)))[: t + 1])
    played = playing(m, t, {stage: gone})
    with pytest.raises((QuorumError, ProtocolError)):
        played.play()
    if stage == 4:
        with pytest.raises(QuorumError, match="revealed"):
            played.total()
        # One share too few of every seed: none of them comes out of what was said.
        assert len(played.revealed) == played.cohort.quorum - 1
        assert not opened_seeds(played, [played.revealed])
    else:
        assert not played.revealed


def test_holders_themselves_refuse_what_is_too_few_for_them():
    played = playing(5, 1)
    played.share()
    name = "clinic-0"
    holder, inbox, values = played.holders[name], played.inboxes[name], played.values[name]
    three = dict(list(inbox.items())[:2])
    with pytest.raises(ProtocolError, match="Nothing is revealed"):
        holder.mask(played.rounds[name], three, values)
    played.mask()
    state = played.rounds[name]
    with pytest.raises(ProtocolError, match="Nothing is revealed"):
        holder.sign(state, list(played.signed)[:3])
    played.sign()
    with pytest.raises(ProtocolError, match="Nothing is revealed"):
        holder.reveal(played.rounds[name], dict(list(played.signatures.items())[:3]))


# ---------------------------------------------------------------- a server that cheats


def opened_seeds(played: Played, said: list[dict[str, bytes]]) -> set[bytes]:
    """Seeds that any quorum of anybody's shares in these messages opens."""
    cohort, found = played.cohort, set()
    columns: dict[tuple[int, int], dict[str, bytes]] = {}
    for number, revealed in enumerate(said):
        for name, told in revealed.items():
            for i in range(0, len(told), SHARE_BYTES):
                columns.setdefault((number, i), {})[name] = told[i : i + SHARE_BYTES]
    for shares in columns.values():
        for size in (len(shares), cohort.quorum):
            for some in itertools.islice(itertools.combinations(shares, size), 20):
                try:
                    found |= set(combine({cohort.members.point(n): [shares[n]] for n in some}))
                except ProtocolError:
                    continue
    return found


def test_only_one_set_of_survivors_is_signed_per_round():
    played = playing(5, 1)
    played.share()
    played.mask()
    first, second = played.signed, played.signed[1:]
    holder = played.holders["clinic-2"]
    state = holder.sign(played.rounds["clinic-2"], first)
    with pytest.raises(ProtocolError, match="there is no other"):
        holder.sign(state, second)
    assert holder.sign(state, first) is state
    # A set under which a holder did not put its name opens nothing of it, signed or not.
    others = {
        n: played.holders[n].sign(played.rounds[n], second).signature or b""
        for n in second
        if n != "clinic-2"
    }
    with pytest.raises(ProtocolError, match="Nothing is revealed"):
        holder.reveal(state, others)


def test_two_sets_cannot_both_find_enough_signatures():
    # The server asks each honest holder for the set that suits it, colluders sign both.
    for m, dropouts, colluders in ((5, 2, 0), (5, 1, 2), (7, 2, 2), (8, 3, 1)):
        cohort = cohort_of(m, dropouts, colluders)
        honest = m - colluders
        for for_first in range(honest + 1):
            both = min(for_first, honest - for_first) + colluders
            assert both < cohort.quorum


def test_a_set_is_signed_only_with_oneself_and_with_those_one_masked_against():
    played = playing(5, 1, {1: {"clinic-4"}})
    played.share()
    played.mask()
    holder, state = played.holders["clinic-0"], played.rounds["clinic-0"]
    for bad in (played.signed[1:], [*played.signed, "clinic-4"], ["clinic-0", "nobody"]):
        with pytest.raises(ProtocolError):
            holder.sign(state, bad)
    whole = playing(5, 1)
    whole.share()
    whole.mask()
    with pytest.raises(ProtocolError, match="leaves this holder out"):
        whole.holders["clinic-0"].sign(whole.rounds["clinic-0"], whole.signed[1:])
    with pytest.raises(ProtocolError, match="not masked yet"):
        holder.sign(holder.open(task_of("q2")), played.signed)
    with pytest.raises(ProtocolError, match="signed yet"):
        holder.reveal(state, {})


def test_signatures_of_another_round_run_set_or_holder_do_not_count():
    holders = holders_of(cohort_of(4, 1))
    played, later = playing(4, 1, holders=holders), playing(4, 1, query="q2", holders=holders)
    for each in (played, later):
        each.share()
        each.mask()
        each.sign()
    holder, state = holders["clinic-0"], played.rounds["clinic-0"]
    own = played.signatures["clinic-0"]
    swapped = dict(zip(played.signatures, reversed(played.signatures.values()), strict=True))
    for bad in (later.signatures, {"clinic-0": own}, swapped, dict.fromkeys(holders, own), {}):
        with pytest.raises(ProtocolError, match="signed this set"):
            holder.reveal(state, bad)
    # Bad ones beside enough good ones do no harm.
    assert holder.reveal(state, {**played.signatures, "clinic-3": b"", "nobody": own})


def test_telling_holders_different_senders_opens_nothing():
    # The server hides a different sender from two of five holders: no four sign one statement.
    played = playing(5, 1)
    played.share()
    for name, hidden in (("clinic-0", "clinic-1"), ("clinic-2", "clinic-3")):
        del played.inboxes[name][hidden]
    played.mask()
    for name in ("clinic-0", "clinic-2"):
        with pytest.raises(ProtocolError, match="who sent no shares"):
            played.holders[name].sign(played.rounds[name], played.signed)
        played.gone.setdefault(3, set()).add(name)
    played.sign()
    for name in played.signatures:
        with pytest.raises(ProtocolError, match="Nothing is revealed"):
            played.holders[name].reveal(played.rounds[name], played.signatures)


def test_a_signature_counts_only_for_those_who_were_told_the_same_senders():
    # Three sign one set of survivors, but clinic 1 masked against 4 where the others did against 3.
    played = playing(5, 2)
    played.share()
    for name, hidden in (
        ("clinic-0", "clinic-4"),
        ("clinic-1", "clinic-3"),
        ("clinic-2", "clinic-4"),
    ):
        del played.inboxes[name][hidden]
    played.mask()
    played.signed = played.signed[:3]
    played.sign()
    assert len(played.signatures) == played.cohort.quorum
    for name in played.signed:
        with pytest.raises(ProtocolError, match="signed this set"):
            played.holders[name].reveal(played.rounds[name], played.signatures)


def test_those_who_were_told_the_same_need_no_other():
    played = playing(5, 2)
    played.share()
    del played.inboxes["clinic-0"]["clinic-4"]
    played.mask()
    played.signed = played.signed[:4]
    played.sign()
    with pytest.raises(ProtocolError, match="signed this set"):
        played.holders["clinic-0"].reveal(played.rounds["clinic-0"], played.signatures)
    for name in played.signed[1:]:
        assert played.holders[name].reveal(played.rounds[name], played.signatures)


def sums_opened(m: int, d: int, c: int, seen, everyone, chosen) -> set[frozenset[int]]:
    """Which sets of honest vectors a server can add up to something without a mask.

    Args:
        m, d, c: the cohort; the last c holders collude.
        seen: per honest holder, the set that the server had it mask against, itself included.
        everyone, chosen: U1 and U2 of the statement that the server has signed.
    """
    honest = range(m - c)
    signers = [h for h in chosen if h >= m - c or seen[h] == everyone]
    if len(chosen) < m - d or not chosen <= everyone or len(signers) < m - d:
        return set()
    gone = everyone - chosen
    inside = [h for h in honest if h in chosen]
    hidden = {h: {p for p in seen[h] if p < m - c and p != h and p not in gone} for h in inside}
    return {
        frozenset(some)
        for size in range(1, len(inside) + 1)
        for some in itertools.combinations(inside, size)
        if all(p in some and h in hidden[p] for h in some for p in hidden[h])
    }


def views(m: int, d: int, holder: int) -> list[frozenset[int]]:
    rest = [p for p in range(m) if p != holder]
    return [
        frozenset({holder, *some})
        for size in range(m - d - 1, m)
        for some in itertools.combinations(rest, size)
    ]


@pytest.mark.parametrize(("m", "d", "c"), [(3, 1, 0), (4, 1, 0), (4, 1, 1), (5, 1, 2), (3, 0, 2)])
def test_whatever_holders_are_told_only_the_sum_of_all_honest_survivors_opens(m, d, c):
    # Point 4 of the guarantee, over all lies about who sent shares and all signed statements.
    sets = [frozenset(s) for n in range(m - d, m + 1) for s in itertools.combinations(range(m), n)]
    opened = 0
    for told in itertools.product(*(views(m, d, h) for h in range(m - c))):
        for everyone, chosen in itertools.product(sets, sets):
            for some in sums_opened(m, d, c, told, everyone, chosen):
                assert some == {h for h in chosen if h < m - c}
                assert len(some) >= m - d - c
                opened += 1
    assert opened


def test_that_game_finds_the_hole_that_a_smaller_cohort_would_have():
    # m = 2d + c, which `Cohort` refuses: holder 2 masked against 3 only, 3 is declared gone.
    whole = frozenset(range(4))
    told = [whole, whole, frozenset({2, 3}), whole]
    assert sums_opened(4, 2, 0, told, whole, frozenset({0, 1, 2})) == {frozenset({2})}


def test_shares_cannot_be_moved_between_holders_rounds_or_runs():
    holders = holders_of(cohort_of(3, 1))
    played, later = playing(3, 1, holders=holders), playing(3, 1, query="q2", holders=holders)
    other_run = playing(3, 1, holders=holders_of(cohort_of(3, 1, run="run-2")))
    for each in (played, later, other_run):
        each.share()
    name = "clinic-0"
    inbox = played.inboxes[name]
    first = inbox["clinic-1"]
    for bad in (
        {**inbox, "clinic-1": later.inboxes[name]["clinic-1"]},
        {**inbox, "clinic-1": other_run.inboxes[name]["clinic-1"]},
        {**inbox, "clinic-1": inbox["clinic-2"]},
        {**inbox, "clinic-1": played.inboxes["clinic-2"]["clinic-1"]},
        {**inbox, "clinic-1": played.rounds[name].sent["clinic-1"]},
        {**inbox, "clinic-1": first[:-1]},
        {**inbox, "clinic-0": first},
        {**inbox, "nobody": first},
    ):
        with pytest.raises(ProtocolError):
            holders[name].mask(played.rounds[name], bad, played.values[name])


def test_a_key_replaced_for_one_receiver_only_stops_the_round():
    # Both keys are properly signed: the holder lost its state and made another key in this run.
    cohort = cohort_of(3, 0)
    first, second = holders_of(cohort), holders_of(cohort)
    mixed = replace(
        first["clinic-0"],
        book=replace(
            first["clinic-0"].book,
            keys={
                **first["clinic-0"].book.keys,
                "clinic-1": second["clinic-0"].book.keys["clinic-1"],
            },
        ),
    )
    played = playing(3, 0, holders={**first, "clinic-0": mixed})
    played.share()
    with pytest.raises(ProtocolError, match="do not open"):
        played.mask()


# ---------------------------------------------------------------- what stays hidden


def opens(vector: bytes, value: np.ndarray, name: str, seeds: set[bytes]) -> bool:
    """Whether some choice of known seeds, each added, subtracted or left out, unmasks a vector."""
    kind = value.dtype
    word = 8 * kind.itemsize
    streams = [keystream(seed, len(value), word) for seed in sorted(seeds)]
    masked = np.frombuffer(vector, dtype=kind)
    for signs in itertools.product((-1, 0, 1), repeat=len(streams)):
        tried = masked.copy()
        for sign, stream in zip(signs, streams, strict=True):
            tried = tried + stream if sign == 1 else tried - stream if sign == -1 else tried
        if (tried == value).all():
            return True
    return False


def test_declaring_a_holder_dropped_opens_nothing_of_the_round_before():
    holders = holders_of(cohort_of(3, 1))
    before, after = playing(3, 1, holders=holders), playing(3, 1, query="q2", holders=holders)
    before.play()
    # The holder answers, but the server says that it did not.
    after.share()
    after.mask()
    late = after.vectors.pop("clinic-2")
    after.signed = survivors(after.cohort.members, after.task, after.vectors)
    after.sign()
    after.reveal()
    assert (after.total() == sum_of(after, ["clinic-0", "clinic-1"])).all()
    seeds = opened_seeds(after, [after.revealed])
    assert len(seeds) == 4
    both = seeds | opened_seeds(before, [before.revealed])
    for name in holders:
        assert not opens(before.vectors[name], before.values[name], name, both)
    # The late answer itself stays masked too.
    assert not opens(late, after.values["clinic-2"], "clinic-2", both)


def test_a_survivors_vector_stays_masked_by_the_other_survivors():
    played = playing(3, 1, {2: {"clinic-2"}})
    played.play()
    seeds = opened_seeds(played, [played.revealed])
    for name in played.signed:
        assert not opens(played.vectors[name], played.values[name], name, seeds)
        # The game is not idle: with its own seeds it opens.
        state, holder = played.rounds[name], played.holders[name]
        own = {state.seed} | pair_seeds(holder, state)
        assert opens(played.vectors[name], played.values[name], name, own)


def pair_seeds(holder, state) -> set[bytes]:
    return {pair_seed(holder.book, other, state.digest) for other in state.senders}


def test_a_server_with_colluders_learns_the_sum_of_the_others_and_no_vector():
    played = playing(5, 1, {2: {"clinic-4"}}, holders=holders_of(cohort_of(5, 1, 2)))
    total = played.play()
    colluders, honest = ("clinic-0", "clinic-1"), ("clinic-2", "clinic-3")
    assert (total - sum_of(played, colluders) == sum_of(played, honest)).all()
    known = opened_seeds(played, [played.revealed])
    for name in colluders:
        state = played.rounds[name]
        known |= {state.seed} | pair_seeds(played.holders[name], state)
    # Of five masks on each honest vector one is left: the one that the two have in common.
    for name, other in (honest, honest[::-1]):
        state, book = played.rounds[name], played.holders[name].book
        left = np.frombuffer(played.vectors[name], dtype="<u4") - keystream(state.seed, 40, 32)
        unknown = []
        for sender in state.senders:
            seed = pair_seed(book, sender, state.digest)
            if seed in known:
                left = left - signed_keystream(seed, 40, 32, name, sender)
            else:
                unknown.append((sender, seed))
        assert state.seed in known
        assert [sender for sender, _ in unknown] == [other]
        mask = signed_keystream(unknown[0][1], 40, 32, name, other)
        assert (left - played.values[name] == mask).all()


def test_wrong_shares_or_sizes_are_noticed_instead_of_giving_a_wrong_sum():
    played = playing(4, 1)
    played.play()
    told = dict(played.revealed)
    told["clinic-0"] = told["clinic-1"]
    with pytest.raises(ProtocolError, match="do not fit"):
        unmask(
            played.cohort.members, played.task, played.inboxes, played.signed, played.vectors, told
        )
    # A holder that says too little counts as silent.
    short = {**played.revealed, "clinic-0": played.revealed["clinic-0"][:-1]}
    total = unmask(
        played.cohort.members, played.task, played.inboxes, played.signed, played.vectors, short
    )
    assert (total == sum_of(played, played.signed)).all()
    with pytest.raises(QuorumError):
        unmask(
            played.cohort.members,
            played.task,
            played.inboxes,
            played.signed,
            played.vectors,
            {**short, "clinic-1": b""},
        )
    vectors = {**played.vectors, "clinic-2": b"short"}
    assert "clinic-2" not in survivors(played.cohort.members, played.task, vectors)


def test_the_server_notices_shares_that_leave_a_holder_out():
    played = playing(3, 0)
    played.share()
    sent = {name: dict(state.sent) for name, state in played.rounds.items()}
    del sent["clinic-0"]["clinic-1"]
    with pytest.raises(ProtocolError, match="clinic-1"):
        relay(played.cohort.members, sent)
