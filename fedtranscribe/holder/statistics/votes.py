"""Votes: the mean over teachers of their softmax rows."""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from fedtranscribe.holder.statistics.image_query import expect_fitting, expect_shapes
from fedtranscribe.mechanisms import Mechanism, RowBound, gaussian_mechanism, mean_rows
from fedtranscribe.mechanisms.mean_rows import mean_rows_bound
from fedtranscribe.privacy.calibrate import RowAnswer
from fedtranscribe.privacy.noise_plan import NoisePlan
from fedtranscribe.query import ImageQuery, Kind, Scalar
from fedtranscribe.teachers import Teachers


class MeanVotes:
    """The mean over shards of the teachers' softmax rows, within the student's classes.

    Args:
        teachers: an ensemble on disjoint shards of the holder's records.

    Guarantee:
        The bound is that of `mean_rows_bound`: softmax rows have no negative entry and sum to one.
    """

    kind = Kind.VOTE

    def __init__(self, teachers: Teachers) -> None:
        self._teachers = teachers

    def expect(self, shapes: Mapping[str, tuple[int, ...]], terms: Mapping[str, Scalar]) -> int:
        """See `Statistic`."""
        return expect_shapes(shapes, self._teachers)

    def check(self, query: ImageQuery) -> None:
        """See `Statistic`."""
        expect_fitting(query, self._teachers)

    def mechanism(self, query: ImageQuery, plan: NoisePlan) -> Mechanism:
        """See `Statistic`."""
        bound = mean_rows_bound(self._teachers.shards, RowAnswer.VOTE, query.k)
        return gaussian_mechanism(bound, plan)

    def values(self, query: ImageQuery) -> Tensor:
        """See `Statistic`."""
        logits = self._teachers.logits(query.images)
        rows = (F.softmax(shard.double(), dim=-1) for shard in logits)
        return mean_rows(rows, query.index_sets, self._teachers.shards, RowBound.SIMPLEX)
