"""Queries: with answers, the only values in which the student side and a data holder meet.

A transport carries them: in process, or as messages. Nothing else crosses. A query's digest, its
form on the wire and its place in a checkpoint all derive from its arrays and terms, so that a new
kind needs no code for any of the three.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.mechanisms.blocks import triangle_length
from fedtranscribe.mechanisms.moments import vector_length
from fedtranscribe.names import expect_name

MOST_FEATURES = 4_097
"""Second moments take the square of it in memory."""
MOST_CUTS = 8
"""Each doubles the blocks of a class."""
MOST_NUMBERS = triangle_length(MOST_FEATURES)
"""In an answer of sums."""
CONSTANT = 0.45
"""b, the last entry of a row for a mixture; with less, noise hides the means of few records."""

Scalar = bool | int | float | str


class Kind(StrEnum):
    """What a holder is asked for (DPSD Eq. 6's switch, noisy votes, and sums over records)."""

    GRADIENT = "gradient"
    LABEL = "label"
    VOTE = "vote"
    MOMENTS = "moments"
    MIXTURE = "mixture"
    DESCENT = "descent"

    @property
    def sums(self) -> bool:
        """Whether it is a sum over records; teachers answer the others."""
        return self in (Kind.MOMENTS, Kind.MIXTURE, Kind.DESCENT)


@dataclass(frozen=True)
class Query:
    """What the student side asks: public, because it was made from earlier answers only.

    Attributes:
        id: unique within a run; the ledger binds it to `digest()` for ever.
        kind: what is asked for.
    """

    id: str
    kind: Kind

    # The type of each array that a kind has; what else a query holds are its terms.
    ARRAYS: ClassVar[Mapping[str, torch.dtype]] = {}
    # The type of an answer's values, and of those that have no noise yet.
    ANSWER: ClassVar[torch.dtype] = torch.float32
    RAW: ClassVar[torch.dtype] = torch.float32
    # Changes whenever the same question is answered by other numbers than before.
    FORM: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Check everything that is public; only the public query may ever be refused."""
        expect_name("query id", self.id)
        for name, array in self.arrays.items():
            if array.dtype != self.ARRAYS[name]:
                raise ConfigError(f"Expected {name} of {self.ARRAYS[name]}, got {array.dtype}.")

    @property
    def rows(self) -> int:
        """How many answers are asked for; each is charged."""
        return 1

    @property
    def width(self) -> int:
        """Numbers in each of them."""
        raise NotImplementedError

    @property
    def arrays(self) -> dict[str, Tensor]:
        """The arrays that this query has, by name."""
        there = {name: getattr(self, name) for name in self.ARRAYS}
        return {name: array for name, array in there.items() if array is not None}

    @property
    def terms(self) -> dict[str, Scalar]:
        """Everything else but id and kind."""
        own = (field.name for field in fields(self))
        return {n: getattr(self, n) for n in own if n not in self.ARRAYS and n not in _COMMON}

    def digest(self) -> str:
        """SHA-256 over everything the answer depends on, byte for byte."""
        words = f"{self.id}\0{self.kind}{self.FORM}\0{sorted(self.terms.items())}"
        h = hashlib.sha256(words.encode())
        for name, array in sorted(self.arrays.items()):
            h.update(f"\0{name} {array.dtype}{tuple(array.shape)}".encode())
            h.update(array.contiguous().cpu().numpy().tobytes())
        return h.hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Strings, scalars and tensors, for a checkpoint; `query_from` is the inverse."""
        return {
            "kind": self.kind.value,
            "query_id": self.id,
            "arrays": self.arrays,
            "terms": self.terms,
        }


_COMMON = frozenset({"id", "kind"})


@dataclass(frozen=True)
class ImageQuery(Query):
    """Images that teachers are asked about, a row each.

    Attributes:
        images: uint8 [n, channels, height, width]; synthetic or public.
        index_sets: int64 [n, k]; the student's top-k classes per row, each row distinct.
        student_logits: float32 [n, classes]; needed by `gradient`, absent otherwise.
    """

    images: Tensor
    index_sets: Tensor
    student_logits: Tensor | None = None

    ARRAYS: ClassVar = {
        "images": torch.uint8,
        "index_sets": torch.int64,
        "student_logits": torch.float32,
    }

    def __post_init__(self) -> None:
        """Check everything that is public; only the public query may ever be refused."""
        super().__post_init__()
        n = len(self.images)
        if self.images.ndim != 4 or n == 0:
            raise ConfigError(
                f"Expected query images [n, c, h, w] with n > 0, got {tuple(self.images.shape)}."
            )
        sets = self.index_sets
        if sets.ndim != 2 or len(sets) != n or sets.shape[1] == 0:
            raise ConfigError(f"Expected index sets [{n}, k], got {tuple(sets.shape)}.")
        ordered = sets.sort(dim=1).values
        if bool((ordered[:, 1:] == ordered[:, :-1]).any()) or bool((ordered[:, 0] < 0).any()):
            raise ConfigError("Expected distinct, non-negative classes in every row's index set.")
        if self.kind is Kind.GRADIENT and self.student_logits is None:
            raise ConfigError("Expected student logits with a gradient query; send them along.")
        logits = self.student_logits
        if logits is not None:
            if logits.ndim != 2 or len(logits) != n or not bool(torch.isfinite(logits).all()):
                raise ConfigError(f"Expected finite student logits [{n}, classes].")
            if int(ordered[:, -1].max()) >= logits.shape[1]:
                raise ConfigError("Expected index sets within the student's classes.")

    @property
    def rows(self) -> int:
        """How many rows are asked; each is charged."""
        return len(self.images)

    @property
    def k(self) -> int:
        """Size of every index set."""
        return self.index_sets.shape[1]

    @property
    def width(self) -> int:
        """Numbers in an answer's row."""
        return self.k


@dataclass(frozen=True)
class SumQuery(Query):
    """What is summed over records: functions of their features, centred and mapped.

    Attributes:
        centre: float32 [d], taken from every image's features.
        map: float32 [d, k], what the rest is mapped by.
    """

    centre: Tensor
    map: Tensor

    ARRAYS: ClassVar = {"centre": torch.float32, "map": torch.float32}
    # Sums over many records need every bit.
    ANSWER: ClassVar = torch.float64
    RAW: ClassVar = torch.int64

    def __post_init__(self) -> None:
        """Check everything that is public; only the public query may ever be refused."""
        super().__post_init__()
        if self.centre.ndim != 1 or self.map.ndim != 2:
            raise ConfigError("Expected a centre [d] and a map [d, k].")
        d = len(self.centre)
        if len(self.map) != d or not 1 <= self.map.shape[1] <= d:
            raise ConfigError(f"Expected a map [{d}, k] with k <= {d}, got {tuple(self.map.shape)}")
        if self.entries > MOST_FEATURES:
            most = MOST_FEATURES - 1
            raise ConfigError(f"Expected at most {most} features, got {self.map.shape[1]}.")
        if not all(bool(torch.isfinite(array).all()) for array in self.arrays.values()):
            raise ConfigError(f"Expected a finite {' and '.join(self.arrays)}.")

    @property
    def entries(self) -> int:
        """k + 1, of a row: the constant is one, too."""
        return self.map.shape[1] + 1


@dataclass(frozen=True)
class FeaturesQuery(SumQuery):
    """What is asked of rows of the records' features: (features − centre) map, brought to norm one.

    Attributes:
        features: which of `models.fixed_features.FIXED`.
    """

    features: str

    def __post_init__(self) -> None:
        """Check everything that is public; only the public query may ever be refused."""
        super().__post_init__()
        # A message may hold any scalar.
        if type(self.features) is not str:
            raise ConfigError(f"Expected features={self.features!r} as a name.")


@dataclass(frozen=True)
class MomentsQuery(FeaturesQuery):
    """Which moments of the records' rows a holder is asked for.

    Attributes:
        classes: of the sums by class that are asked beside the second moments; 0 leaves them out.
    """

    classes: int

    FORM: ClassVar[str] = " by triangle"

    def __post_init__(self) -> None:
        """Check everything that is public; only the public query may ever be refused."""
        super().__post_init__()
        # A message may hold any scalar: 3.0 and True would pass for numbers of classes.
        if type(self.classes) is not int or self.classes < 0:
            raise ConfigError(f"Expected classes={self.classes!r} as a whole number >= 0.")

    @property
    def width(self) -> int:
        """Numbers in an answer."""
        return vector_length(self.entries, self.classes or None)


@dataclass(frozen=True)
class DescentQuery(FeaturesQuery):
    """At which linear classifier a holder is asked for the gradient of its records' loss.

    Of a record's row u, as in `MomentsQuery`, and its label this makes r = softmax(u head) − e_y,
    clipped to norm 1; u rᵀ is added up.

    Attributes:
        head: float32 [k + 1, classes], rows to logits.
    """

    head: Tensor

    ARRAYS: ClassVar = {**SumQuery.ARRAYS, "head": torch.float32}

    def __post_init__(self) -> None:
        """Check everything that is public; only the public query may ever be refused."""
        super().__post_init__()
        if self.head.ndim != 2 or len(self.head) != self.entries or self.classes < 2:
            raise ConfigError(f"Expected a head [{self.entries}, classes].")
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


@dataclass(frozen=True)
class MixtureQuery(SumQuery):
    """Which second moments of their records' low frequencies a holder is asked for.

    Of a record's frequencies minus `centre`, y, this makes ũ = (y map, b) / √(1 + b²) with the
    mapped part clipped; its products are added up in the block that its label and `cuts` say. With
    `rest` instead, what the map leaves of y, times `rest`, is clipped; its squares are added up.

    Attributes:
        cuts: float32 [classes, j, k + 1]: block 2^j·label + Σ 2^i [ũ · cuts[label, i] > 0]; one
            block for everybody where classes = 0.
        rest: 0 for products; otherwise what r is multiplied by, where the map is orthonormal.
    """

    cuts: Tensor
    rest: float

    ARRAYS: ClassVar = {**SumQuery.ARRAYS, "cuts": torch.float32}

    def __post_init__(self) -> None:
        """Check everything that is public; only the public query may ever be refused."""
        super().__post_init__()
        if self.cuts.ndim != 3 or (len(self.cuts) and self.cuts.shape[2] != self.entries):
            raise ConfigError(f"Expected cuts [classes, j, {self.entries}].")
        if self.cuts.shape[1] > (MOST_CUTS if self.classes else 0):
            raise ConfigError(f"Expected at most {MOST_CUTS} cuts per class, none without classes.")
        if type(self.rest) is not float or not 0 <= self.rest < math.inf:
            raise ConfigError(f"Expected rest={self.rest!r} as a finite number >= 0.")
        if self.width > MOST_NUMBERS:
            raise ConfigError(f"Expected at most {MOST_NUMBERS} numbers, got {self.width}.")

    @property
    def classes(self) -> int:
        """How many labels tell blocks apart; 0 where they do not."""
        return len(self.cuts)

    @property
    def blocks(self) -> int:
        """How many sums there are."""
        return max(1, self.classes) * 2 ** self.cuts.shape[1]

    @property
    def width(self) -> int:
        """Numbers in an answer."""
        return len(self.centre) if self.rest else self.blocks * triangle_length(self.entries)


QUERIES: Mapping[Kind, type[Query]] = {
    Kind.GRADIENT: ImageQuery,
    Kind.LABEL: ImageQuery,
    Kind.VOTE: ImageQuery,
    Kind.MOMENTS: MomentsQuery,
    Kind.MIXTURE: MixtureQuery,
    Kind.DESCENT: DescentQuery,
}
"""The form that queries of each kind have."""


def query_from(
    kind: str, query_id: str, arrays: Mapping[str, Tensor], terms: Mapping[str, Scalar]
) -> Query:
    """A query out of what `Query.to_dict` holds, or a message.

    Raises:
        ConfigError, TypeError, ValueError: it cannot be read.
    """
    known = Kind(kind)
    return QUERIES[known](id=query_id, kind=known, **arrays, **terms)
