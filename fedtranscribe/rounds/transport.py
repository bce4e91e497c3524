"""What carries queries to holders, and one private answer out of those that come back."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedtranscribe.errors import ProtocolError
from fedtranscribe.noise.gaussian import CentralNoise
from fedtranscribe.noise.sources import NoiseSource
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.questions.capabilities import Capabilities
from fedtranscribe.questions.messages import Message
from fedtranscribe.questions.question import Answer, Query, RawAnswer, is_sum
from fedtranscribe.questions.refusals import RefusalCode
from fedtranscribe.rounds.plan import Part, Plan

Reply = Answer | RawAnswer | RefusalCode | ProtocolError

MakeMessage = Callable[[int, str], Message]
"""The message for a holder, of its number on its node and its name."""


class Transport(Protocol):
    """In process, or over the wire."""

    payload: int  # bytes of arrays that have travelled, both ways
    private: bool  # whether no holder is known to draw its noise from a seed

    def capabilities(self) -> dict[str, Capabilities | RefusalCode | ProtocolError]:
        """Who is there, by name."""
        ...

    def ask(
        self, holders: Sequence[str], query: Query, plan: NoisePlan, run: str
    ) -> dict[str, Reply]:
        """Ask these holders; one that does not answer is absent from the result."""
        ...

    def exchange(
        self, message_type: str, holders: Sequence[str], make: MakeMessage
    ) -> dict[str, Message]:
        """Send each holder a message of its own, and give what came back, unread."""
        ...


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
    return combined if is_sum(asked.kind) else combined.float()


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
