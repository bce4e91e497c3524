"""Docstrings as the site shows them: guarantees as a section, aligned columns as they stand.

In the code a guarantee is headed by `Guarantee` or `Guarantee:`, and the rooms list their modules
in two columns. Markdown knows neither.
"""

import re
from typing import Any

from griffe import Extension, Object

_GUARANTEE = re.compile(r"^Guarantee$", re.MULTILINE)
_COLUMNS = re.compile(r"^\S.* {2,}\S")


class Docstrings(Extension):
    """Prepares every docstring before it is taken apart."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the text in memory only."""
        if obj.docstring is not None:
            text = _GUARANTEE.sub("Guarantee:", obj.docstring.value)
            obj.docstring.value = "\n\n".join(map(_kept_in_columns, text.split("\n\n")))


def _kept_in_columns(paragraph: str) -> str:
    lines = paragraph.split("\n")
    aligned = sum(bool(_COLUMNS.match(line)) for line in lines)
    if len(lines) < 2 or 2 * aligned < len(lines):
        return paragraph
    return "\n".join(f"    {line}" for line in lines)
