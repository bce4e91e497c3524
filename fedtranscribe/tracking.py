"""Progress of a run: JSON lines always, TensorBoard curves if asked for.

progress.jsonl   one JSON object a line, with the time
tensorboard/     event files, for `tensorboard --logdir RUN`

A tracker receives only what may leave the data holder: public counts, ε so far, losses of the
student side (post-processing of private answers) and accuracy on images that are public by
declaration.
"""

import importlib.util
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedtranscribe.errors import ConfigError

PROGRESS = "progress.jsonl"
EVENT_FILES = "tensorboard"

Report = Callable[[Mapping[str, Any]], None]


def ignore(entry: Mapping[str, Any]) -> None:
    """Track nothing."""


class Tracker:
    """Appends what it is called with; every entry has `stage`, `done` and `total`.

    Args:
        folder: the run's.
        tensorboard: write event files too; each number over `done`, under its stage's name.

    Raises:
        ConfigError: TensorBoard is asked for and not installed.
    """

    def __init__(self, folder: Path, *, tensorboard: bool = False) -> None:
        self._lines = folder / PROGRESS
        self._writer = None
        if tensorboard:
            check_tensorboard()
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder / EVENT_FILES))

    def __call__(self, entry: Mapping[str, Any]) -> None:
        """Keep one entry."""
        with self._lines.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"time": round(time.time(), 3), **entry}) + "\n")
        if self._writer is not None:
            group = str(entry["stage"]).replace(" ", "-")
            for name, value in entry.items():
                if name not in ("done", "total") and isinstance(value, int | float):
                    self._writer.add_scalar(f"{group}/{name}", value, int(entry["done"]))
            # A run that is killed loses no point.
            self._writer.flush()


def check_tensorboard() -> None:
    """Fail before any work where event files could not be written.

    Raises:
        ConfigError: says how to install what is missing.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "tensorboard=true needs TensorBoard: pip install 'fedtranscribe[tensorboard]'."
        )
