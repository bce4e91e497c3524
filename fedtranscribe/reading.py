"""Reading JSON and TOML that somebody else may have written.

Every file and message that holds JSON or TOML is read here. Size and depth are bounded, and all
that can be wrong with the content is a ValueError: a parser by itself raises RecursionError on
`[[[[…`, and so does everything that later walks what it has parsed.
"""

import errno
import json
import stat
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MOST_BYTES = 64 * 2**20
"""Size of the largest document; the events of a thousand holders are a few MiB."""

MOST_LEVELS = 50
"""How deep a document may be nested; ours have about ten levels."""


def read_bounded(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file.

    Args:
        path: of the file; anything but a regular file is refused, since a pipe would block.
        most: bytes that it may have.

    Raises:
        OSError: it cannot be read, or is no regular file.
        ValueError: it is larger.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with path.open("rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise ValueError(f"more than {most:,} bytes")
    return content


def parse_json(text: str | bytes, most: int = MOST_BYTES) -> Any:
    """What a JSON document holds.

    Args:
        text: the document.
        most: characters or bytes that it may have.

    Raises:
        ValueError: it is no JSON, too large or nested too deeply.
    """
    if len(text) > most:
        raise ValueError(f"more than {most:,} bytes")
    try:
        return _shallow(json.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_toml(text: str, most: int = MOST_BYTES) -> dict[str, Any]:
    """What a TOML document holds.

    Raises:
        ValueError: it is no TOML, too large or nested too deeply.
    """
    if len(text) > most:
        raise ValueError(f"more than {most:,} bytes")
    try:
        return _shallow(tomllib.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path, most: int = MOST_BYTES) -> Any:
    """What a JSON file holds.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no JSON, too large or nested too deeply.
    """
    return parse_json(read_bounded(path, most), most)


def read_json_lines(path: Path) -> list[Any]:
    """What each line of a file holds.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too large, or a line is no JSON or nested too deeply.
    """
    return [parse_json(line) for line in read_bounded(path).splitlines()]


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where it is absent or not whole yet."""
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def json_objects(lines: Iterable[str | bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects of lines; a line that is none is passed over."""
    for line in lines:
        try:
            value = parse_json(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def _shallow(value: Any) -> Any:
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [inner for outer in level for inner in _containers(outer)]
        if not level:
            return value
    raise ValueError("nested too deeply")


def _containers(value: Any) -> Iterator[Any]:
    entries = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        yield from (entry for entry in entries if isinstance(entry, dict | list))
