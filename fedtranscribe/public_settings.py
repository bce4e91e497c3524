"""The settings of a run that may be shown to others: without the holder's paths and machines."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedtranscribe.config import OF_RUNS, Mark, marked, read_toml


def public_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as a flat table of texts, `table.name` for those in tables.

    Args:
        settings: of a run, resolved.
    """
    untold = marked(Mark.UNTOLD, *OF_RUNS)
    return dict(_flat({name: settings[name] for name in settings if name not in untold}))


def run_and_settings(folder: Path) -> tuple[str, dict[str, str]]:
    """The name of the run in a folder, and what may be shown of its settings.

    Raises:
        ConfigError: there is no run.
    """
    stored = read_toml(folder / "config.toml")
    return str(stored.pop("run", "")), public_settings(stored)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, str) and ("/" in value or "\\" in value):
            yield f"{prefix}{name}", "a file of the holder"
        else:
            yield f"{prefix}{name}", f"{value:g}" if isinstance(value, float) else str(value)
