"""The words of every guarantee: who is protected, against which change, and by how much."""

from dataclasses import dataclass
from enum import StrEnum


class Unit(StrEnum):
    """Whose presence the guarantee hides."""

    RECORD = "record"
    """One private image and its label; all images of one id, where several share it."""
    HOLDER = "holder"
    """One data holder: all of its records and all of its teachers."""


class Adjacency(StrEnum):
    """Which change of one unit the guarantee hides; totals never mix two of them.

    The null record ⊥ of zero-out keeps its id, its coins, its shard and its place, and adds to
    each mechanism the zero of what that sums: no gradient, no moment, no vote. Only where an image
    must be drawn (dp-promise, Phase I) it is a grey one. One abstract ⊥ is what makes a total over
    different mechanisms mean something: it is the same change in all of them.
    """

    ZERO_OUT = "zero-out"
    """The unit is replaced by the null record ⊥: the headline."""
    REPLACE = "replace"
    """The unit is replaced by any other one."""
    ADD_REMOVE = "add-remove"
    """The unit is added or removed, and nothing else moves."""


@dataclass(frozen=True)
class Guarantee:
    """An (ε, δ) statement that says for whom, against what, and who computed it."""

    unit: Unit
    adjacency: Adjacency
    epsilon: float
    delta: float
    accountant: str
