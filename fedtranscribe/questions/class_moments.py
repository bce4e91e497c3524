"""Class moments: second moments of the rows of the records' features, class by class."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedtranscribe.data.imageset import groups_of
from fedtranscribe.errors import ConfigError, ModelMismatchError
from fedtranscribe.models.fixed_features import row_length
from fedtranscribe.noise.mechanisms import Mechanism, gaussian_mechanism
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.questions.mixture import block_products, products_bound
from fedtranscribe.questions.question import (
    MOST_FEATURES,
    MOST_NUMBERS,
    FeaturesQuery,
    Kind,
    Scalar,
    expect_products,
    triangle_length,
)
from fedtranscribe.questions.record_rows import RecordRows


@dataclass(frozen=True)
class ClassMomentsQuery(FeaturesQuery):
    """Which features' second moments a holder is asked for, for each class.

    Of a record's row u, as in `MomentsQuery`, u uᵀ is added up in the block of its label; of
    several labels, in that of its group (`groups_of`).

    Attributes:
        classes: how many blocks there are.
    """

    classes: int

    def __post_init__(self) -> None:
        """Check everything that is public; only the public query may ever be refused."""
        super().__post_init__()
        if type(self.classes) is not int or self.classes < 2:
            raise ConfigError(f"Expected classes={self.classes!r} as a whole number >= 2.")
        if self.width > MOST_NUMBERS:
            raise ConfigError(f"Expected at most {MOST_NUMBERS} numbers, got {self.width}.")

    @property
    def width(self) -> int:
        """Numbers in an answer."""
        return self.classes * triangle_length(self.entries)


class ClassMoments:
    """Σ u uᵀ ⊗ e_y over rows of the records' features.

    Args:
        rows: of the records; shared with `Moments`, so that features are computed once.

    Guarantee:
        The bound is that of `products_bound`, with a record's label as its block: all classes
        together cost what the second moments of all records cost. Rows, of norm one at most, are
        those of `RecordRows`; sums are exact (`block_products`).
    """

    kind = Kind.CLASS_MOMENTS

    def __init__(self, rows: RecordRows) -> None:
        self._rows = rows

    def expect(self, shapes: Mapping[str, tuple[int, ...]], terms: Mapping[str, Scalar]) -> int:
        """See `Statistic`."""
        raw, classes = self._rows.numbers(terms.get("features")), self._rows.images.facts.groups
        _, k = shapes["map"]
        if shapes != {"centre": (raw,), "map": (raw, k)} or not 1 <= k < MOST_FEATURES:
            raise ConfigError(f"Expected a centre [{raw}] and a map [{raw}, k], got {shapes}.")
        # True is 1, and a sum over one class.
        if type(terms.get("classes")) is not int or terms["classes"] != classes:
            raise ConfigError(f"Expected sums by {classes} classes.")
        entries = row_length(k, expect_products(terms.get("products", 0), k))
        if classes * triangle_length(entries) > MOST_NUMBERS:
            raise ConfigError(f"Expected at most {MOST_NUMBERS} numbers in an answer.")
        return 1

    def check(self, query: ClassMomentsQuery) -> None:
        """See `Statistic`."""
        self._rows.check(query)
        classes = self._rows.images.facts.groups
        if query.classes != classes:
            raise ModelMismatchError(f"Expected sums by {classes} classes, got {query.classes}.")

    def mechanism(self, query: ClassMomentsQuery, plan: NoisePlan) -> Mechanism:
        """See `Statistic`."""
        return gaussian_mechanism(products_bound(query.entries, query.classes), plan)

    def values(self, query: ClassMomentsQuery) -> Tensor:
        """See `Statistic`."""

        def part(records: range) -> Tensor:
            found = self._rows.blocks(query, records)
            parts = ((rows, groups_of(labels), weights) for rows, labels, weights in found)
            return block_products(parts, query.entries, query.classes)

        return self._rows.total(query, part)[None]
