import itertools
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from scipy import stats

from fedtranscribe.errors import ConfigError, ProtocolError
from fedtranscribe.noise.masks import (
    RoundKey,
    keystream,
    masked,
    sealing_key,
    signed_keystream,
    tag,
)
from fedtranscribe.noise.secagg import Task
from tests.secagg.cohorts import Played, cohort_of, holders_of, random_values, task_of

# A false alarm once in a million runs of an unseeded source.
LIKELY = 1e-6


def uniform(residues: np.ndarray, modulus: int) -> float:
    return stats.chisquare(np.bincount(residues, minlength=modulus)).pvalue


@pytest.mark.parametrize("constant", [0, 1, 255])
def test_the_servers_view_of_one_vector_is_uniform_on_every_residue(constant):
    holders = holders_of(cohort_of(3, 1))
    n = 200_000
    values = {name: np.full(n, constant, dtype=np.uint8) for name in holders}
    played = Played(holders, task_of(length=n, word=8), values)
    played.share()
    played.mask()
    for vector in played.vectors.values():
        assert uniform(np.frombuffer(vector, dtype=np.uint8), 256) > LIKELY
    # Two of the three together as well: pair masks alone would cancel there.
    a, b, _ = (np.frombuffer(v, dtype=np.uint8) for v in played.vectors.values())
    assert uniform(a + b, 256) > LIKELY
    joint = (a >> 4).astype(int) * 16 + (b >> 4)
    assert uniform(joint, 256) > LIKELY


@pytest.mark.parametrize("word", [16, 32, 64])
def test_every_byte_of_a_wide_residue_is_uniform(word):
    n = 50_000
    values = np.arange(n, dtype=f"<u{word // 8}")
    vector = masked(values, word, "a", bytes(range(32)), {"b": bytes(32)})
    columns = np.frombuffer(vector.tobytes(), dtype=np.uint8).reshape(n, word // 8)
    for column in columns.T:
        assert uniform(column, 256) > LIKELY


def test_a_view_still_under_one_unknown_seed_is_uniform():
    # The own mask, or any one pair's, is enough.
    n, values = 100_000, np.zeros(100_000, dtype=np.uint8)
    own, pairs = bytes(32), {"b": bytes([1] * 32), "c": bytes([2] * 32)}
    vector = masked(values, 8, "a", own, pairs)
    parts = {"own": keystream(own, n, 8)} | {
        other: signed_keystream(seed, n, 8, "a", other) for other, seed in pairs.items()
    }
    for kept in parts:
        known = [stream for name, stream in parts.items() if name != kept]
        assert uniform(vector - known[0] - known[1], 256) > LIKELY
    assert not (vector - sum(parts.values())).any()


def test_keystreams_are_those_of_chacha20():
    # An independent use of the same cipher: the AEAD encrypts from block 1 on under a zero nonce.
    seed = bytes(range(32))
    tail = ChaCha20Poly1305(seed).encrypt(bytes(12), bytes(64), None)[:64]
    assert keystream(seed, 128, 8).tobytes()[64:] == tail


@pytest.mark.parametrize("word", [8, 16, 32, 64])
def test_masks_of_a_cohort_cancel(word):
    seeds = {pair: bytes([i] * 32) for i, pair in enumerate(itertools.combinations("abcd", 2))}
    total = np.zeros(9, dtype=f"<u{word // 8}")
    for name in "abcd":
        pairs = {o: seeds[min(name, o), max(name, o)] for o in "abcd" if o != name}
        vector = masked(np.full(9, 5, dtype=total.dtype), word, name, name.encode() * 32, pairs)
        total += vector - keystream(name.encode() * 32, 9, word)
    assert (total == 20).all()


def test_both_sides_of_a_pair_find_its_seed_and_others_have_others():
    keys = {name: RoundKey(bytes([i] * 32)) for i, name in enumerate("abc", 1)}
    seeds = {
        (a, b): keys[a].pair_seed(a, b, keys[b].public) for a, b in itertools.permutations("abc", 2)
    }
    assert all(seeds[a, b] == seeds[b, a] for a, b in seeds)
    assert len(set(seeds.values())) == 3
    # The same keys under other names are another pair.
    assert keys["a"].pair_seed("d", "b", keys["b"].public) != seeds["a", "b"]
    with pytest.raises(ProtocolError, match="no secret"):
        keys["a"].pair_seed("a", "b", bytes(32))


def test_seals_and_tags_of_pairs_rounds_runs_senders_and_purposes_differ():
    cohort, another = cohort_of(3, 0), cohort_of(3, 0, run="run-2")
    holders, later = holders_of(cohort), holders_of(another)
    a, b = holders["clinic-0"].book, holders["clinic-1"].book
    rounds = [task_of(q).digest(cohort) for q in ("q1", "q2")]
    found = [
        of(a, other, r, sender)
        for of in (sealing_key, tag)
        for other in a.others
        for r in rounds
        for sender in (a.name, other)
    ]
    again = later["clinic-0"].book
    found.append(tag(again, "clinic-1", rounds[0], "clinic-0"))
    assert len(set(found)) == len(found) == 17
    assert tag(b, "clinic-0", rounds[0], "clinic-0") in found


def test_each_part_of_a_task_makes_another_round():
    cohort = cohort_of(2, 0)
    base: dict[str, Any] = {"query": "q", "bound_to": "h", "length": 4, "word": 32}
    changes = [{}, {"query": "r"}, {"bound_to": "i"}, {"length": 5}, {"word": 64}]
    assert len({Task(**(base | change)).digest(cohort) for change in changes}) == 5


def test_bad_sizes_are_refused():
    with pytest.raises(ConfigError, match="word=12"):
        keystream(bytes(32), 4, 12)
    with pytest.raises(ConfigError, match="1 to"):
        keystream(bytes(32), 0, 32)
    assert random_values(["a"])["a"].shape == (40,)
