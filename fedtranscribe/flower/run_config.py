"""From Flower's run-config to a run: its settings, its folder, and how its mistakes are told."""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedtranscribe.config import FederationSettings, build
from fedtranscribe.errors import ConfigError, FedtranscribeError
from fedtranscribe.flower.run_files import ERROR, report_mistake
from fedtranscribe.run_directory import check_writable
from fedtranscribe.text import printable

log = logging.getLogger(__name__)

Serve = Callable[[Grid, FederationSettings, Path], None]

# Run-config has no null: an empty text stands for it, or a number that makes no sense.
_UNSET: Mapping[str, Any] = {
    "out": "",
    "data_root": "",
    "public_data": "",
    "rows": 0,
    "top_k": 0,
    "quorum": 0,
    "dropouts": -1,
    "classes": "",
    "ids": "",
    "id_pattern": "",
    "image_size": 0,
    "bit_depth": 0,
}


def settings_from(run_config: Mapping[str, Any]) -> FederationSettings:
    """Settings out of Flower's flat run-config, whose keys look like `dpsd.round-rows`.

    Raises:
        ConfigError: names every wrong value.
    """
    values: dict[str, Any] = {}
    for key, value in run_config.items():
        *tables, name = key.replace("-", "_").split(".")
        if not tables and name in _UNSET and value == _UNSET[name]:
            continue
        inner = values
        for table in tables:
            inner = inner.setdefault(table, {})
        inner[name] = value
    return build(FederationSettings, values)


def run_folder(settings: FederationSettings, name: str, run_id: int) -> Path:
    """Where a simulation writes: as told, or under the user's home; absolute.

    Flower's daemon keeps the working directory of whoever started it first, so a relative path
    would end up anywhere.

    Raises:
        ConfigError: a relative path.
    """
    if settings.out is None:
        home = Path(os.environ.get("FEDTRANSCRIBE_HOME") or Path.home() / ".fedtranscribe")
        return home / "runs" / f"{name}-{run_id}"
    if not settings.out.is_absolute():
        raise ConfigError(
            f"Expected out={settings.out} as an absolute path: the server does not run in your "
            "working directory."
        )
    return settings.out


def make_server_app(name: str, serve: Serve) -> ServerApp:
    """A ServerApp called `name` that carries out a run.

    Args:
        name: in the run folder's name.
        serve: does it, with the run's settings and folder.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _log_as_flower_does()
        settings = settings_from(context.run_config)
        out = run_folder(settings, name, context.run_id)
        check_writable(out)
        (out / ERROR).unlink(missing_ok=True)
        log.info("run folder: %s", out)
        try:
            serve(grid, settings, out)
        except FedtranscribeError as error:
            # Flower has no other way to fail than to raise; whoever waits reads the file.
            report_mistake(out, error)
            log.error("%s", error)
            raise

    return app


class _OneLine(logging.Handler):
    """Passes our records on, their text on one line: names in them come from messages."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__(handler.level)
        self._handler = handler

    def emit(self, record: logging.LogRecord) -> None:
        told = logging.makeLogRecord(vars(record))
        told.msg, told.args = printable(record.getMessage()), None
        self._handler.handle(told)


def _log_as_flower_does() -> None:
    """Let our lines appear where Flower's do, in `flwr run --stream` and `flwr log`."""
    ours = logging.getLogger("fedtranscribe")
    ours.handlers = [_OneLine(handler) for handler in logging.getLogger("flwr").handlers]
    ours.setLevel(logging.INFO)
    ours.propagate = False
