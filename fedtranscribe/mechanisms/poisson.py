"""Poisson batches: every record tosses its own secret coin for every step.

A shuffled pass over the data, cut into batches of one size, is something else: it has no such
guarantee, and its batch sizes never vary.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.mechanisms.bits import BitSource, OsBits
from fedtranscribe.privacy.dpsgd_plan import DpSgdPlan


class PoissonBatches:
    """The batches of a plan, or one process's part of them.

    Args:
        plan: n records, expected batch m.
        bits: where coins come from; OS entropy unless a test seeds it. Processes that sample
            together need different bits.
        rank: this process's place among `ranks`; it tosses for records rank, rank + ranks, ….
        ranks: processes that train one model together.

    Guarantee:
        Exact: a record is in with probability m/n and nothing else. A 64-bit word below the
        largest multiple of n is uniform modulo n, others are drawn again, and a record is in when
        its remainder is below m. Coins of different records and steps are independent. Parts of
        several ranks are disjoint, and their union is such a batch; no rank need know another's.
        Which records are in is as secret as the records: indices must not be logged, nor |I|.

    Raises:
        ConfigError: a rank that is none.
    """

    def __init__(
        self, plan: DpSgdPlan, bits: BitSource | None = None, rank: int = 0, ranks: int = 1
    ) -> None:
        if not 0 <= rank < ranks:
            raise ConfigError(f"Expected rank={rank} between 0 and ranks-1={ranks - 1}.")
        self._plan = plan
        self._bits = OsBits() if bits is None else bits
        self._own = np.arange(rank, plan.records, ranks)

    @property
    def private(self) -> bool:
        """Whether a run that used these batches may call itself private."""
        return self._bits.private

    def draw(self) -> Tensor:
        """One step's indices, int64 [|I|], ascending; often enough there are none."""
        remainders = self._remainders(len(self._own))
        return torch.from_numpy(self._own[remainders < np.uint64(self._plan.batch)])

    def __iter__(self) -> Iterator[Tensor]:
        """The batches of all steps of the plan."""
        for _ in range(self._plan.steps):
            yield self.draw()

    def _remainders(self, count: int) -> np.ndarray:
        """So many numbers, uniform in [0, n)."""
        words = self._bits.words(count).copy()
        n = self._plan.records
        last = np.uint64(2**64 // n * n - 1)
        while (beyond := words > last).any():
            words[beyond] = self._bits.words(int(beyond.sum()))
        return words % np.uint64(n)


def shuffled(records: Tensor, bits: BitSource) -> Tensor:
    """The same records in a secret order, every one equally likely.

    Args:
        records: int64 [b].
        bits: where the order comes from.

    Guarantee:
        The order is that of b uniform 64-bit words. Two of them are equal with probability
        b² 2⁻⁶⁵, and then stand in the order given.
    """
    order = np.argsort(bits.words(len(records)), kind="stable")
    return records[torch.from_numpy(order)]
