"""Names that a user gives by commas, or a word that stands for several of them."""

import difflib
from collections.abc import Mapping


def chosen_names(
    words: str, known: tuple[str, ...], groups: Mapping[str, tuple[str, ...]], what: str
) -> tuple[str, ...]:
    """What a user means, in the order of `known`.

    Args:
        words: a group, or names by commas.
        known: every name.
        groups: words that stand for several names.
        what: one of them is called, for the message.

    Raises:
        ValueError: a name is unknown; suggests close ones.
    """
    if words in groups:
        return groups[words]
    names = [name.strip() for name in words.split(",") if name.strip()]
    for name in names:
        if name not in known:
            every = [*groups, *known]
            close = difflib.get_close_matches(name, every, n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(every)}"
            raise ValueError(f"no {what} {name!r}; {hint}")
    return tuple(name for name in known if name in names)
