"""Labels: top-k randomised response of one teacher, or a label drawn by an ensemble's votes."""

from torch import Tensor

from fedtranscribe.mechanisms import Mechanism, label_mechanism, vote_counts
from fedtranscribe.privacy.noise_plan import NoisePlan
from fedtranscribe.query import ImageQuery, Kind
from fedtranscribe.statistics.image_query import OfTeachers


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
