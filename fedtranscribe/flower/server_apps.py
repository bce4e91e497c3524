"""The server of our Flower apps: its run folder, its logs, and a mistake for whoever waits."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedtranscribe.config import FederationSettings
from fedtranscribe.errors import ConfigError, FedtranscribeError
from fedtranscribe.flower.apps import settings_from
from fedtranscribe.flower.simulate import ERROR, report_mistake
from fedtranscribe.results.run_directory import check_writable
from fedtranscribe.text import printable

log = logging.getLogger(__name__)


Serve = Callable[[Grid, FederationSettings, Path], None]


def run_folder(settings: FederationSettings, name: str, run_id: int) -> Path:
    """Where a simulation writes: as set, or under the user's home; absolute.

    Flower's daemon keeps the working directory of the user who started it first, so a relative path
    would end up anywhere.
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
    """A ServerApp called `name` that carries out a run."""
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
            # Flower has no other way to fail than to raise; a waiting program reads the file.
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
        short = logging.makeLogRecord(vars(record))
        short.msg, short.args = printable(record.getMessage()), None
        self._handler.handle(short)


def _log_as_flower_does() -> None:
    """Let our lines appear where Flower's do, in `flwr run --stream` and `flwr log`."""
    ours = logging.getLogger("fedtranscribe")
    ours.handlers = [_OneLine(handler) for handler in logging.getLogger("flwr").handlers]
    ours.setLevel(logging.INFO)
    ours.propagate = False
