"""How much noise a target ε needs: for ensembles with Gaussian noise, and for labels.

Everything is per coordinate on the MEAN over holders of rows of norm 1, so that figures compare
across ensembles and noise modes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.accountant import epsilon as epsilon_of_plan
from fedtranscribe.privacy.closed_forms import gaussian_mu
from fedtranscribe.privacy.events import Event
from fedtranscribe.privacy.label_events import ExponentialVotes, RandomizedResponse
from fedtranscribe.privacy.units import NoiseMode, RowAnswer, Unit, expect_delta, expect_epsilon

DIAMETERS = {RowAnswer.GRADIENT: 2.0, RowAnswer.VOTE: math.sqrt(2)}
"""How far apart two answers for one row can lie: unit rows, or one-hot and softmax rows."""

ROUNDING = 1e-6
"""Relative room in every sensitivity for floating-point rounding of rows that were clamped."""

RAW_ROUNDING = 2.0**-21
"""Absolute room for raw rows, which travel as float32 before the noise: each coordinate moves by
2⁻²⁴ of itself, so a row of norm 1 by 2⁻²⁴ and two neighbours by 2⁻²³; bounding the rounded rows
again at most doubles that, and the rest is spare."""

Accountant = Callable[[Sequence[Event], float], float]

_LARGEST_LABEL_EPSILON0 = 100.0


@dataclass(frozen=True)
class EnsembleLayout:
    """How many teachers there are on disjoint records, and among how many holders.

    Attributes:
        teachers: M, over all holders.
        holders: m; every holder has the same number of shards.
    """

    teachers: int
    holders: int = 1

    def __post_init__(self) -> None:
        for name, value in (("teachers", self.teachers), ("holders", self.holders)):
            if value < 1:
                raise ConfigError(f"Expected {name}={value} >= 1.")
        if self.teachers % self.holders:
            raise ConfigError(
                f"Expected teachers={self.teachers} to be a multiple of holders={self.holders}: "
                f"every holder needs the same number of shards."
            )

    @property
    def shards(self) -> int:
        """Teachers per holder, p = M / m."""
        return self.teachers // self.holders


def mean_sensitivity(layout: EnsembleLayout, unit: Unit, answer: str, noise: NoiseMode) -> float:
    """How far one unit moves the mean row, counted against noise on the mean.

    Guarantee
        A record sits in one shard of one holder, so the holder's own row moves by at most D / p,
        D the diameter of an answer; a whole holder moves it by D. Under `central` and `secagg`
        only the mean of m such rows is seen, with all the noise: D / (m p) or D / m. Under
        `local` the holder's own row is seen, with a noise std of √m s where s is the std on the
        mean: the figure returned is sensitivity / √m, so that μ = figure / s in all modes.
        Under `secagg` it leaves out what rounding and shares of noise add: it serves forecasts of
        what answers can carry at most, and what is booked is `mechanisms.masked`'s.
        Inflated by `ROUNDING`, and under `central` by `RAW_ROUNDING`.

    Raises:
        ConfigError: there is no such answer.
    """
    if answer not in list(RowAnswer):
        raise ConfigError(f"Expected answer={answer!r} to be one of {', '.join(RowAnswer)}.")
    diameter = DIAMETERS[RowAnswer(answer)]
    own_row = diameter / (layout.shards if unit is Unit.RECORD else 1)
    if noise is NoiseMode.CENTRAL:
        own_row += RAW_ROUNDING
    scale = math.sqrt(layout.holders) if noise is NoiseMode.LOCAL else layout.holders
    return own_row / scale * (1 + ROUNDING)


def row_mu(
    noise_std: float,
    layout: EnsembleLayout,
    unit: Unit = Unit.RECORD,
    answer: str = RowAnswer.GRADIENT,
    noise: NoiseMode = NoiseMode.CENTRAL,
) -> float:
    """μ of one row under a noise std on the mean; n rows cost √n times as much.

    Raises:
        ConfigError: noise_std is not positive and finite, there is no such answer, or the noise is
            that of masked sums, whose cost is no μ: see `mechanisms.placement.row_noise`.
    """
    _expect_one_gaussian(noise)
    if not (noise_std > 0 and math.isfinite(noise_std)):
        raise ConfigError(f"Expected noise_std={noise_std} > 0 and finite.")
    return mean_sensitivity(layout, unit, answer, noise) / noise_std


def noise_std(
    epsilon: float,
    delta: float,
    rows: int,
    layout: EnsembleLayout,
    unit: Unit = Unit.RECORD,
    answer: str = RowAnswer.GRADIENT,
    noise: NoiseMode = NoiseMode.CENTRAL,
) -> float:
    """Noise std per coordinate on the mean of unit-norm rows, so that `rows` rows cost ε.

    The inverse of `row_mu` at μ*(ε) / √rows. Source: privacy law, sections 2 and 4.

    Raises:
        ConfigError: a value is out of range, or the noise is that of masked sums, see `row_mu`.
    """
    _expect_one_gaussian(noise)
    _expect_rows(rows)
    mu = gaussian_mu(epsilon, delta)
    return mean_sensitivity(layout, unit, answer, noise) * math.sqrt(rows) / mu


def label_epsilon0(
    epsilon: float,
    delta: float,
    rows: int,
    classes: int,
    accountant: Accountant = epsilon_of_plan,
) -> float:
    """ε0 of one label by randomised response over `classes`, so that `rows` labels cost ε.

    Args:
        epsilon: target for all labels together.
        delta: target for all labels together.
        rows: labels in all.
        classes: size of the set that is randomised over, at least 2.
        accountant: `accountant.epsilon` for a plan fixed beforehand; `epsilon_filter` where a
            ledger has to admit every single label.

    Raises:
        ConfigError: a value is out of range.
    """
    _expect_rows(rows)
    if classes < 2:
        raise ConfigError(
            f"Expected classes={classes} >= 2; a set of one class carries no information."
        )
    return _largest(
        lambda strength: RandomizedResponse(strength, classes, rows), epsilon, delta, accountant
    )


def vote_eta(
    epsilon: float, delta: float, rows: int, accountant: Accountant = epsilon_of_plan
) -> float:
    """η of the exponential mechanism over votes, so that `rows` labels cost ε.

    Raises:
        ConfigError: a value is out of range.
    """
    _expect_rows(rows)
    return _largest(lambda eta: ExponentialVotes(eta, 2, rows), epsilon, delta, accountant)


def _largest(
    event: Callable[[float], Event], epsilon: float, delta: float, accountant: Accountant
) -> float:
    """The largest strength whose event costs at most ε, found from below."""
    expect_epsilon(epsilon)
    expect_delta(delta)
    lower, upper = 0.0, _LARGEST_LABEL_EPSILON0
    if accountant([event(upper)], delta) <= epsilon:
        return upper
    while upper - lower > 1e-9 * upper:
        middle = (lower + upper) / 2
        if accountant([event(middle)], delta) <= epsilon:
            lower = middle
        else:
            upper = middle
    return lower


def _expect_one_gaussian(noise: NoiseMode) -> None:
    if noise is NoiseMode.SECAGG:
        raise ConfigError(
            "Expected noise local or central: masked sums add discrete noise in shares, which "
            "costs more than one Gaussian of their std. Their noise is found by "
            "fedtranscribe.questions.rows.row_noise, with dropouts and colluders."
        )


def _expect_rows(rows: int) -> None:
    if rows < 1:
        raise ConfigError(f"Expected rows={rows} >= 1.")
