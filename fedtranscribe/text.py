"""Text that came from outside, on its way to a terminal, a log or a page; and the names in it."""

import re
import unicodedata

from fedtranscribe.errors import ConfigError

MOST_CHARACTERS = 2_000
"""Longest text that is shown; the rest is cut, so that no name can bury what stands around it."""

# Last line: what makes a link of a bare address: `://`, an `@`, and a dot before a letter.
_SPECIAL = re.compile(
    r"""
    [\\`*_\[\]<>|\#~&!$]
    | ^\s*[-+=]                           # where a list begins, or a heading is underlined
    | ^\s*\d+[.)](?=\s|$)                 # a numbered list
    | :(?=//) | /(?=/) | @ | \.(?=[^\W\d_])
""",
    re.VERBOSE,
)


def printable(text: object, most: int = MOST_CHARACTERS) -> str:
    """A text on one line, its control characters, direction marks and half code points escaped."""
    whole = str(text)
    if len(whole) > most:
        whole = f"{whole[: most - 1]}…"
    return whole if whole.isprintable() else "".join(map(_visible, whole))


def literal(name: str, most: int = 50) -> str:
    """A name as a text of a matplotlib figure: no formula, whatever it holds, and never left out.

    Args:
        name: what is shown.
        most: characters to keep.
    """
    plain = printable(name, most).replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain  # such labels are hidden otherwise


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: 1 teacher, 2 teachers."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def markdown(text: object, most: int = 100_000) -> str:
    """A text as Markdown that renders as the text itself: no markup, HTML, table cell or link."""
    return _SPECIAL.sub(_escaped, printable(text, most))


def _escaped(found: re.Match[str]) -> str:
    return f"{found[0][:-1]}\\{found[0][-1]}"


def _harmless(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _visible(character: str) -> str:
    if _harmless(character):
        return character
    return character.encode("unicode_escape").decode("ascii")


LONGEST_NAME = 200

_QUOTED = 40
_REPOSITORY = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}", re.ASCII)


def expect_name(what: str, value: str) -> str:
    """The value itself, if it can be a name."""
    if not 0 < len(value) <= LONGEST_NAME or not value.isprintable():
        quoted = repr(value[:_QUOTED]) + ("…" if len(value) > _QUOTED else "")
        raise ConfigError(
            f"Expected {what}={quoted} to have 1 to {LONGEST_NAME} printable characters, "
            f"got {len(value)}."
        )
    return value


def expect_repository(name: str) -> None:
    """Refuse what names no repository on a hub."""
    if _REPOSITORY.fullmatch(name) is None:
        raise ConfigError(f"Expected the repository as OWNER/NAME, got {name[:200]!r}.")
