"""Progress of a run: JSON lines always, TensorBoard curves and other trackers if asked for.

progress.jsonl   one JSON object a line, with the time
tensorboard/     event files, for `tensorboard --logdir RUN`

Other trackers are entry points of the group `fedtranscribe.trackers`: MLflow and Weights & Biases
(`fedtranscribe.trackers`), and those of other packages. A tracker is called with the run's folder
once, and what it returns with every entry:

    def my_tracker(folder: Path) -> Report:
        return lambda entry: print(scalars(entry))

A tracker receives only what may leave the data holder: public counts, ε so far, losses of the
student side (post-processing of private answers) and accuracy on images that are public by
declaration. `epsilon` is what the plan would cost had it ended there: no guarantee for a run that
is stopped because of what it shows. What it may receive stands in `fedtranscribe.results.allowed`.
"""

import importlib.util
import json
import time
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from fedtranscribe.config import TrackingOptions
from fedtranscribe.errors import ConfigError
from fedtranscribe.results.allowed import expect_allowed

PROGRESS = "progress.jsonl"
EVENT_FILES = "tensorboard"
TRACKERS = "fedtranscribe.trackers"

Report = Callable[[Mapping[str, Any]], None]


def ignore(entry: Mapping[str, Any]) -> None:
    """Track nothing."""


class Progress(Protocol):
    """Shows long work; the command line draws a bar, tests pass `silent`."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Say how far a stage is."""
        ...


def silent(stage: str, done: int, total: int) -> None:
    """Show nothing."""


class Tracker:
    """Appends what it is called with; every entry has `stage`, `done` and `total`."""

    def __init__(self, folder: Path, options: TrackingOptions) -> None:
        check_tracking(options)
        self._lines = folder / PROGRESS
        self._other = ignore if options.tracker is None else _found(options.tracker)(folder)
        self._writer = None
        if options.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder / EVENT_FILES))

    def __call__(self, entry: Mapping[str, Any]) -> None:
        """Keep one entry."""
        expect_allowed(PROGRESS, entry)
        with self._lines.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"time": round(time.time(), 3), **entry}) + "\n")
        self._other(entry)
        if self._writer is not None:
            for name, value in scalars(entry).items():
                self._writer.add_scalar(name, value, int(entry["done"]))
            # A run that is killed loses no point.
            self._writer.flush()


def scalars(entry: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an entry that make curves over `done`, as `stage/name`."""
    group = str(entry["stage"]).replace(" ", "-")
    return {
        f"{group}/{name}": value
        for name, value in entry.items()
        if name not in ("done", "total") and isinstance(value, int | float)
    }


def check_tracking(options: TrackingOptions) -> None:
    """Fail before any work where progress could not be told as asked."""
    if options.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "tensorboard=true needs TensorBoard: pip install 'fedtranscribe[tensorboard]'."
        )
    if options.tracker is not None:
        _found(options.tracker)


def _found(name: str) -> Callable[[Path], Report]:
    installed = entry_points(group=TRACKERS)
    if name not in installed.names:
        known = ", ".join(sorted(installed.names)) or "none"
        raise ConfigError(
            f"No tracker {name!r} is installed (there is {known}); install a package that offers "
            f"it as an entry point of {TRACKERS!r}."
        )
    point = installed[name]
    try:
        return point.load()
    except ModuleNotFoundError as error:
        ours = point.module.startswith("fedtranscribe.")
        package = f"'fedtranscribe[{name}]'" if ours else str(error.name)
        raise ConfigError(
            f"tracker={name} needs {error.name}, which is not installed: pip install {package}."
        ) from None
