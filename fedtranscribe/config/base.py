"""What all settings have in common: frozen, typed, checked at once, and marked field by field.

A field says everything about itself: kind, default and bounds to pydantic, its meaning in one
sentence that the command line and the reference show, and by its marks what else holds for it.
"""

import difflib
from dataclasses import dataclass
from enum import Flag, StrEnum, auto
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fedtranscribe.errors import ConfigError
from fedtranscribe.files import parse_toml, read_bounded


class Mark(Flag):
    """What else holds for a field; stands in its annotation: `Annotated[int, Mark.INCIDENTAL]`."""

    RESUMABLE = auto()
    """May change between an interrupt and `--resume`: where and how a run is computed."""
    INCIDENTAL = auto()
    """Runs that differ in it alone are compared as runs of one kind: chance, place, patience."""
    UNTOLD = auto()
    """Not shown to others: the holder's paths and machines, and how long to wait for them."""
    NO_OPTION = auto()
    """No option of the command line; a settings file or Python says it."""


CIRCUMSTANCE = Mark.RESUMABLE | Mark.INCIDENTAL | Mark.UNTOLD
"""Where a run is computed and how it is started: part of no result."""


class Topic(StrEnum):
    """The heading under which a command's help shows a field; without one, "Options"."""

    DATA = "Data"
    PRIVACY = "Privacy"
    RUN = "Run"


@dataclass(frozen=True)
class Metavar:
    """What a text can be, as a command's help shows it: NAME, FILE, a|b|…."""

    words: str


class Settings(BaseModel):
    """Base of all settings: immutable, and unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


S = TypeVar("S", bound=Settings)


def marked(mark: Mark, *kinds: type[Settings]) -> frozenset[str]:
    """Names of the fields that bear a mark, in any of the kinds of settings; tables as a whole."""
    return frozenset(
        name
        for kind in kinds
        for name, field in kind.model_fields.items()
        if any(isinstance(found, Mark) and mark in found for found in field.metadata)
    )


def build(kind: type[S], values: dict[str, Any]) -> S:
    """Validate values into settings."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(_one_line(kind, e) for e in error.errors())) from None


def _one_line(kind: type[Settings], error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    if not where:
        return message
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(str(error["loc"][-1]), _names(kind, error["loc"]), n=2)
        hint = f"did you mean {' or '.join(close)}?" if close else "remove it or check its spelling"
        return f"Unknown setting {where}; {hint}"
    return f"{where}={error['input']!r}: {message[0].lower()}{message[1:]}"


def _names(kind: type[BaseModel], where: tuple[Any, ...]) -> list[str]:
    """The settings of the table that a place is in; none where that is in a list."""
    for table in where[:-1]:
        field = kind.model_fields.get(str(table))
        inner = None if field is None else field.annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        kind = inner
    return list(kind.model_fields)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a settings file."""
    try:
        return parse_toml(read_bounded(path).decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"Cannot read the settings file {path}: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from None
