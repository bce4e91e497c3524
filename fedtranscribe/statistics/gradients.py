"""Gradients: the mean over teachers of their normalised gradients (DPSD Eq. 3)."""

from typing import Literal

from torch import Tensor

from fedtranscribe.mechanisms import Mechanism, RowBound, gaussian_mechanism, mean_rows
from fedtranscribe.mechanisms.mean_rows import mean_rows_bound
from fedtranscribe.methods.distillation import RowGradient, decoupled_distillation, gradient_of
from fedtranscribe.privacy.noise_plan import NoisePlan
from fedtranscribe.privacy.units import RowAnswer
from fedtranscribe.query import ImageQuery, Kind
from fedtranscribe.statistics.image_query import OfTeachers
from fedtranscribe.teachers import Teachers


class MeanGradients(OfTeachers):
    """The mean over shards of bounded gradients of a distillation loss, by the student's logits.

    Args:
        teachers: an ensemble on disjoint shards of the holder's records.
        row_gradient: ∂L_t/∂Φ_s of Eq. 3; benchmarks pass classic distillation.
        bound: unit rows as in Eq. 3, or clipping for the paper's ablation; both lie in the same
            ball, for which `mean_rows_bound` holds.
    """

    kind = Kind.GRADIENT

    def __init__(
        self,
        teachers: Teachers,
        *,
        row_gradient: RowGradient | None = None,
        bound: Literal[RowBound.UNIT, RowBound.CLIP] = RowBound.UNIT,
    ) -> None:
        super().__init__(teachers)
        self._row_gradient = row_gradient or gradient_of(decoupled_distillation)
        self._bound = bound

    def mechanism(self, query: ImageQuery, plan: NoisePlan) -> Mechanism:
        """See `Statistic`."""
        bound = mean_rows_bound(self._teachers.facts.shards, RowAnswer.GRADIENT, query.k)
        return gaussian_mechanism(bound, plan)

    def values(self, query: ImageQuery) -> Tensor:
        """See `Statistic`."""
        student = query.student_logits
        assert student is not None  # ImageQuery refuses it otherwise
        logits = self._teachers.logits(query.images)
        rows = (self._row_gradient(shard, student) for shard in logits)
        return mean_rows(rows, query.index_sets, self._teachers.facts.shards, self._bound)
