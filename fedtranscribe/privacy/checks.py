"""Checks of the numbers that privacy accounting is given."""

import math

from fedtranscribe.errors import ConfigError

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
