"""`ft.Run`, a finished run, and what is done with one: evaluate, release, predict, sample."""

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

from fedtranscribe.config import SynthesizeSettings, TranscribeSettings, build
from fedtranscribe.config.catalogue import MEMORY
from fedtranscribe.config.evaluation import EvaluationSettings
from fedtranscribe.data import DataSplit, from_memory
from fedtranscribe.data.memory import Ids, Images, Labels
from fedtranscribe.errors import ConfigError, FedtranscribeError
from fedtranscribe.evaluation.evaluate import evaluate as measure
from fedtranscribe.releases import Release, make_release
from fedtranscribe.releases import load as open_release
from fedtranscribe.results.parts import StatedGuarantee
from fedtranscribe.results.progress import Progress, silent
from fedtranscribe.results.result import Result, with_private_scores
from fedtranscribe.results.run_directory import DENOISER, HOLDERS
from fedtranscribe.results.stage_bars import StageBars
from fedtranscribe.runs.finished import FinishedRun

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


class Run(FinishedRun):
    """A finished run: what was learned, and what it cost.

    `Run.open(folder)` reads one. `predict`, `probabilities` and `sample` cost no privacy, however
    often they are called.

    Attributes:
        path: the run folder.
        result: all that is known of it, typed; `metrics.json` holds the same.
        student: the learned classifier; None for DP-SAD and dp-promise.
        generator: what synthetic images come from; None where there is none.
    """

    @classmethod
    @in_python
    def open(cls, path: str | Path) -> Self:
        """Read the run in a folder.

        Raises:
            StorageError: there is no run, it is not finished, or it has a network per holder.
            ModelError: a network's file is damaged.
        """
        return super().open(Path(path))

    @classmethod
    def of(cls, folder: Path, split: DataSplit | None = None) -> Self:
        """The run that has just been finished in a folder.

        Args:
            folder: the run's.
            split: its real images, where they are in memory.
        """
        if (folder / HOLDERS).is_dir() and not (folder / DENOISER).exists():
            # Each holder has a network of its own, a run folder below.
            return cls(folder, Result.read(folder), None, None)
        run = cls.open(folder)
        return run if split is None else run.about(split)

    @property
    def guarantee(self) -> StatedGuarantee:
        """What the run cost its records; prints as one sentence."""
        return self.result.guarantee

    @property
    def epsilon(self) -> float:
        """The sound ε of the run; infinite where there is no guarantee."""
        held = self.guarantee.held
        return math.inf if held is None else held

    @property
    def accuracy(self) -> Mapping[str, float | None]:
        """Accuracies on held-out images, by model; those in `not_private` are for you alone."""
        return with_private_scores(self.path, self.result).accuracy

    @property
    def not_private(self) -> tuple[str, ...]:
        """Names in `accuracy` that follow from your own records: do not publish them."""
        return with_private_scores(self.path, self.result).not_private

    def evaluate(self, *, progress: bool | Progress = True, **settings: Any) -> dict[str, Any]:
        """Measure the run; see `fedtranscribe.evaluate`."""
        return evaluate(self, progress=progress, **settings)

    def release(
        self,
        out: str | Path | None = None,
        *,
        choices: Sequence[str] = (),
        stamp_not_private: bool = False,
    ) -> Release:
        """Hand the run over; see `fedtranscribe.releases`."""
        return release(self, out, choices=choices, stamp_not_private=stamp_not_private)

    def __repr__(self) -> str:
        """Where it is and what it cost."""
        return f"<Run {self.path} ({self.method}): {self.guarantee}>"


@in_python
def evaluate(
    run: Run | str | Path,
    images: Images | None = None,
    labels: Labels | None = None,
    *,
    ids: Ids | None = None,
    test: Images | tuple[Images, Labels] | None = None,
    progress: bool | Progress = True,
    **settings: Any,
) -> dict[str, Any]:
    """Measure a finished run: student, classifiers on synthetic images, fidelity.

    It is `fedtranscribe evaluate`, and writes `evaluation.json` into the run folder.

    Args:
        run: a run, or its folder.
        images: of a run on data in memory that is opened again: the same images.
        labels: the same labels.
        ids: the same ids.
        test: the same held-out images.
        progress: show bars on standard error; or a function of (stage, done, total).
        **settings: fields of `EvaluationSettings`, such as classifiers="cnn" or samples=5000.

    Returns:
        What `evaluation.json` holds. Figures that rest on your own records stand under `private`;
        they are in no file outside of the run's folder `private/`.

    Raises:
        ConfigError: an unknown or wrong setting, a library is missing, or other data.
        DataError: the real images are not where the run found them.
        StorageError: there is no finished run, or its folder cannot be written.
    """
    wanted = build(EvaluationSettings, settings)
    found = run if isinstance(run, Run) else Run.open(run)
    if images is not None:
        found = found.about(_same_data(found, images, labels, ids, test))
    with reported(progress) as (show, _):
        return measure(found, wanted, show)


@in_python
def release(
    run: Run | str | Path,
    out: str | Path | None = None,
    *,
    choices: Sequence[str] = (),
    stamp_not_private: bool = False,
    threshold: float | None = None,
    chosen_on: str | None = None,
) -> Release:
    """Hand a finished run over in a form that others can use and check.

    It is `fedtranscribe release`: networks, ONNX, model card and `privacy.json` in one folder.

    Args:
        run: a run, or its folder.
        out: folder of the release; `release` in the run folder if left out.
        choices: what was chosen by looking at private data without charging it, a line each.
        stamp_not_private: release even what is not private, with a stamp that says so.
        threshold: of two classes, from which probability on `predict` names the second one.
        chosen_on: the images that the threshold was chosen on; you declare that they are public.

    Returns:
        The release, opened and checked; others open its folder by `fedtranscribe.load`.

    Raises:
        ConfigError: the extra `release` is not installed.
        PrivacyError: the run is not private, and `stamp_not_private` was not given.
        StorageError: there is no finished run, or the folder is in use or cannot be written.
    """
    path = run.path if isinstance(run, Run) else Path(run)
    folder = None if out is None else Path(out)
    made = make_release(
        path,
        folder,
        choices=choices,
        stamp_not_private=stamp_not_private,
        threshold=threshold,
        chosen_on=chosen_on,
    )
    return open_release(made.folder)


def _same_data(
    run: Run,
    images: Images,
    labels: Labels | None,
    ids: Ids | None,
    test: Images | tuple[Images, Labels] | None,
) -> DataSplit:
    data = run.result.asked.data
    if not data.startswith(MEMORY):
        raise ConfigError(
            f"Expected no images with the run in {run.path}, made from data={data!r}."
        )
    data_id = data.removeprefix(MEMORY)
    return from_memory(images, labels, data_id, ids=ids, test=test, own=run.own_data)
