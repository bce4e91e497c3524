"""One private answer out of several holders': post-processing, but for `central` noise."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from fedtranscribe.answer import Answer, RawAnswer
from fedtranscribe.mechanisms import CentralNoise, NoiseSource
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.query import Query
from fedtranscribe.rounds.plan import Part, Plan

_FAR_TAIL = 12.0


def combine(
    query: Query,
    answers: Sequence[Answer | RawAnswer],
    plan: Plan,
    part: int,
    noise: NoiseSource,
) -> Tensor:
    """One private [rows, width] out of the answers, given in the order of the holders' names.

    Labels and sums over records are added up; everything else is averaged.

    Guarantee:
        Under `central` the noise depends on the query, the noise plan and the raw answers, and on
        nothing else. From the same source a second call with the same arguments releases the same
        value, so that a run that was copied or restored from a backup releases nothing new: the
        holders' ledgers give both copies the same raw answers, bit for bit. Raw answers of other
        holders (one did not reply to one of the copies) have noise of their own, since the same
        noise would reveal the difference of the two sums exactly. They are a second release, which
        only whoever copied the run can prevent; see the threat model.

    Args:
        query: that was answered.
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
        name = _name(query, asked, values)
        return mechanism.noisy_sum(values, noise.for_query(name)) / shares
    total = torch.stack(values).double()
    if asked.averaged:
        # No honest answer is louder than a row and the far tail of its noise.
        total = bounded(total, asked.combined_std(1))
    combined = total.sum(0) / shares
    return combined if asked.kind.sums else combined.float()


def _name(query: Query, part: Part, values: Sequence[Tensor]) -> str:
    """Of the noise on raw answers: a digest of everything that their noisy sum depends on."""
    digest = hashlib.sha256(f"{query.digest()}\0{part.noise.words}\0{len(values)}".encode())
    for value in values:
        digest.update(hashlib.sha256(value.contiguous().numpy().tobytes()).digest())
    return digest.hexdigest()


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
