"""One private answer out of several holders': post-processing, but for `central` noise."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedtranscribe.answer import Answer, RawAnswer
from fedtranscribe.mechanisms import CentralNoise, NoiseSource
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.rounds.plan import Part, Plan

_FAR_TAIL = 12.0


def combine(
    answers: Sequence[Answer | RawAnswer], plan: Plan, part: int, noise: NoiseSource
) -> Tensor:
    """One private [rows, width] out of the answers, given in the order of the holders' names.

    Labels and sums over records are added up; everything else is averaged.

    Args:
        answers: all of the plan's kind, at least one.
        plan: of the run.
        part: of the plan.
        noise: for `central` mode.
    """
    asked, values = plan.parts[part], [answer.values for answer in answers]
    shares = len(values) if asked.averaged else 1
    if asked.noise.mode is NoiseMode.CENTRAL:
        mechanism = asked.mechanism(plan.facts)
        assert isinstance(mechanism, CentralNoise)
        return mechanism.noisy_sum(values, noise) / shares
    total = torch.stack(values).double()
    if asked.averaged:
        # No honest answer is louder than a row and the far tail of its noise.
        total = bounded(total, asked.combined_std(1))
    combined = total.sum(0) / shares
    return combined if asked.kind.sums else combined.float()


def combine_masked(total: Tensor, part: Part, answers: int) -> Tensor:
    """The private [rows, width] that `combine` would make, out of a masked sum.

    Args:
        total: float64 [rows, width], with all of the noise.
        part: of the plan.
        answers: how many holders' vectors are in it.
    """
    if not part.averaged:
        return total
    return bounded((total / answers).float(), part.combined_std(answers))


def bounded(values: Tensor, std: float) -> Tensor:
    """Values no louder than a row of norm 1 and the far tail of noise of this std."""
    loudest = 1 + _FAR_TAIL * std
    return values.clamp(-loudest, loudest)
