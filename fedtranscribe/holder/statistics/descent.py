"""Descent: gradients of a linear classifier's loss, summed over all records."""

from collections.abc import Iterator, Mapping

from torch import Tensor
from torch.nn.functional import one_hot

from fedtranscribe.errors import ConfigError, ModelMismatchError
from fedtranscribe.holder.statistics.record_rows import RecordRows
from fedtranscribe.mechanisms import (
    Mechanism,
    gaussian_mechanism,
    gradient_sums,
    gradients_bound,
)
from fedtranscribe.privacy.noise_plan import NoisePlan
from fedtranscribe.query import MOST_FEATURES, DescentQuery, Kind, Scalar


class Descent:
    """Σ u rᵀ: rows of the records' features times what a classifier missed their labels by.

    Args:
        rows: of the records; shared with `Moments`, so that features are computed once.

    Guarantee:
        The bound is that of `gradients_bound`; rows are those of `RecordRows`, and residuals a
        function of a row, its label and the public query.
    """

    kind = Kind.DESCENT

    def __init__(self, rows: RecordRows) -> None:
        self._rows = rows

    def expect(self, shapes: Mapping[str, tuple[int, ...]], terms: Mapping[str, Scalar]) -> int:
        """See `Statistic`."""
        raw, classes = self._rows.coefficients, self._rows.images.classes
        _, k = shapes["map"]
        allowed = {"centre": (raw,), "map": (raw, k), "head": (k + 1, classes)}
        if shapes != allowed or not 1 <= k < MOST_FEATURES:
            raise ConfigError(
                f"Expected a centre [{raw}], a map [{raw}, k] and a head [k + 1, {classes}], got "
                f"{shapes}."
            )
        return 1

    def check(self, query: DescentQuery) -> None:
        """See `Statistic`."""
        self._rows.check(query)
        if query.classes != self._rows.images.classes:
            raise ModelMismatchError(
                f"Expected a head of {self._rows.images.classes} classes, got {query.classes}."
            )

    def mechanism(self, query: DescentQuery, plan: NoisePlan) -> Mechanism:
        """See `Statistic`."""
        return gaussian_mechanism(gradients_bound(query.features, query.classes), plan)

    def values(self, query: DescentQuery) -> Tensor:
        """See `Statistic`."""
        return gradient_sums(self._missed(query), query.features, query.classes)[None]

    def _missed(self, query: DescentQuery) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, residuals and weights, some records at a time."""
        head = query.head.double()
        for rows, labels, weights in self._rows.blocks(query):
            said = (rows.cpu().double() @ head).softmax(1)
            yield rows, said - one_hot(labels, query.classes), weights
