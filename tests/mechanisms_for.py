"""Mechanisms as tests ask for them: by an ensemble's layout and what a row is."""

from torch import Tensor

from fedtranscribe.noise.bounds import Bound
from fedtranscribe.noise.gaussian import CentralNoise, LocalNoise
from fedtranscribe.noise.masked import MaskedShare, masked_noise_std
from fedtranscribe.privacy.calibrate import ROUNDING, EnsembleLayout
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import Adjacency, NoiseMode, RowAnswer, Unit
from fedtranscribe.privacy.zcdp import zcdp_rho
from fedtranscribe.questions.moments import moments_bound
from fedtranscribe.questions.rows import mean_rows_bound

# Any width will do where no mask is put on.
K = 10


def rows_bound(layout: EnsembleLayout, answer: RowAnswer, k: int = K) -> Bound:
    return mean_rows_bound(layout.shards, answer, k)


def noisy_mean_rows(layout: EnsembleLayout, noise_std: float, answer: RowAnswer) -> LocalNoise:
    return LocalNoise(rows_bound(layout, answer), noise_std, layout.holders)


def raw_mean_rows(layout: EnsembleLayout, noise_std: float, answer: RowAnswer) -> CentralNoise:
    return CentralNoise(rows_bound(layout, answer), noise_std, layout.holders)


def masked_mean_rows(
    layout: EnsembleLayout, noise_std: float, answer: RowAnswer, k: int, tolerated: int
) -> MaskedShare:
    return MaskedShare(rows_bound(layout, answer, k), noise_std, layout.holders, tolerated)


def noisy_moments(noise_std: float, width: int, classes: int | None) -> LocalNoise:
    return LocalNoise(moments_bound(width, classes), noise_std)


def noisy_moments_of_mu(mu: float, width: int, classes: int | None) -> LocalNoise:
    """The mechanism that costs μ under zero-out."""
    return noisy_moments(moved(width, classes, Adjacency.ZERO_OUT) / mu, width, classes)


def moved(width: int, classes: int | None, adjacency: Adjacency) -> float:
    """How far one record moves moments, as it is charged."""
    return moments_bound(width, classes).moves[Unit.RECORD][adjacency] * (1 + ROUNDING)


def apart(first: Tensor, second: Tensor, bound: Bound) -> float:
    """How far two vectors lie apart, as the bound measures it."""
    moved = (first - second).double().square()
    return float((moved if bound.counts is None else bound.counts * moved).sum().sqrt())


def masked_std(
    epsilon: float,
    delta: float,
    rows: int,
    layout: EnsembleLayout,
    unit: Unit,
    answer: RowAnswer,
    k: int,
    tolerated: int,
) -> float:
    bound, rho = rows_bound(layout, answer, k), zcdp_rho(epsilon, delta)
    return masked_noise_std(rho, rows, bound, unit, layout.holders, tolerated)


def local(strength: float, holders: int = 1) -> NoisePlan:
    return NoisePlan(NoiseMode.LOCAL, strength, holders)
