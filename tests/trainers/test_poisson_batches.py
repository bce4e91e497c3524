import numpy as np
import pytest
import torch
from dpsgd_nets import plan_for
from scipy import stats

from fedtranscribe.errors import ConfigError, PrivacyError
from fedtranscribe.noise.sources import OsBits, SeededBits
from fedtranscribe.privacy.diffusion import DpSgdPlan
from fedtranscribe.privacy.events import PoissonGaussian
from fedtranscribe.privacy.units import Adjacency
from fedtranscribe.trainers.private_steps import PoissonBatches


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": 9}, "batch=9 <= 8 records; lower it"),
        ({"batch": 0}, "batch=0 >= 1"),
        ({"steps": 0}, "steps=0 >= 1"),
        ({"multiplicity": 0}, "multiplicity=0 >= 1"),
        ({"clip": 0.0}, "clip=0.0 > 0"),
        ({"clip": float("nan")}, "clip=nan > 0"),
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1.0 >= 0"),
        ({"noise_multiplier": float("inf")}, "noise_multiplier=inf"),
    ],
)
def test_a_plan_refuses_what_cannot_be_run(changes, words):
    with pytest.raises(ConfigError, match=words):
        plan_for(**changes)


def test_a_plan_books_all_its_steps_and_nothing_for_copies_or_clipping():
    plan = plan_for(records=60, batch=6, steps=7, noise_multiplier=1.5, clip=0.01)
    copies = plan_for(records=60, batch=6, steps=7, noise_multiplier=1.5, clip=3, multiplicity=32)
    for adjacency in Adjacency:
        assert plan.event(adjacency) == PoissonGaussian(0.1, 1.5, 7, adjacency)
        assert copies.event(adjacency) == plan.event(adjacency)


def test_a_plan_without_noise_has_no_event():
    with pytest.raises(PrivacyError, match="noise_multiplier=0"):
        plan_for().event(Adjacency.ZERO_OUT)


def test_inclusions_are_binomial_and_independent_from_step_to_step():
    plan = DpSgdPlan(records=4000, batch=1200, steps=200, noise_multiplier=1.0, clip=1.0)
    included = np.zeros((plan.steps, plan.records), dtype=bool)
    for step, indices in enumerate(PoissonBatches(plan, SeededBits(1))):
        assert indices.dtype == torch.int64
        included[step, indices.numpy()] = True
    q = plan.sampling_probability
    # How often each record was in, in bins that hold enough records, against Binomial(T, q).
    edges = np.arange(46, 76, 2)
    bins = np.concatenate([[-1], edges, [plan.steps]])
    expected = plan.records * np.diff(stats.binom.cdf(bins, plan.steps, q))
    observed = np.histogram(included.sum(0), bins + 0.5)[0]
    assert stats.chisquare(observed, expected).pvalue > 1e-3
    # In twice running: as often as independence says.
    pairs = int((included[1:] & included[:-1]).sum())
    tries = (plan.steps - 1) * plan.records
    assert stats.binomtest(pairs, tries, q * q).pvalue > 1e-3


def test_batch_sizes_vary_as_poisson_sampling_says():
    plan = DpSgdPlan(records=500, batch=50, steps=3000, noise_multiplier=1.0, clip=1.0)
    sizes = np.array([len(i) for i in PoissonBatches(plan, SeededBits(2))])
    variance = 500 * 0.1 * 0.9
    low, high = stats.chi2.ppf([5e-4, 1 - 5e-4], len(sizes) - 1) / (len(sizes) - 1)
    # Batches of shuffled passes would have no variance at all.
    assert low < sizes.var(ddof=1) / variance < high
    assert abs(sizes.mean() - 50) < 4 * np.sqrt(variance / len(sizes))


def test_empty_batches_come_as_often_as_they_should():
    plan = DpSgdPlan(records=20, batch=1, steps=2000, noise_multiplier=1.0, clip=1.0)
    empty = sum(len(i) == 0 for i in PoissonBatches(plan, SeededBits(3)))
    assert stats.binomtest(empty, 2000, 0.95**20).pvalue > 1e-3


def test_everybody_is_in_when_the_batch_is_the_data():
    plan = plan_for(batch=8)
    assert PoissonBatches(plan).draw().tolist() == list(range(8))


def test_parts_of_ranks_are_disjoint_and_cover_all_records():
    plan = plan_for(records=7, batch=7)
    parts = [PoissonBatches(plan, SeededBits(0, str(r)), r, 3).draw().tolist() for r in range(3)]
    assert parts == [[0, 3, 6], [1, 4], [2, 5]]
    assert PoissonBatches(plan_for(records=1, batch=1), rank=1, ranks=2).draw().tolist() == []
    with pytest.raises(ConfigError, match="rank=3 between 0 and ranks-1=2"):
        PoissonBatches(plan, rank=3, ranks=3)


def test_words_that_would_favour_small_remainders_are_drawn_again():
    class Largest:
        private = False

        def __init__(self):
            self.words_left = [np.array([2**64 - 1, 5], np.uint64), np.array([1], np.uint64)]

        def for_query(self, query_id):
            return self

        def words(self, count):
            drawn = self.words_left.pop(0)
            assert len(drawn) == count
            return drawn

    # 2^64 - 1 is a multiple of 3: it is the one word too many for 3 records.
    plan = plan_for(records=3, batch=2)
    assert PoissonBatches(plan, Largest(), 0, 2).draw().tolist() == [0]


def test_only_os_entropy_calls_itself_private():
    plan = plan_for()
    assert PoissonBatches(plan).private
    assert PoissonBatches(plan, OsBits()).private
    assert not PoissonBatches(plan, SeededBits(0)).private
    many = plan_for(records=4096, batch=2048)
    assert not torch.equal(PoissonBatches(many).draw(), PoissonBatches(many).draw())
