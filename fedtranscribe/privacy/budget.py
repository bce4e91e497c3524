"""What a holder allows in total over the life of its data.

A limit is fixed before the answers. The running total is not: a server that may stop when an answer
turns out badly for a record picks the moment at which the total is read, and the total read there
promises too little (`tests/privacy/test_ledger_limit.py` plays that game). So over runs that were
chosen after seeing answers only the limit is called ε; the running total is called booked.
"""

import math
from dataclasses import dataclass, replace
from decimal import ROUND_DOWN, Context, Decimal
from typing import Any, Self

from fedtranscribe.errors import ConfigError
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

    def allows(self, epsilon: float) -> bool:
        """Whether a total ε stays within the limit; one that is not a number does not."""
        return epsilon <= self.epsilon * (1 + _ROUNDING)

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


def room_words(epsilon: float, delta: float) -> str:
    """What still fits under a limit, in words.

    Args:
        epsilon: from `Ledger.room`.
        delta: at which it is quoted.
    """
    shown = two_digits_below(epsilon)
    if shown == 0:
        return "Nothing fits any more"
    return (
        "A run with Gaussian noise (sums over records, votes) still fits with epsilon up to "
        f"{shown:g} at delta={delta:g}"
    )


def two_digits_below(value: float) -> float:
    """A figure >= 0 rounded down to two significant digits: what fitted still fits."""
    if value == 0 or not math.isfinite(value):
        return value
    slack = Decimal(value * (1 + _ROUNDING))  # 11.999999999 is 12
    return float(slack.normalize(Context(prec=2, rounding=ROUND_DOWN)))
