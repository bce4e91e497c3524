"""The words of every guarantee: who is protected, against which change, and by how much."""

from dataclasses import dataclass
from enum import StrEnum


class Unit(StrEnum):
    """Whose presence the guarantee hides."""

    RECORD = "record"
    """One private image and its label."""
    HOLDER = "holder"
    """One data holder: all of its records and all of its teachers."""


class Adjacency(StrEnum):
    """Which change of one unit the guarantee hides; totals never mix two of them."""

    ZERO_OUT = "zero-out"
    """The unit is replaced by a null one (grey image, null gradient): the headline."""
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
