"""Which mechanism answers pass through, by the public plan that holder and server agree on.

Both call these: the server to say what a run costs, the holder to book it.
"""

import math

from fedtranscribe.errors import ConfigError
from fedtranscribe.mechanisms.bounded import Bound
from fedtranscribe.mechanisms.gaussian import CentralNoise, LocalNoise
from fedtranscribe.mechanisms.labels import ExponentialVoteLabels, TopKRandomizedResponse
from fedtranscribe.mechanisms.masked import MaskedShare, masked_noise_std
from fedtranscribe.mechanisms.mean_rows import mean_rows_bound
from fedtranscribe.privacy.calibrate import EnsembleLayout, noise_std
from fedtranscribe.privacy.noise_plan import NoisePlan, expect_tolerable
from fedtranscribe.privacy.units import NoiseMode, RowAnswer, Unit
from fedtranscribe.privacy.zcdp import zcdp_rho

Labels = TopKRandomizedResponse | ExponentialVoteLabels
Mechanism = LocalNoise | CentralNoise | MaskedShare | Labels


def row_noise(
    epsilon: float,
    delta: float,
    rows: int,
    k: int,
    layout: EnsembleLayout,
    unit: Unit = Unit.RECORD,
    answer: RowAnswer = RowAnswer.GRADIENT,
    mode: NoiseMode = NoiseMode.CENTRAL,
    failures: tuple[int, int] = (0, 0),
    share: float = 1.0,
) -> NoisePlan:
    """The noise under which `rows` mean rows of teachers cost ε; runs and calculators take it here.

    Args:
        epsilon: of all rows.
        delta: of all rows.
        rows: in all.
        k: numbers in a row.
        layout: of the teachers.
        unit: what ε protects.
        answer: what a row is.
        mode: where the noise is added.
        failures: under `secagg`, how many holders may drop out, and how many may collude.
        share: of the budget, in μ² or ρ.

    Raises:
        ConfigError: a value is out of range.
    """
    if mode is NoiseMode.SECAGG:
        expect_tolerable(layout.holders, *failures)
        rho, bound = share * zcdp_rho(epsilon, delta), mean_rows_bound(layout.shards, answer, k)
        std = masked_noise_std(rho, rows, bound, unit, layout.holders, sum(failures))
        return NoisePlan(mode, std, layout.holders, *failures)
    # μ goes with 1/std, and it is μ² that is shared out.
    std = noise_std(epsilon, delta, rows, layout, unit, answer, mode) / math.sqrt(share)
    return NoisePlan(mode, std, layout.holders)


def gaussian_mechanism(bound: Bound, plan: NoisePlan) -> LocalNoise | CentralNoise | MaskedShare:
    """Noise on bounded vectors, where the plan places it."""
    if plan.mode is NoiseMode.LOCAL:
        return LocalNoise(bound, plan.strength, plan.holders)
    if plan.mode is NoiseMode.CENTRAL:
        return CentralNoise(bound, plan.strength, plan.holders)
    return MaskedShare(bound, plan.strength, plan.holders, plan.tolerated)


def label_mechanism(shards: int, k: int, plan: NoisePlan) -> Labels:
    """Labels that are private by themselves: of one teacher, or of an ensemble's votes.

    Raises:
        ConfigError: another mode than `local`; a label has no noise that somebody else could add.
    """
    if plan.mode is not NoiseMode.LOCAL:
        raise ConfigError(f"Expected noise mode local with label answers, got {plan.mode}.")
    if shards == 1:
        return TopKRandomizedResponse(plan.strength, k)
    return ExponentialVoteLabels(plan.strength, k)
