"""What the server decodes has the planned noise, no less, whoever drops out."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from fedtranscribe.mechanisms.bits import OsBits
from fedtranscribe.mechanisms.masked import MaskedShare, residues
from fedtranscribe.privacy.calibrate import EnsembleLayout
from fedtranscribe.privacy.units import RowAnswer
from fedtranscribe.secagg import Task
from tests.mechanisms_for import masked_mean_rows
from tests.secagg.cohorts import Played, cohort_of, holders_of

M, T, K = 5, 1, 10
LIKELY = 1e-6


def decoded(mechanism: MaskedShare, rows: torch.Tensor, gone: set[str]) -> tuple:
    """Signed integers of the sum over all who stay, and the mean as the student gets it."""
    grid, holders = mechanism.grid, holders_of(cohort_of(M, T))
    drawn = {name: mechanism.privatise(rows, OsBits()) for name in holders}
    values = {name: residues(whole, grid.word).ravel() for name, whole in drawn.items()}
    task = Task("q", "bound", rows.numel(), grid.word)
    played = Played(holders, task, values, {2: gone})
    total = played.play()
    return total.view(np.int32).astype(np.int64), grid.mean(total, len(played.signed))


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
