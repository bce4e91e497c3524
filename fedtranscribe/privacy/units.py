"""The words of every guarantee, and the checks of its numbers."""

import math
from dataclasses import dataclass
from enum import StrEnum

from fedtranscribe.errors import ConfigError


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


LARGEST_DISTANCE = 1e12
"""A μ beyond which nothing is private by any standard: ε of one answer would be 5e23. Sums and
squares of what is smaller are doubles, whatever the counts."""

LARGEST_EPSILON = 1e23
"""The μ of one answer of this ε is below LARGEST_DISTANCE."""


def expect(holds: bool, what: str) -> None:
    """Refuse what does not hold; `what` names the value and its bound.

    Raises:
        ConfigError: it does not hold.
    """
    if not holds:
        raise ConfigError(f"Expected {what}.")


def expect_count(count: int) -> None:
    """Refuse to count fewer than one.

    Raises:
        ConfigError: less than 1.
    """
    expect(count >= 1, f"count={count} >= 1")


def expect_distance(name: str, value: float) -> None:
    """Refuse a distance over the noise that is negative, or whose square is no double.

    Raises:
        ConfigError: outside of [0, LARGEST_DISTANCE], or not a number.
    """
    expect(0 <= value <= LARGEST_DISTANCE, f"0 <= {name}={value} <= {LARGEST_DISTANCE:g}")


def expect_epsilon(epsilon: float) -> None:
    """Refuse an ε that promises nothing, or that doubles cannot be calculated with.

    Raises:
        ConfigError: not positive, not finite, or above LARGEST_EPSILON.
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ConfigError(f"Expected epsilon={epsilon} > 0 and finite.")
    expect(epsilon <= LARGEST_EPSILON, f"epsilon={epsilon:g} <= {LARGEST_EPSILON:g}")


def expect_delta(delta: float) -> None:
    """Refuse a δ that is no small probability.

    Raises:
        ConfigError: outside (0, 1).
    """
    if not 0 < delta < 1:
        raise ConfigError(f"Expected 0 < delta={delta} < 1.")
