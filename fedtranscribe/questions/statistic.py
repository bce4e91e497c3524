"""The seam between a kind of query and everything that is the same for all of them."""

from collections.abc import Mapping
from typing import Protocol, TypeVar

from torch import Tensor

from fedtranscribe.noise.mechanisms import Mechanism
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.questions.question import Query, Scalar

Q = TypeVar("Q", bound=Query, contravariant=True)


class Statistic(Protocol[Q]):
    """What a holder computes for one kind of query, from its teachers or its records.

    The methods are called in this order; the ledger is charged before the last one. Only those
    before it may refuse anything, since they see public values alone.

    Attributes:
        kind: of the queries that it answers.
    """

    @property
    def kind(self) -> str:
        """Of the queries that it answers."""
        ...

    def expect(self, shapes: Mapping[str, tuple[int, ...]], terms: Mapping[str, Scalar]) -> int:
        """Refuse a query by the shapes of its arrays, before anything is made of them.

        Args:
            shapes: by array.
            terms: the query's own.

        Returns:
            How many rows are asked.

        Raises:
            ConfigError, KeyError, ValueError: nothing that could be answered.
        """
        ...

    def check(self, query: Q) -> None:
        """Refuse a query that does not fit the private side's public facts.

        Raises:
            ConfigError, ModelMismatchError: names what is wrong.
        """
        ...

    def mechanism(self, query: Q, plan: NoisePlan) -> Mechanism:
        """What the values go through; it knows their bound.

        Raises:
            ConfigError: noise that this kind cannot have.
        """
        ...

    def values(self, query: Q) -> Tensor:
        """The vectors [rows, width]; NOT private, so they go nowhere but into the mechanism."""
        ...
