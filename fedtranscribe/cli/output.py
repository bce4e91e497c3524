"""What the command line prints: everything that reaches a terminal goes through here.

Names of runs, holders and data, keys of files and paths come from outside. They are shown as the
characters that they are: never as markup, escape sequences, or lines of their own.
"""

import codecs
import io
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedtranscribe.text import printable

_SPELLED = {
    "ε": "epsilon", "δ": "delta", "α": "alpha", "μ": "mu", "σ": "sigma", "ρ": "rho", "τ": "tau",
    "√": "sqrt", "²": "^2", "≤": "<=", "≥": ">=", "±": "+-", "×": "x", "−": "-", "·": "-",
    "…": "...", "→": "->",
}  # fmt: skip
"""How a stream writes characters that its encoding lacks; any other one is a question mark."""

Cell = str | tuple[str, ...]
"""Of a table: a text, or several lines of it."""


def print_in_any_encoding() -> None:
    """Let standard output and error spell what their encoding lacks, where they would raise."""
    codecs.register_error("fedtranscribe.spell", _spell)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="fedtranscribe.spell")


def _spell(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(_SPELLED.get(character, "?") for character in lacking), error.end


def emit(result: Mapping[str, Any], as_json: bool, title: str) -> None:
    """Print a result, as a table for people or as one JSON object for programs.

    Args:
        result: values, or mappings of values one level deep; an infinite number means "no
            guarantee" and is null in JSON.
        as_json: JSON instead of a table.
        title: the table's title.
    """
    if as_json:
        emit_json(result)
    else:
        show_table(title, (), ((name, _format_value(value)) for name, value in _flat(result)))


def emit_json(value: Any) -> None:
    """Print a value as JSON in ASCII; an infinite number is null."""
    document = json.dumps(_finite(value), indent=2, allow_nan=False)
    # The one control character that JSON leaves as it is.
    typer.echo(document.replace("\x7f", "\\u007f"), file=sys.stdout)


def say(words: object, style: str = "") -> None:
    """Print a line on standard output, wrapped where the terminal ends.

    Args:
        words: what to print.
        style: of the whole line, in rich's words, such as "dim" or "bold red".
    """
    Console().print(Text(printable(words), style))


def say_path(words: str, path: object) -> None:
    """Print a line with a path at its end, which is never wrapped, so that it can be copied."""
    Console().print(Text(printable(f"{words}: {path}", most=10_000)), soft_wrap=True)


def warn(words: object) -> None:
    """Print a line on standard error."""
    typer.echo(printable(words), file=sys.stderr)


def show_table(
    title: object,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    right: Sequence[str] = (),
    lines: bool = False,
) -> None:
    """Print a table.

    Args:
        title: above it.
        columns: their names; without any there are two and no header, the first never wrapped.
        rows: of cells.
        right: columns that are justified to the right.
        lines: whether rows are parted by lines.
    """
    table = Table(
        title=Text(printable(title), "table.title"),
        title_justify="left",
        show_header=bool(columns),
        show_lines=lines,
    )
    if not columns:
        table.add_column(no_wrap=True)
        table.add_column()
    for name in columns:
        justify = "right" if name in right else "left"
        table.add_column(Text(name), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(cell)) for cell in row))
    Console().print(table)


def _cell(cell: Cell) -> str:
    return "\n".join(map(printable, cell)) if isinstance(cell, tuple) else printable(cell)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _flat(result: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in result.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}: {inner}", entry) for inner, entry in value.items())
        else:
            yield name, value


def _format_value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if math.isfinite(value) else "infinite: no guarantee"
    return str(value)
