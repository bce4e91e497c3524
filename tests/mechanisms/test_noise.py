import numpy as np
import pytest
import torch
from scipy import stats

from fedtranscribe.errors import ConfigError
from fedtranscribe.noise.sources import KeyedNoise, OsNoise, SeededNoise
from fedtranscribe.privacy.release_plan import KEY_BYTES

KEYED = KeyedNoise(bytes(range(KEY_BYTES)))


@pytest.mark.parametrize("source", [OsNoise(), SeededNoise(0), KEYED])
def test_gaussian_noise_is_gaussian(source):
    drawn = source.gaussian((50_000,), 2.0)
    assert drawn.dtype == torch.float64
    # A false alarm once in a million runs of the unseeded source.
    assert stats.kstest(drawn.numpy() / 2.0, "norm").pvalue > 1e-6


@pytest.mark.parametrize("source", [OsNoise(), SeededNoise(0), KEYED])
def test_uniform_noise_is_uniform_and_open(source):
    drawn = source.uniform((100, 500)).numpy()
    assert drawn.min() > 0
    assert drawn.max() < 1
    assert stats.kstest(drawn.ravel(), "uniform").pvalue > 1e-6


def test_the_largest_integer_still_gives_finite_noise(monkeypatch):
    monkeypatch.setattr("os.urandom", lambda n: b"\xff" * n)
    assert torch.isfinite(OsNoise().gaussian((4,), 1.0)).all()
    monkeypatch.setattr("os.urandom", lambda n: b"\x00" * n)
    tail = OsNoise().gaussian((4,), 1.0)
    assert torch.isfinite(tail).all()
    assert float(tail[0]) < -8


def test_os_noise_never_repeats_and_says_it_is_private():
    source = OsNoise()
    assert source.private
    assert not torch.equal(source.gaussian((16,), 1.0), source.gaussian((16,), 1.0))


def test_seeded_noise_depends_on_seed_holder_and_query_but_not_on_order():
    first, second = SeededNoise(1, "a"), SeededNoise(1, "a")
    assert not first.private
    second.for_query("other").gaussian((8,), 1.0)
    one = first.for_query("q").gaussian((8,), 1.0)
    assert torch.equal(one, second.for_query("q").gaussian((8,), 1.0))
    for other in (SeededNoise(2, "a"), SeededNoise(1, "b")):
        assert not torch.equal(one, other.for_query("q").gaussian((8,), 1.0))
    assert not torch.equal(one, first.for_query("r").gaussian((8,), 1.0))


def test_keyed_noise_depends_on_key_and_name_and_not_on_order():
    again = KeyedNoise(bytes(range(KEY_BYTES)))
    assert again.private
    again.for_query("other").gaussian((8,), 1.0)
    source = KEYED.for_query("q")
    first, second = source.gaussian((8,), 1.0), source.gaussian((8,), 1.0)
    assert not torch.equal(first, second)
    assert torch.equal(first, again.for_query("q").gaussian((8,), 1.0))
    for other in (KEYED.for_query("r"), KeyedNoise(b"k" * KEY_BYTES).for_query("q")):
        assert not torch.equal(first, other.gaussian((8,), 1.0))
    with pytest.raises(ConfigError, match="32 bytes or more, got 31"):
        KeyedNoise(b"k" * 31)


def test_noise_of_different_coordinates_is_independent():
    drawn = SeededNoise(3).gaussian((20_000, 4), 1.0).numpy()
    correlation = np.corrcoef(drawn.T) - np.eye(4)
    assert np.abs(correlation).max() < 0.05
