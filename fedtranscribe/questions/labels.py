"""Labels: top-k randomised response of one teacher, or drawn by an ensemble's votes."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtranscribe.noise.mechanisms import Mechanism, label_mechanism
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.rows import ImageQuery, OfTeachers, expect_block, gather_rows


def vote_counts(logits: Iterable[Tensor], index_sets: Tensor) -> Tensor:
    """Votes within the student's set.

    A teacher votes for its likeliest class of all c; outside the set, or not finite, it casts no
    vote.

    Args:
        logits: blocks [s, n, c].
        index_sets: int64 [n, k].

    Returns:
        float64 [n, k].

    Raises:
        ValueError: a block is of another shape.
    """
    counts = torch.zeros(index_sets.shape, dtype=torch.float64)
    for block in logits:
        expect_block(block, index_sets)
        votes = F.one_hot(block.nan_to_num().argmax(-1), block.shape[-1]).double()
        votes *= torch.isfinite(block).all(-1, keepdim=True)
        counts += gather_rows(votes, index_sets).sum(0)
    return counts


class Labels(OfTeachers):
    """Votes of the teachers within the student's classes; the mechanism makes labels of them.

    Args:
        teachers: an ensemble on disjoint shards of the holder's records.
    """

    kind = Kind.LABEL

    def mechanism(self, query: ImageQuery, plan: NoisePlan) -> Mechanism:
        """See `Statistic`."""
        return label_mechanism(self._teachers.facts.shards, query.k, plan)

    def values(self, query: ImageQuery) -> Tensor:
        """See `Statistic`."""
        return vote_counts(self._teachers.logits(query.images), query.index_sets)
