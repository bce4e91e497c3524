"""Votes: the mean over teachers of their softmax rows."""

import torch.nn.functional as F
from torch import Tensor

from fedtranscribe.noise.mechanisms import Mechanism, gaussian_mechanism
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import RowAnswer
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.rows import (
    ImageQuery,
    OfTeachers,
    RowBound,
    mean_rows,
    mean_rows_bound,
)


class MeanVotes(OfTeachers):
    """The mean over shards of the teachers' softmax rows, within the student's classes.

    Args:
        teachers: an ensemble on disjoint shards of the holder's records.

    Guarantee:
        The bound is that of `mean_rows_bound`: softmax rows have no negative entry and sum to one.
    """

    kind = Kind.VOTE

    def mechanism(self, query: ImageQuery, plan: NoisePlan) -> Mechanism:
        """See `Statistic`."""
        bound = mean_rows_bound(self._teachers.facts.shards, RowAnswer.VOTE, query.k)
        return gaussian_mechanism(bound, plan)

    def values(self, query: ImageQuery) -> Tensor:
        """See `Statistic`."""
        logits = self._teachers.logits(query.images)
        rows = (F.softmax(shard.double(), dim=-1) for shard in logits)
        return mean_rows(rows, query.index_sets, self._teachers.facts.shards, RowBound.SIMPLEX)
