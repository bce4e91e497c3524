"""Queries and answers: the only values in which the student side and a data holder meet.

A query's digest, its form on the wire and its place in a checkpoint all derive from its arrays and
terms, so that a new kind needs no code for any of the three.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.fixed_features import MOST_PRODUCTS, row_length
from fedtranscribe.text import expect_name


def triangle_length(width: int) -> int:
    """Numbers in the upper triangle of a symmetric matrix."""
    return width * (width + 1) // 2


MOST_FEATURES = 4_097
"""Second moments take the square of it in memory."""

Scalar = bool | int | float | str


MOST_NUMBERS = triangle_length(MOST_FEATURES)
"""In an answer of sums."""


class Kind(StrEnum):
    """What a holder is asked for (DPSD Eq. 6's switch, noisy votes, and sums over records).

    Kinds that other packages bring are plain names, see `kinds.Question`.
    """

    GRADIENT = "gradient"
    LABEL = "label"
    VOTE = "vote"
    MOMENTS = "moments"
    MIXTURE = "mixture"
    DESCENT = "descent"
    CLASS_MOMENTS = "class-moments"


def is_sum(kind: str) -> bool:
    """Whether answers of a kind are sums over records; teachers answer the others."""
    return kind not in (Kind.GRADIENT, Kind.LABEL, Kind.VOTE)


@dataclass(frozen=True)
class Query:
    """What the student side asks: public, because it was made from earlier answers only.

    Attributes:
        id: unique within a run; the ledger binds it to `digest()` for ever.
        kind: what is asked for.
    """

    id: str
    kind: str

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
        own = (each.name for each in fields(self))
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
            "kind": str(self.kind),
            "query_id": self.id,
            "arrays": self.arrays,
            "terms": self.terms,
        }


_COMMON = frozenset({"id", "kind"})


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
        if self.map.shape[1] >= MOST_FEATURES:
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
        products: of how many entries all products are entries, too; see `unit_rows_of`.
    """

    features: str
    products: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        """Check everything that is public; only the public query may ever be refused."""
        super().__post_init__()
        # A message may hold any scalar.
        if type(self.features) is not str:
            raise ConfigError(f"Expected features={self.features!r} as a name.")
        axes = self.map.shape[1]
        expect_products(self.products, axes)
        if self.entries > MOST_FEATURES:
            raise ConfigError(f"Expected rows of at most {MOST_FEATURES} entries.")

    @property
    def entries(self) -> int:
        """Of a row: k, products, and the constant."""
        return row_length(self.map.shape[1], self.products)


def expect_products(products: object, axes: int) -> int:
    """Refuse products of more entries than there are, or than anybody asks for.

    Returns:
        The number; a message may hold any scalar.
    """
    if type(products) is not int or not 0 <= products <= min(axes, MOST_PRODUCTS):
        raise ConfigError(f"Expected products={products!r} as a whole number from 0 to {axes}.")
    return products


def expect_flag(multilabel: bool) -> None:
    """Refuse what a query cannot say of several labels; a message may hold any scalar."""
    if type(multilabel) is not bool:
        raise ConfigError(f"Expected multilabel={multilabel!r} as true or false.")


@dataclass(frozen=True)
class AnswerFields:
    """What every form of answer has.

    Attributes:
        query_id: the query's id.
        values: [rows, width], see the form.
        head: (sequence, hash) of the holder's ledger after charging, so that a rolled-back
            ledger is noticed.
    """

    query_id: str
    values: Tensor
    head: tuple[int, str]


class Answer(AnswerFields):
    """What a holder gives back: private by itself, so anyone may see and keep it.

    Labels are one-hot rows.
    """


class RawAnswer(AnswerFields):
    """A holder's bounded values WITHOUT noise, for a server that its own policy trusts.

    Not private: nothing may keep, log or learn from it before the server's noise is added.
    """


class Summand(AnswerFields):
    """A holder's values in integers with its own share of the noise, for a masked sum: int64.

    In units of the mechanism's grid. Not private alone: it leaves the holder under masks only, and
    enters one sum only, for ever.
    """
