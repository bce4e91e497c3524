import hashlib
import itertools
import os
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedtranscribe.errors import ProtocolError
from fedtranscribe.noise import masks as module
from fedtranscribe.noise.masks import PRIME, SHARE_BYTES, combine, seal, split, unseal


def test_the_modulus_is_the_smallest_prime_above_every_seed():
    def prime(n: int) -> bool:
        # Miller-Rabin with 24 bases, and no small factor.
        d, r = n - 1, 0
        while d % 2 == 0:
            d, r = d // 2, r + 1
        for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71):
            if n % base == 0:
                return False
            x = pow(base, d, n)
            if x in (1, n - 1):
                continue
            for _ in range(r - 1):
                x = x * x % n
                if x == n - 1:
                    break
            else:
                return False
        return True

    assert prime(PRIME)
    assert not any(prime(n) for n in range(2**384 + 1, PRIME, 2))


def test_shares_are_the_values_of_the_polynomial(monkeypatch):
    # Known coefficients, powers written out; and the way back over the rationals.
    coefficients = iter([3**150, 5**100])
    monkeypatch.setattr(module.secrets, "randbelow", lambda below: next(coefficients))
    seed = (7**90).to_bytes(32, "big")
    secret = int.from_bytes(seed + hashlib.sha256(seed).digest()[:16], "big")
    told = split([seed], 3, 5)
    values = [int.from_bytes(row[0], "big") for row in told]
    assert values == [(secret + 3**150 * x + 5**100 * x**2) % PRIME for x in range(1, 6)]
    points = (2, 3, 5)
    exact = Fraction(0)
    for i in points:
        term = Fraction(secret + 3**150 * i + 5**100 * i**2)
        for j in points:
            if j != i:
                term *= Fraction(j, j - i)
        exact += term
    assert exact == secret
    assert combine({x: told[x - 1] for x in points}) == [seed]


@given(m=st.integers(1, 8), data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_quorum_opens_all_seeds(m, data):
    threshold = data.draw(st.integers(1, m))
    chosen = data.draw(st.permutations(range(1, m + 1)))[:threshold]
    seeds = [bytes(32), b"\xff" * 32, os.urandom(32)]
    told = split(seeds, threshold, m)
    assert all(len(share) == SHARE_BYTES for row in told for share in row)
    assert combine({point: told[point - 1] for point in chosen}) == seeds


def test_fewer_shares_fit_every_seed_equally_well():
    # In a field of 11 elements one can count: two of three shares say nothing about the seed.
    original = module.PRIME
    try:
        module.PRIME = 11
        seen = np.zeros((2, 11, 11), dtype=int)
        for i, secret in enumerate((0, 7)):
            for a, b in itertools.product(range(11), repeat=2):
                first, second = (module._value([secret, a, b], x) for x in (1, 2))
                seen[i, first, second] += 1
    finally:
        module.PRIME = original
    assert (seen == 1).all()


def test_single_shares_are_uniform():
    seeds = [bytes(32)] * 20_000
    first = np.array([row[1] for row in split(seeds, 2, 1)[0]])
    assert stats.chisquare(np.bincount(first, minlength=256)).pvalue > 1e-6


def test_shares_that_do_not_belong_together_are_noticed():
    ours, theirs = split([bytes(32)] * 8, 3, 3), split([bytes(32)] * 8, 3, 3)
    mixed = {1: ours[0], 2: ours[1], 3: theirs[2]}
    for told in (mixed, {2: ours[0], 1: ours[1], 3: ours[2]}, {1: ours[0], 2: ours[1]}):
        with pytest.raises(ProtocolError, match="do not fit"):
            combine(told)
    for value in (0, 2**384 + 5):
        with pytest.raises(ProtocolError, match="do not fit"):
            combine({1: [value.to_bytes(SHARE_BYTES, "big")]})


def test_sealed_shares_open_for_their_receiver_in_their_round_only():
    key, associated = os.urandom(32), b"run round from to"
    sealed = seal(key, b"shares", associated)
    assert unseal(key, sealed, associated) == b"shares"
    assert sealed != seal(key, b"shares", associated)
    damaged = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for bad in (
        (os.urandom(32), sealed, associated),
        (key, sealed, b"run round from other"),
        (key, damaged, associated),
        (key, b"", associated),
        (key, sealed[:15], associated),
    ):
        with pytest.raises(ProtocolError, match="do not open"):
            unseal(*bad)
