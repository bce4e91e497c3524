"""When a release has to say, loudly, that it is not private."""

from fedtranscribe.errors import PrivacyError
from fedtranscribe.releases.statement import PrivacyStatement

LOUD = "NOT PRIVATE. DO NOT RELY ON ANY FIGURE OF PRIVACY IN THIS RELEASE:"
"""How every stamp begins."""


def reasons(statement: PrivacyStatement) -> list[str]:
    """Why the guarantee of a release does not hold; empty where it does."""
    found = []
    if statement.epsilon is None:
        found.append(
            f"method {statement.method} gives no guarantee at all for unit={statement.unit.value} "
            f"under adjacency={statement.adjacency.value}"
        )
    elif not statement.private:
        found.append("its noise came from a seed; anyone who knows the seed can remove it")
    found += [
        f"chosen by looking at private data, and not charged: {choice.choice}"
        for choice in statement.data_dependent_choices
        if choice.stated and not choice.charged
    ]
    return found


def stamp_of(statement: PrivacyStatement) -> str | None:
    """The stamp that a release must carry; None where it needs none."""
    found = reasons(statement)
    return f"{LOUD} {'; '.join(found)}." if found else None


def refuse_unstamped(statement: PrivacyStatement) -> None:
    """Stop what nobody agreed to stamp.

    Raises:
        PrivacyError: says why it would need a stamp, and how to give it one.
    """
    found = reasons(statement)
    if found:
        raise PrivacyError(
            f"This run cannot be released as private: {'; '.join(found)}. "
            "Make a run without that, or add --stamp-not-private to release it with a stamp that "
            "says so."
        )
