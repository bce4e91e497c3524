"""What the server decodes has the planned noise, no less, whoever drops out."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from fedtranscribe.noise.masked import MaskedShare, residues
from fedtranscribe.noise.secagg import Task
from fedtranscribe.noise.sources import OsBits
from fedtranscribe.privacy.calibrate import EnsembleLayout
from fedtranscribe.privacy.units import RowAnswer
from fedtranscribe.questions.moments import SUM_BITS, moment_sums, moments_bound
from fedtranscribe.questions.records import id_weights
from tests.mechanisms_for import masked_mean_rows
from tests.secagg.cohorts import Played, cohort_of, holders_of

M, T, K = 5, 1, 10
LIKELY = 1e-6


def decoded(mechanism: MaskedShare, rows: torch.Tensor, gone: set[str]) -> tuple:
    """Signed integers of the sum over all who stay, and the mean as the student gets it."""
    total = played_sum(mechanism, rows, gone)
    mean = mechanism.grid.decode(total) / (M - len(gone))
    return total.view(np.int32).astype(np.int64), mean


def played_sum(mechanism: MaskedShare, values: torch.Tensor, gone: set[str]) -> np.ndarray:
    """Residues of the sum over all who stay."""
    grid, holders = mechanism.grid, holders_of(cohort_of(M, T))
    drawn = {name: mechanism.privatise(values, OsBits()) for name in holders}
    masked = {name: residues(whole, grid.word).ravel() for name, whole in drawn.items()}
    task = Task("q", "bound", values.numel(), grid.word)
    played = Played(holders, task, masked, {2: gone})
    total = played.play()
    assert len(played.signed) == M - len(gone)
    return total


@pytest.mark.parametrize("silent", [0, T])
def test_the_decoded_noise_has_the_planned_variance_and_never_less(silent):
    s, rows = 0.253, torch.zeros(8_000, K)
    rows[:, 0] = 0.5
    mechanism = masked_mean_rows(EnsembleLayout(M, M), s, RowAnswer.GRADIENT, K, T)
    integers, mean = decoded(mechanism, rows, {f"clinic-{i}" for i in range(silent)})
    shares = M - silent
    noise = integers - shares * mechanism.grid.quantise(rows).ravel().numpy()
    variance = float((noise.astype(float) ** 2).mean())
    # With t silent just what was planned; with nobody silent their shares on top.
    planned = float(Fraction(s) * M * mechanism.grid.scale) ** 2 * shares / (M - T)
    assert shares * mechanism.own_variance >= planned * (1 - 1e-12)
    n = len(noise)
    low, high = stats.chi2.ppf([LIKELY / 2, 1 - LIKELY / 2], n) / n
    assert low < variance / planned < high
    assert 0.97 < low < high < 1.03
    assert stats.kstest(noise / math.sqrt(planned), "norm").pvalue > LIKELY
    # And on the mean: std s · √(m/(m − t)) at most, around the true rows.
    assert mean[0::K].mean() == pytest.approx(0.5, abs=6 * 0.3 / math.sqrt(8_000))
    assert float(abs(noise.mean())) < 6 * math.sqrt(planned / n)


@pytest.mark.parametrize("silent", [0, T])
def test_decoded_noise_on_a_coarse_lattice_follows_the_discrete_gaussian(silent):
    # So little noise that single integers can be counted.
    mechanism = masked_mean_rows(EnsembleLayout(M, M), 5e-8, RowAnswer.GRADIENT, K, T)
    assert 2 < mechanism.own_variance < 10
    noise, _ = decoded(mechanism, torch.zeros(8_000, K), {f"clinic-{i}" for i in range(silent)})
    variance = (M - silent) * mechanism.own_variance
    reach = math.ceil(3 * math.sqrt(variance))
    support = np.arange(-10 * reach, 10 * reach + 1)
    p = np.exp(-(support.astype(float) ** 2) / (2 * variance))
    p /= p.sum()
    inside = np.abs(support) <= reach
    expected = np.append(p[inside], p[~inside].sum()) * len(noise)
    seen = np.bincount(noise[np.abs(noise) <= reach] + reach, minlength=2 * reach + 1)
    observed = np.append(seen, (np.abs(noise) > reach).sum())
    assert stats.chisquare(observed, expected).pvalue > LIKELY


@pytest.mark.parametrize("silent", [0, T])
def test_long_masked_sums_are_exact_and_have_the_planned_noise(silent):
    # Entries beside the diagonal stand for two, and have half of the variance.
    tau, width, n = 1.3, 120, 40
    bound = moments_bound(width, K)
    mechanism = MaskedShare(bound, tau / M, M, T)
    rows = torch.randn(n, width, generator=torch.Generator().manual_seed(1)).double()
    labels, weights = torch.arange(n) % K, id_weights([str(i) for i in range(n)])
    sums = moment_sums([(rows / rows.norm(dim=1, keepdim=True), labels, weights)], width, K)
    total = played_sum(mechanism, sums[None], {f"clinic-{i}" for i in range(silent)})
    shares = M - silent
    noise = (total.view(np.int64) - shares * sums.numpy()).astype(float)
    planned = float(Fraction(tau) * 2**SUM_BITS) ** 2 * shares / (M - T)
    for counts in (1, 2):
        drawn = noise[(bound.counts == counts).numpy()]
        count = len(drawn)
        low, high = stats.chi2.ppf([LIKELY / 2, 1 - LIKELY / 2], count) / count
        assert low < (drawn**2).mean() * counts / planned < high
        assert stats.kstest(drawn * math.sqrt(counts / planned), "norm").pvalue > LIKELY
    assert shares * mechanism.own_variance >= planned * (1 - 1e-12)
    assert 2 * shares * mechanism.variance_of(2) >= planned * (1 - 1e-12)
