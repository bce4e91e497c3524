"""Finished measurements, a line of JSON each: an interrupted benchmark goes on after the last."""

import json
from pathlib import Path
from typing import Any


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All lines of a file, oldest first; none where there is no file yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def add_line(path: Path, line: dict[str, Any]) -> None:
    """Keep a measurement, and print it."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)
