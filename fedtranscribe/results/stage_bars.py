"""A progress bar per stage, on standard error so that `--json` output stays clean.

Where standard error is no terminal, a stage is a line now and then.
"""

import math
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from fedtranscribe.text import printable

if TYPE_CHECKING:
    from fedtranscribe.results.progress import Progress as ShowStage

_LINE_SECONDS = 15.0


class StageBars:
    """Call it with (stage, done, total); a stage's bar appears with its first call."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._lines = None if console.is_terminal else _Lines(console)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            disable=self._lines is not None,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "StageBars":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def __call__(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Move a stage's bar; the note stands behind it."""
        if self._lines is not None:
            self._lines(stage, done, total, note)
            return
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(printable(stage), total=total, note=note)
        self._progress.update(self._tasks[stage], completed=done, total=total, note=printable(note))

    def named(self, prefix: str) -> "ShowStage":
        """Bars of one of several runs, whose stages have a prefix of their own."""

        def show_stage(stage: str, done: int, total: int) -> None:
            self(prefix + stage, done, total)

        return show_stage

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._progress.console.print(Text(f"· {printable(line)}"))


class _Lines:
    """A stage's first and last step as a line, and one every so many seconds in between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int, note: str) -> None:
        now = time.monotonic()
        if done < total and now - self._printed.get(stage, -math.inf) < _LINE_SECONDS:
            return
        self._printed[stage] = now
        self._console.print(
            Text(f"{printable(stage)}: {done}/{total} {printable(note)}".rstrip()), soft_wrap=True
        )
