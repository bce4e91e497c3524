"""One private row out of several holders' answers: post-processing, but for `central` noise."""

import math
from collections.abc import Sequence

import torch

from fedtranscribe.exchange import Answer, AnswerKind, RawAnswer
from fedtranscribe.federation.plan import FederatedPlan
from fedtranscribe.mechanisms import CentralNoise, NoiseSource
from fedtranscribe.privacy.calibrate import NoiseMode, RowAnswer

_FAR_TAIL = 12.0


def combine(
    answers: Sequence[Answer | RawAnswer], plan: FederatedPlan, noise: NoiseSource
) -> torch.Tensor:
    """One private [n, k] out of the answers, given in the order of the holders' names.

    Labels are summed, since each is evidence of its own; everything else is averaged.

    Args:
        answers: all of the plan's kind, at least one.
        plan: of the run.
        noise: for `central` mode.
    """
    values = [answer.values for answer in answers]
    if plan.noise.mode is NoiseMode.CENTRAL:
        central = CentralNoise(plan.noise.strength, plan.noise.holders, RowAnswer(plan.kind.value))
        return central.noisy_mean(values, noise)
    total = torch.stack(values).double()
    if plan.kind is AnswerKind.LABEL:
        return total.sum(0).float()
    # No honest answer is louder than a row and the far tail of its noise.
    own_std = plan.noise.strength * math.sqrt(plan.noise.holders)
    return (bounded(total, own_std).sum(0) / len(values)).float()


def bounded(values: torch.Tensor, std: float) -> torch.Tensor:
    """Values no louder than a row of norm 1 and the far tail of noise of this std."""
    loudest = 1 + _FAR_TAIL * std
    return values.clamp(-loudest, loudest)
