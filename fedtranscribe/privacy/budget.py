"""What a holder allows in total over the life of its data.

A limit is fixed before the answers. The running total is not: whoever may stop when an answer turns
out badly for a record picks the moment at which the total is read, and the total read there
promises too little (`tests/privacy/test_ledger_limit.py` plays that game). So over runs that were
chosen after seeing answers only the limit is called ε; the running total is called booked.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Self

from fedtranscribe.errors import BudgetExhaustedError, ConfigError
from fedtranscribe.privacy.units import Adjacency, Unit

DEFAULT_LIMIT = 20.0
"""ε of a new ledger's limit where nobody names one."""

_ROUNDING = 1e-9
"""Relative slack where a total meets its limit: float rounding of a sum, nothing else."""


@dataclass(frozen=True)
class Budget:
    """The holder's limit over all runs, teachers and methods on one data set.

    Attributes:
        epsilon: at most this much in total. A ledger accepts a finite limit only; `math.inf` is
            what ledgers of early versions may hold, and bounds nothing.
        delta: the δ at which ε is quoted.
        unit: whom it protects.
        adjacency: the neighbouring relation in which ε is quoted; totals never mix two.
    """

    epsilon: float
    delta: float
    unit: Unit
    adjacency: Adjacency

    def __post_init__(self) -> None:
        """Refuse a limit that limits nothing by accident, such as NaN."""
        if not self.epsilon > 0:
            raise ConfigError(f"Expected epsilon={self.epsilon} > 0.")
        if not 0 < self.delta < 1:
            raise ConfigError(f"Expected 0 < delta={self.delta} < 1.")

    @property
    def fixed(self) -> bool:
        """Whether it limits anything."""
        return math.isfinite(self.epsilon)

    def alike(self, other: "Budget") -> bool:
        """Whether both have the same δ, unit and adjacency; only then can they be compared."""
        return replace(self, epsilon=other.epsilon) == other

    def check(self, epsilon: float) -> None:
        """Refuse a total ε above the limit.

        Raises:
            BudgetExhaustedError: with the total and the limit.
        """
        # Not `>`: a total that is not a number has to be refused as well.
        if not epsilon <= self.epsilon * (1 + _ROUNDING):
            raise BudgetExhaustedError(
                f"Expected a total epsilon={epsilon:.6g} <= {self.epsilon:.6g} "
                f"({self.unit.value}, {self.adjacency.value}, delta={self.delta:g}); "
                f"nothing was booked. Ask for fewer rows or a smaller epsilon, or raise the limit: "
                f"--budget, or epsilon in a holder's policy file."
            )

    def to_json(self) -> dict[str, Any]:
        """JSON-able; an infinite ε becomes null."""
        return {
            "epsilon": None if math.isinf(self.epsilon) else float(self.epsilon),
            "delta": float(self.delta),
            "unit": self.unit.value,
            "adjacency": self.adjacency.value,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""
        epsilon = value["epsilon"]
        return cls(
            epsilon=math.inf if epsilon is None else float(epsilon),
            delta=float(value["delta"]),
            unit=Unit(value["unit"]),
            adjacency=Adjacency(value["adjacency"]),
        )
