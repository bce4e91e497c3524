"""How a function of Python reports: progress, lines, and errors that name keyword arguments."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from fedtranscribe.config import SynthesizeSettings, TranscribeSettings
from fedtranscribe.errors import FedtranscribeError
from fedtranscribe.stage_bars import StageBars
from fedtranscribe.tracking import Progress, silent

log = logging.getLogger("fedtranscribe")

Say = Callable[[str], None]

P = ParamSpec("P")
R = TypeVar("R")

_OPTION = re.compile(r"(?<![\w-])--(no-)?([a-z][a-z0-9-]*)")
_SWITCHES = frozenset(
    name
    for kind in (TranscribeSettings, SynthesizeSettings)
    for name, field in kind.model_fields.items()
    if field.annotation is bool
) | {"resume", "force", "stamp_not_private"}
_OTHERWISE = {"no-generator": "with_generator=False", "unconditional": "conditional=False"}


@contextmanager
def reported(progress: bool | Progress) -> Iterator[tuple[Progress, Say]]:
    """Where a run's progress and lines go.

    Args:
        progress: True for bars and lines on standard error, as the command line has them; False for
            lines to the log `fedtranscribe` alone; a function receives (stage, done, total).
    """
    if progress is True:
        with StageBars() as bars:
            yield bars, lambda line: bars.say(as_keywords(line))
    else:
        yield progress or silent, lambda line: log.info("%s", as_keywords(line))


def in_python(function: Callable[P, R]) -> Callable[P, R]:
    """Have the errors of a function name keyword arguments instead of options."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except FedtranscribeError as error:
            error.args = (as_keywords(str(error)), *error.args[1:])
            raise

    return call


def as_keywords(message: str) -> str:
    """A message in which `--bit-depth` is `bit_depth`, and `--resume` is `resume=True`."""
    return _OPTION.sub(_keyword, message)


def _keyword(option: re.Match[str]) -> str:
    negated, words = option[1] or "", option[2]
    if f"{negated}{words}" in _OTHERWISE:
        return _OTHERWISE[f"{negated}{words}"]
    name = words.replace("-", "_")
    if name in _SWITCHES:
        return f"{name}={not negated}"
    return f"{negated.replace('-', '_')}{name}"
