"""Descent: gradients of a linear classifier's loss, summed over all records."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedtranscribe.errors import ConfigError, ModelMismatchError
from fedtranscribe.models.fixed_features import row_length
from fedtranscribe.noise.bounds import Bound
from fedtranscribe.noise.mechanisms import Mechanism, gaussian_mechanism
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.questions.moments import ROW_UNITS, SUM_BITS, lattice_rows
from fedtranscribe.questions.question import (
    MOST_FEATURES,
    MOST_NUMBERS,
    FeaturesQuery,
    Kind,
    Scalar,
    SumQuery,
    expect_flag,
    expect_products,
)
from fedtranscribe.questions.record_rows import RecordRows, expect_labels
from fedtranscribe.questions.rows import clip_rows

GRADIENTS = "loss-gradients"
"""What the vectors are called in ledgers and events."""


@dataclass(frozen=True)
class DescentQuery(FeaturesQuery):
    """At which linear classifier a holder is asked for the gradient of its records' loss.

    Of a record's row u, as in `MomentsQuery`, and its label this makes r = softmax(u head) − e_y,
    times the weight of its class, clipped to norm 1; u rᵀ is added up. Where a record may have
    several labels y, a vector of 0 and 1, r = sigmoid(u head) − y, each entry times its weight.

    Attributes:
        head: float32 [entries, classes], rows to logits.
        weights: float32 [classes] in [0, 1], what a record of each class counts.
        multilabel: whether records may have several classes.
    """

    head: Tensor
    weights: Tensor
    multilabel: bool = False

    ARRAYS: ClassVar = {**SumQuery.ARRAYS, "head": torch.float32, "weights": torch.float32}

    def __post_init__(self) -> None:
        """Check everything that is public; only the public query may ever be refused."""
        super().__post_init__()
        if self.head.ndim != 2 or len(self.head) != self.entries or self.classes < 2:
            raise ConfigError(f"Expected a head [{self.entries}, classes].")
        if self.weights.shape != (self.classes,):
            raise ConfigError(f"Expected weights [{self.classes}].")
        if not bool(((self.weights >= 0) & (self.weights <= 1)).all()):
            raise ConfigError("Expected weights in [0, 1].")
        expect_flag(self.multilabel)
        if self.width > MOST_NUMBERS:
            raise ConfigError(f"Expected at most {MOST_NUMBERS} numbers, got {self.width}.")

    @property
    def classes(self) -> int:
        """That the classifier tells apart."""
        return self.head.shape[1]

    @property
    def width(self) -> int:
        """Numbers in an answer."""
        return self.entries * self.classes


def gradients_bound(width: int, classes: int) -> Bound:
    """The bound of Σ u rᵀ over records with ‖u‖ ≤ 1 and ‖r‖ ≤ 1.

    Args:
        width: k, numbers in u.
        classes: numbers in r.

    Guarantee:
        Unit: record, or all records of one id, whose weights add up to one at most. u depends on
        the record and the public query; r on the record, its labels and the query, whose classifier
        and weights of classes follow from earlier private answers. A record adds v = u rᵀ with
        ‖v‖ = ‖u‖ ‖r‖ ≤ 1 (Frobenius); several records of one id add Σ w v with Σ w ≤ 1, a point
        of the convex hull of such v and zero, whose points lie no further apart than two of its
        corners.
        Zero-out and add-remove move the sum by ‖v‖ ≤ 1.
        Replace: v' = −v is possible, and nothing lies further apart: 2.
        Here u and r are the truncated rows (`lattice_rows`), so that products and sums are exact.
        A whole holder has no guarantee. Source: full-batch DP-SGD (Abadi et al. 2016), whose
        per-record gradients of a linear layer have exactly this form.
    """
    moves = {Adjacency.ZERO_OUT: 1.0, Adjacency.ADD_REMOVE: 1.0, Adjacency.REPLACE: 2.0}
    return Bound(
        GRADIENTS, width * classes, {Unit.RECORD: moves}, torch.Tensor.double, bits=SUM_BITS
    )


def gradient_sums(
    parts: Iterable[tuple[Tensor, Tensor, Tensor]], width: int, classes: int
) -> Tensor:
    """Add up bounded rows times bounded residuals; NOT private.

    Args:
        parts: rows u [b, k], residuals r [b, classes] and whole weights [b] as from `id_weights`;
            at most 2¹⁶ records in a part.
        width: k.
        classes: how many.

    Returns:
        int64 [k · classes] in units of 2⁻³⁶: Σ u rᵀ, row by row.

    Guarantee:
        Exact, as `moment_sums`: no float64 that is added up reaches 2⁵³.
    """
    total = torch.zeros(width, classes, dtype=torch.int64)
    for rows, residuals, weights in parts:
        weighted = lattice_rows(residuals.cpu()) * weights.double()[:, None]
        total += (lattice_rows(rows.cpu()).T @ weighted).long()
    return total.flatten()


_LONGEST, _HEAD_UNITS = 2.0**20, 2.0**19
_LATTICE = ROW_UNITS * _HEAD_UNITS


class Descent:
    """Σ u rᵀ: rows of the records' features times what a classifier missed their labels by.

    Args:
        rows: of the records; shared with `Moments`, so that features are computed once.

    Guarantee:
        The bound is that of `gradients_bound`; rows are those of `RecordRows`, and residuals a
        function of a row, its labels and the public query alone: logits are sums of whole numbers,
        which are the same in any order, and blocks have one shape. In floats a
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
        entries = row_length(k, expect_products(terms.get("products", 0), k))
        allowed = {"centre": (raw,), "map": (raw, k)}
        allowed |= {"head": (entries, classes), "weights": (classes,)}
        if shapes != allowed or not 1 <= k < MOST_FEATURES:
            raise ConfigError(
                f"Expected a centre [{raw}], a map [{raw}, k], a head [{entries}, {classes}] "
                f"and weights [{classes}], got {shapes}."
            )
        expect_labels(self._rows.images, terms.get("multilabel"))
        return 1

    def check(self, query: DescentQuery) -> None:
        """See `Statistic`."""
        self._rows.check(query)
        if query.classes != self._rows.images.classes:
            raise ModelMismatchError(
                f"Expected a head of {self._rows.images.classes} classes, got {query.classes}."
            )
        expect_labels(self._rows.images, query.multilabel)

    def mechanism(self, query: DescentQuery, plan: NoisePlan) -> Mechanism:
        """See `Statistic`."""
        return gaussian_mechanism(gradients_bound(query.entries, query.classes), plan)

    def values(self, query: DescentQuery) -> Tensor:
        """See `Statistic`."""

        def part(records: range) -> Tensor:
            return gradient_sums(self._missed(query, records), query.entries, query.classes)

        return self._rows.total(query, part)[None]

    def _missed(
        self, query: DescentQuery, records: range
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, residuals and weights, some records at a time."""
        head, by_class = _lattice_head(query.head), query.weights.double()
        for rows, labels, weights in self._rows.blocks(query, records):
            logits = lattice_rows(rows.cpu()) @ head / _LATTICE
            if query.multilabel:
                missed = (_sigmoid(logits) - labels) * by_class
            else:
                found = logits.softmax(1) - one_hot(labels, query.classes)
                missed = found * by_class[labels][:, None]
            yield rows, missed, weights


def _sigmoid(logits: Tensor) -> Tensor:
    """As a softmax of two: every number is treated alike, wherever it stands in the block."""
    return torch.stack([logits, torch.zeros_like(logits)], 2).softmax(2)[:, :, 0]


def _lattice_head(head: Tensor) -> Tensor:
    """A head in whole numbers, so small that no sum of its products with a row is rounded.

    Columns are shortened to norm 2²⁰, beyond which a classifier is sure of everything, and cut to
    multiples of 2⁻¹⁹: with rows of 2⁻¹³ all partial sums are whole numbers below 2⁵².
    """
    shorter = clip_rows(head.double().T / _LONGEST).T * _LONGEST
    return (shorter * _HEAD_UNITS).trunc()
