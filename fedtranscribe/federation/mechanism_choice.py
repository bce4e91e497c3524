"""Which mechanism answers pass through: agreed between holder and server by the public plan."""

from fedtranscribe.errors import ConfigError
from fedtranscribe.exchange import AnswerKind, NoisePlan
from fedtranscribe.holder import Mechanism
from fedtranscribe.mechanisms import (
    ExponentialVoteLabels,
    NoisyMeanRows,
    QuantisedMeanRows,
    RawMeanRows,
    TopKRandomizedResponse,
)
from fedtranscribe.privacy.calibrate import EnsembleLayout, NoiseMode, RowAnswer


def mechanism_of(kind: AnswerKind, plan: NoisePlan, shards: int, k: int) -> Mechanism:
    """What answers of a holder with so many shards pass through under a plan.

    Holder and server both call it: the server to say what a run costs, the holder to book it.

    Raises:
        ConfigError: labels under another mode than `local`.
    """
    if kind is AnswerKind.LABEL:
        if plan.mode is not NoiseMode.LOCAL:
            raise ConfigError(f"Expected noise mode local with label answers, got {plan.mode}.")
        if shards == 1:
            return TopKRandomizedResponse(plan.strength, k)
        return ExponentialVoteLabels(plan.strength, k)
    layout = EnsembleLayout(plan.holders * shards, plan.holders)
    answer = RowAnswer(kind.value)
    if plan.mode is NoiseMode.LOCAL:
        return NoisyMeanRows(layout, plan.strength, answer)
    if plan.mode is NoiseMode.SECAGG:
        return QuantisedMeanRows(layout, plan.strength, answer, k, plan.tolerated)
    return RawMeanRows(layout, plan.strength, answer)
