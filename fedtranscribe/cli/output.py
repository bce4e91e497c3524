"""One result on standard output: a table for people, or one JSON object for programs."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import typer
from rich.console import Console
from rich.table import Table


def emit(result: Mapping[str, Any], as_json: bool, title: str) -> None:
    """Print a result.

    Args:
        result: values, or mappings of values one level deep; an infinite number means "no
            guarantee" and is null in JSON.
        as_json: JSON instead of a table.
        title: the table's title.
    """
    if as_json:
        typer.echo(json.dumps(_finite(result), indent=2, ensure_ascii=False, allow_nan=False))
        return
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in _flat(result):
        table.add_row(name, _shown(value))
    Console().print(table)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _flat(result: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in result.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}: {inner}", entry) for inner, entry in value.items())
        else:
            yield name, value


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if math.isfinite(value) else "infinite: no guarantee"
    return str(value)
