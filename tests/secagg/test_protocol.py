"""The protocol against drop-outs, a server that cheats, and holders that tell it everything."""

import itertools
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtranscribe.errors import ProtocolError, QuorumError
from fedtranscribe.noise.mask_graph import Graph
from fedtranscribe.noise.masks import SHARE_BYTES, RoundKey, combine, keystream, signed_keystream
from tests.secagg.cohorts import (
    Played,
    cohort_of,
    holders_of,
    random_values,
    run_of,
    task_of,
    toy_graph,
)

SPARSE = Graph(7, 6, 1, 64.0)
"""Of eleven holders, of whom any two may be missing: a toy, and not as safe as it says."""


@pytest.fixture(params=["complete", "sparse"])
def cohort(request):
    """Of which any two may be missing."""
    if request.param == "complete":
        yield cohort_of(7, 2, 1)
    else:
        with toy_graph(SPARSE):
            yield cohort_of(11, 3, 1)


def played_by(cohort, gone=None, **told) -> Played:
    return playing(0, 0, gone, holders=holders_of(cohort), **told)


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


@pytest.mark.parametrize("stage", [1, 2, 3, 4])
@pytest.mark.parametrize("gone", [(), ("clinic-1",), ("clinic-0", "clinic-4")])
def test_over_any_graph_the_sum_is_that_of_the_survivors(cohort, stage, gone):
    played = played_by(cohort, {stage: set(gone)}, word=64)
    total = played.play()
    counted = [n for n in played.holders if stage >= 3 or n not in gone]
    assert played.signed == tuple(sorted(counted))
    assert (total == sum_of(played, counted)).all()


@pytest.mark.parametrize("stage", [1, 2])
def test_over_any_graph_four_missing_end_the_round(cohort, stage):
    played = played_by(cohort, {stage: {f"clinic-{i}" for i in range(4)}})
    with pytest.raises((QuorumError, ProtocolError)):
        played.play()
    assert not played.revealed


def test_over_any_graph_those_without_keys_are_missing(cohort):
    holders = holders_of(cohort, ("clinic-0", "clinic-3"))
    played = playing(0, 0, holders=holders)
    assert (played.play() == sum_of(played, holders)).all()


def test_over_any_graph_a_holder_reveals_one_share_of_each_owner(cohort):
    played = played_by(cohort, {2: {"clinic-1"}})
    played.play()
    for name, told in played.revealed.items():
        owners = {o for o, h in played.holders.items() if name in (o, *h.book.drawn)}
        assert set(told) == owners
        assert all(len(share) == SHARE_BYTES for share in told.values())


def test_over_any_graph_a_second_set_of_survivors_is_refused(cohort):
    played = played_by(cohort)
    played.share()
    played.mask()
    first, second = played.signed, played.signed[1:]
    assert len(second) >= played.cohort.quorum
    name = "clinic-2"
    played.rounds[name] = played.sign_for(name, first)
    with pytest.raises(ProtocolError, match="there is no other"):
        played.sign_for(name, second)


def test_over_any_graph_two_sets_at_once_open_no_sum_but_one(cohort):
    """The server has half of the holders sign one set, half another; colluders would sign both."""
    played = played_by(cohort)
    played.share()
    played.mask()
    sets = played.signed, played.signed[1:]
    signatures: list[dict[str, bytes]] = [{}, {}]
    for number, name in enumerate(played.signed):
        side = number % 2
        played.rounds[name] = state = played.sign_for(name, sets[side])
        signatures[side][name] = state.signature or b""
    told, revealed = {**signatures[0], **signatures[1]}, {}
    for name in played.signed:
        # A few may have enough of their circle on their side; no sum opens by them.
        with suppress(ProtocolError):
            revealed[name] = played.holders[name].reveal(played.rounds[name], told)
    for each in sets:
        assert played.server.closed(played.sent, each, revealed)


def one_way(cohort) -> tuple[Played, str]:
    """A round, and a neighbour that clinic 0 drew; over a sparse graph it did not draw clinic 0."""
    while True:
        played = played_by(cohort)
        for other in played.holders["clinic-0"].book.drawn:
            drew = "clinic-0" in played.holders[other].book.drawn
            if drew == cohort.graph.complete:
                return played, other


def test_over_any_graph_a_hidden_neighbour_stops_whoever_would_sign(cohort):
    """One of two neighbours is not told of the other: neither helps to open a sum with both."""
    played, other = one_way(cohort)
    played.share()
    del played.inboxes["clinic-0"][other]
    played.mask()
    with pytest.raises(ProtocolError, match="who sent no shares"):
        played.sign_for("clinic-0", played.signed)
    # The other masked with clinic 0, but has no proof that clinic 0 masked with it.
    with pytest.raises(ProtocolError, match="does not prove"):
        played.sign_for(other, played.signed)
    for bad in (b"", bytes(32), played.told_tags[other]["clinic-0"]):
        tags = {**played.tags_for(other), "clinic-0": bad}
        with pytest.raises(ProtocolError, match="does not prove"):
            played.holders[other].sign(played.rounds[other], played.signed, tags)


def test_over_any_graph_tags_of_another_round_prove_nothing(cohort):
    holders = holders_of(cohort)
    played = playing(0, 0, holders=holders)
    later = playing(0, 0, query="q2", holders=holders)
    for each in (played, later):
        each.share()
        each.mask()
    name = "clinic-0"
    with pytest.raises(ProtocolError, match="does not prove"):
        holders[name].sign(later.rounds[name], later.signed, played.tags_for(name))


def test_over_any_graph_too_few_of_a_circle_stop_a_holder(cohort):
    played = played_by(cohort)
    played.share()
    name, threshold = "clinic-0", cohort.graph.threshold
    holder = played.holders[name]
    few = set(holder.book.drawn[: threshold - 2])
    inbox = {n: told for n, told in played.inboxes[name].items() if n in few}
    with pytest.raises(ProtocolError, match="circle"):
        holder.mask(played.rounds[name], inbox, played.values[name])
    played.mask()
    played.sign()
    some = [*holder.book.drawn[: threshold - 2], name]
    with pytest.raises(ProtocolError, match="signed this set"):
        holder.reveal(played.rounds[name], {n: played.signatures[n] for n in some})


def test_a_neighbour_whose_key_was_withheld_cannot_be_in_the_sum():
    """The server shows different graphs to two holders; who drew the other one notices."""
    with toy_graph(SPARSE):
        cohort = cohort_of(11, 3, 1)
        holders = holders_of(cohort)
    name = "clinic-0"
    hidden = holders[name].book.drawn[0]
    book = holders[name].book
    keys = {n: key for n, key in book.keys.items() if n != hidden}
    holders[name] = replace(holders[name], book=replace(book, keys=keys))
    played = playing(0, 0, holders=holders)
    for each, holder in holders.items():
        played.rounds[each] = holder.open(played.task)
    for each in holders:
        near = played.server.neighbours[each]
        inbox = {n: played.rounds[n].sent[each] for n in near if each in played.rounds[n].sent}
        if each == name:
            inbox.pop(hidden, None)
        played.inboxes[each] = inbox
    played.mask()
    with pytest.raises(ProtocolError, match="who sent no shares"):
        played.sign_for(name, played.signed)


def test_a_neighbour_that_the_server_makes_up_gets_no_share():
    """It says that a colluder drew a holder: they mask with each other, and nothing is shared."""
    with toy_graph(SPARSE):
        cohort = cohort_of(11, 3, 1)
        server, holders = run_of(cohort)
    name = "clinic-0"
    strangers = set(cohort.names) - server.neighbours[name] - {name}
    for stranger in sorted(strangers):
        book = holders[name].book
        wider = replace(book, keys={**book.keys, stranger: _adverts_of(holders)[stranger]})
        told = replace(holders[name], book=wider).open(task_of()).sent
        lengths = {other: len(sealed) for other, sealed in told.items()}
        assert lengths[stranger] == min(lengths.values())
        assert lengths[stranger] < lengths[book.drawn[0]]


def _adverts_of(holders) -> dict[str, bytes]:
    return {name: holder.book.keys[name] for name, holder in holders.items()}


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
    with pytest.raises(ProtocolError, match="Nothing is revealed"):
        played.sign_for(name, list(played.signed)[:3])
    played.sign()
    with pytest.raises(ProtocolError, match="Nothing is revealed"):
        holder.reveal(played.rounds[name], dict(list(played.signatures.items())[:3]))


# ---------------------------------------------------------------- a server that cheats


def opened_seeds(played: Played, said: list[dict[str, dict[str, bytes]]]) -> set[bytes]:
    """Seeds and round keys that any threshold of anybody's shares in these messages opens."""
    graph, found = played.cohort.graph, set()
    for owner, circle in played.server.circles.items():
        points = {name: point for point, name in enumerate(circle, 1)}
        for revealed in said:
            shares = {points[n]: told[owner] for n, told in revealed.items() if owner in told}
            for size in {len(shares), graph.threshold}:
                for some in itertools.islice(itertools.combinations(shares, size), 20):
                    try:
                        found |= set(combine({point: [shares[point]] for point in some}))
                    except ProtocolError:
                        continue
    return found


def test_a_set_that_a_holder_did_not_sign_opens_nothing_of_it():
    played = playing(5, 1)
    played.share()
    played.mask()
    first, second = played.signed, played.signed[1:]
    state = played.sign_for("clinic-2", first)
    assert played.holders["clinic-2"].sign(state, first, {}) is state
    others = {n: played.sign_for(n, second).signature or b"" for n in second if n != "clinic-2"}
    with pytest.raises(ProtocolError, match="Nothing is revealed"):
        played.holders["clinic-2"].reveal(state, others)


def test_two_sets_cannot_both_find_enough_signatures():
    # The server asks each honest holder for the set that suits it, colluders sign both.
    for m, dropouts, colluders in ((5, 2, 0), (5, 1, 2), (7, 2, 2), (8, 3, 1)):
        cohort = cohort_of(m, dropouts, colluders)
        honest = m - colluders
        for for_first in range(honest + 1):
            both = min(for_first, honest - for_first) + colluders
            assert both < cohort.quorum


def test_a_set_is_signed_only_with_oneself_and_with_those_one_masked_with():
    played = playing(5, 1, {1: {"clinic-4"}})
    played.share()
    played.mask()
    holder, state = played.holders["clinic-0"], played.rounds["clinic-0"]
    for bad in (played.signed[1:], [*played.signed, "clinic-4"], [*played.signed, "nobody"]):
        with pytest.raises(ProtocolError):
            played.sign_for("clinic-0", bad)
    whole = playing(5, 1)
    whole.share()
    whole.mask()
    with pytest.raises(ProtocolError, match="leaves this holder out"):
        whole.sign_for("clinic-0", whole.signed[1:])
    with pytest.raises(ProtocolError, match="not masked yet"):
        holder.sign(holder.open(task_of("q2")), played.signed, {})
    with pytest.raises(ProtocolError, match="not masked yet"):
        holder.tags(holder.open(task_of("q2")))
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
        # Another key of the round beside what clinic-1 sealed: the server in the middle.
        {**inbox, "clinic-1": later.inboxes[name]["clinic-1"][:32] + first[32:]},
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
    after.signed = after.server.survivors(after.vectors)
    after.sign()
    after.reveal()
    assert (after.total() == sum_of(after, ["clinic-0", "clinic-1"])).all()
    seeds = opened_seeds(after, [after.revealed])
    # Two seeds, and the key of who is said to be gone.
    assert len(seeds) == 3
    assert after.rounds["clinic-2"].key in seeds
    seeds |= pair_seeds(after.rounds["clinic-2"], "clinic-2")
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
        state = played.rounds[name]
        own = {state.seed} | pair_seeds(state, name)
        assert opens(played.vectors[name], played.values[name], name, own)


def pair_seeds(state, name: str) -> set[bytes]:
    own = RoundKey(state.key)
    return {own.pair_seed(name, other, told[:32]) for other, told in state.received.items()}


def test_a_server_with_colluders_learns_the_sum_of_the_others_and_no_vector():
    played = playing(5, 1, {2: {"clinic-4"}}, holders=holders_of(cohort_of(5, 1, 2)))
    total = played.play()
    colluders, honest = ("clinic-0", "clinic-1"), ("clinic-2", "clinic-3")
    assert (total - sum_of(played, colluders) == sum_of(played, honest)).all()
    known = opened_seeds(played, [played.revealed])
    for name in colluders:
        state = played.rounds[name]
        known |= {state.seed} | pair_seeds(state, name)
    gone = played.rounds["clinic-4"].key
    assert gone in known
    known |= {
        RoundKey(gone).pair_seed("clinic-4", name, RoundKey(played.rounds[name].key).public)
        for name in honest
    }
    # Of five masks on each honest vector one is left: the one that the two have in common.
    for name, other in (honest, honest[::-1]):
        state = played.rounds[name]
        left = np.frombuffer(played.vectors[name], dtype="<u4") - keystream(state.seed, 40, 32)
        unknown = []
        for sender in state.senders:
            seed = RoundKey(state.key).pair_seed(name, sender, state.received[sender][:32])
            if seed in known:
                left = left - signed_keystream(seed, 40, 32, name, sender)
            else:
                unknown.append((sender, seed))
        assert state.seed in known
        assert [sender for sender, _ in unknown] == [other]
        mask = signed_keystream(unknown[0][1], 40, 32, name, other)
        assert (left - played.values[name] == mask).all()


def test_wrong_shares_are_noticed_instead_of_giving_a_wrong_sum():
    played = playing(4, 1)
    played.play()

    def total(revealed):
        return played.server.unmask(
            played.task, played.sent, played.signed, played.vectors, revealed
        )

    with pytest.raises(ProtocolError, match="do not fit"):
        total({**played.revealed, "clinic-0": played.revealed["clinic-1"]})
    # A holder that says too little counts as silent.
    told = played.revealed["clinic-0"]
    short = {**played.revealed, "clinic-0": {owner: told[owner][:-1] for owner in told}}
    assert (total(short) == sum_of(played, played.signed)).all()
    with pytest.raises(QuorumError, match="2 of 3"):
        total({**short, "clinic-1": {}})


def test_the_server_notices_shares_that_leave_a_neighbour_out():
    played = playing(3, 0)
    played.share()
    sent = {name: dict(state.sent) for name, state in played.rounds.items()}
    del sent["clinic-0"]["clinic-1"]
    with pytest.raises(ProtocolError, match="clinic-1"):
        played.server.inboxes(sent)
