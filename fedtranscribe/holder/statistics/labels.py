"""Labels: top-k randomised response of one teacher, or a label drawn by an ensemble's votes."""

from collections.abc import Mapping

from torch import Tensor

from fedtranscribe.holder.statistics.image_query import expect_fitting, expect_shapes
from fedtranscribe.mechanisms import Mechanism, label_mechanism, vote_counts
from fedtranscribe.privacy.noise_plan import NoisePlan
from fedtranscribe.query import ImageQuery, Kind, Scalar
from fedtranscribe.teachers import Teachers


class Labels:
    """Votes of the teachers within the student's classes; the mechanism makes labels of them.

    Args:
        teachers: an ensemble on disjoint shards of the holder's records.
    """

    kind = Kind.LABEL

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
        return label_mechanism(self._teachers.shards, query.k, plan)

    def values(self, query: ImageQuery) -> Tensor:
        """See `Statistic`."""
        return vote_counts(self._teachers.logits(query.images), query.index_sets)
