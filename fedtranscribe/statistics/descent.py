"""Descent: gradients of a linear classifier's loss, summed over all records."""

from collections.abc import Iterator, Mapping

from torch import Tensor
from torch.nn.functional import one_hot, pad

from fedtranscribe.errors import ConfigError, ModelMismatchError
from fedtranscribe.mechanisms import (
    Mechanism,
    clip_rows,
    gaussian_mechanism,
    gradient_sums,
    gradients_bound,
)
from fedtranscribe.mechanisms.moments import ROW_UNITS, lattice_rows
from fedtranscribe.privacy.noise_plan import NoisePlan
from fedtranscribe.query import MOST_FEATURES, DescentQuery, Kind, Scalar
from fedtranscribe.statistics.record_rows import BATCH, RecordRows

_LONGEST, _HEAD_UNITS = 2.0**20, 2.0**19
_LATTICE = ROW_UNITS * _HEAD_UNITS


class Descent:
    """Σ u rᵀ: rows of the records' features times what a classifier missed their labels by.

    Args:
        rows: of the records; shared with `Moments`, so that features are computed once.

    Guarantee:
        The bound is that of `gradients_bound`; rows are those of `RecordRows`, and residuals a
        function of a row, its label and the public query alone: logits are sums of whole numbers,
        which are the same in any order, and softmax always sees blocks of one shape. In floats a
        hostile head can make every logit pure rounding, which follows from how many records there
        are, so that one record would move the residuals of others.
    """

    kind = Kind.DESCENT

    def __init__(self, rows: RecordRows) -> None:
        self._rows = rows

    def expect(self, shapes: Mapping[str, tuple[int, ...]], terms: Mapping[str, Scalar]) -> int:
        """See `Statistic`."""
        raw, classes = self._rows.numbers(terms.get("features")), self._rows.images.classes
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
        return gaussian_mechanism(gradients_bound(query.entries, query.classes), plan)

    def values(self, query: DescentQuery) -> Tensor:
        """See `Statistic`."""

        def part(records: range) -> Tensor:
            return gradient_sums(self._missed(query, records), query.entries, query.classes)

        return self._rows.sums.total(query, part)[None]

    def _missed(
        self, query: DescentQuery, records: range
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, residuals and weights, some records at a time."""
        head = _lattice_head(query.head)
        for rows, labels, weights in self._rows.blocks(query, records):
            missing = BATCH - len(labels)
            whole = pad(lattice_rows(rows.cpu()), (0, 0, 0, missing))
            said = (whole @ head / _LATTICE).softmax(1)[: len(labels)]
            yield rows, said - one_hot(labels, query.classes), weights


def _lattice_head(head: Tensor) -> Tensor:
    """A head in whole numbers, so small that no sum of its products with a row is rounded.

    Columns are shortened to norm 2²⁰, beyond which a classifier is sure of everything, and cut to
    multiples of 2⁻¹⁹: with rows of 2⁻¹³ all partial sums are whole numbers below 2⁵².
    """
    shorter = clip_rows(head.double().T / _LONGEST).T * _LONGEST
    return (shorter * _HEAD_UNITS).trunc()
