"""The words of every guarantee: who is protected, against which change, by how much, by whom."""

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


class NoiseMode(StrEnum):
    """Where the noise is added, and so whom a record has to trust."""

    LOCAL = "local"
    """Each holder's answer is private by itself: nobody."""
    SECAGG = "secagg"
    """Holders add shares of the noise under masks: not too many of them collude."""
    CENTRAL = "central"
    """The server adds it after seeing raw answers: the server."""


class RowAnswer(StrEnum):
    """What a noisy row is."""

    GRADIENT = "gradient"
    """A gradient of norm at most 1."""
    VOTE = "vote"
    """A one-hot vote or a softmax row."""


@dataclass(frozen=True)
class Guarantee:
    """An (ε, δ) statement that says for whom, against what, and who computed it."""

    unit: Unit
    adjacency: Adjacency
    epsilon: float
    delta: float
    accountant: str
