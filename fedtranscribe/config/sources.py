"""Where a run's settings come from, and where its folder is if nobody names one.

The command line and Python ask for runs in the same way: what they are given wins over a settings
file, and that wins over the settings of the run that is resumed.
"""

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedtranscribe.config.base import read_toml
from fedtranscribe.errors import ConfigError, StorageError

Layers = tuple[dict[str, Any], dict[str, Any]]


def layers(config: Path | None, out: Path | None, *, resume: bool) -> Layers:
    """Settings of the run that is resumed, and of the settings file.

    Args:
        config: the settings file.
        out: the run's folder, which a resumed run was started with.
        resume: whether it goes on.

    Raises:
        ConfigError: nothing says which run to go on with, or a file is absent or is not TOML.
        StorageError: there is no run to go on with.
    """
    if resume and out is None:
        raise ConfigError("Expected --out with --resume: it names the run to go on with.")
    started: dict[str, Any] = {}
    if resume and out is not None:
        if not (out / "config.toml").exists():
            raise StorageError(f"No run in {out} to resume; leave out --resume to start one.")
        started = read_toml(out / "config.toml")
        started.pop("run", None)
    return started, read_toml(config) if config is not None else {}


def new_folder(name: str) -> Path:
    """The folder of a run that nobody has named: `runs/<name>-<date>-<time>-<8 random digits>`.

    The digits keep runs of the same second apart, and nothing is made before a run begins.
    """
    return Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
