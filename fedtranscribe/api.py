"""`import fedtranscribe as ft`: transcribe, simulate and synthesize from Python.

Each function does what the command of its name does, with the same settings as keyword arguments;
data may also be in memory.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtranscribe.config import OwnData, Settings, TranscribeSettings, build
from fedtranscribe.config.catalogue import MEMORY
from fedtranscribe.config.sources import layers, new_folder, synthesize_settings
from fedtranscribe.data import DataSplit, from_memory
from fedtranscribe.data.memory import Ids, Images, Labels
from fedtranscribe.errors import ConfigError
from fedtranscribe.evaluation.evaluate import cnn_judge
from fedtranscribe.flower.apps import find_app
from fedtranscribe.flower.simulate import choose, nodes, require_flower
from fedtranscribe.flower.simulate import simulate as run_app
from fedtranscribe.results.progress import Progress
from fedtranscribe.run import Run, in_python, reported
from fedtranscribe.runs.preparation import existing_generator, prepare
from fedtranscribe.runs.transcription import transcribe as run_transcription
from fedtranscribe.trainers.preparation import prepare as prepare_training
from fedtranscribe.trainers.synthesize import synthesize as run_synthesis


@dataclass(frozen=True, eq=False)
class InputData:
    """The private data of a run, as keyword arguments state them; see `transcribe`."""

    images: Images | None
    labels: Labels | None
    data: str | Path | None
    data_id: str | None
    classes: int | Sequence[str] | None
    class_names: Sequence[str] | None
    ids: Ids | Path | None
    test: Images | tuple[Images, Labels] | None

    @property
    def settings(self) -> dict[str, Any]:
        """What the run's settings say of them: public facts only.

        Raises:
            ConfigError: something is missing, or does not belong to such data.
        """
        named: dict[str, Any] = {}
        if (classes := self._classes()) is not None:
            named["classes"] = classes
        if self.images is not None:
            return {"data": f"{MEMORY}{self._data_id()}", **named}
        for name in ("labels", "data_id", "test"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"Expected images with {name}: both belong to data in memory. For data with a "
                    "name or a path pass data alone."
                )
        if self.data is not None:
            named["data"] = str(self.data)
        if self.ids is not None:
            named["ids"] = self.ids
        return named

    def split(self, own: OwnData) -> DataSplit | None:
        """Train and test part of data in memory; None for data that have a name or a path.

        Args:
            own: the facts that the run's settings state.

        Raises:
            InvalidDataError, ConfigError: as `from_memory`.
        """
        if self.images is None:
            return None
        if isinstance(self.ids, Path):
            raise ConfigError("Expected ids as one id per image; a file is for an image folder.")
        return from_memory(
            self.images, self.labels, self._data_id(), ids=self.ids, test=self.test, own=own
        )

    def _data_id(self) -> str:
        if self.data is not None:
            raise ConfigError(f"Expected images or data={str(self.data)!r}, not both.")
        if isinstance(self.images, str | Path):
            raise ConfigError(f"Expected data={str(self.images)!r}: a name or a path is no array.")
        if not isinstance(self.data_id, str):
            raise ConfigError(
                "Expected data_id, a lasting name of these records such as "
                "data_id='chest-2024'. All runs on them share the ledger that is kept under it."
            )
        return self.data_id

    def _classes(self) -> int | tuple[str, ...] | None:
        named = self.class_names if self.class_names is not None else self.classes
        if named is None or isinstance(named, int):
            return named
        names = (named,) if isinstance(named, str) else tuple(map(str, named))
        count = self.classes if isinstance(self.classes, int) else len(names)
        if len(names) != count:
            raise ConfigError(f"Expected class_names to name classes={count}, got {len(names)}.")
        return names


def named_settings(settings: Mapping[str, Any], **named: Any) -> dict[str, Any]:
    """Settings that were said; a keyword argument that is None was left out."""
    return {**settings, **{name: value for name, value in named.items() if value is not None}}


@in_python
def transcribe(
    images: Images | None = None,
    labels: Labels | None = None,
    *,
    data: str | Path | None = None,
    data_id: str | None = None,
    classes: int | Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    ids: Ids | Path | None = None,
    test: Images | tuple[Images, Labels] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    config: str | Path | None = None,
    progress: bool | Progress = True,
    **settings: Any,
) -> Run:
    """Learn a differentially private student and generator from private images.

    It is `fedtranscribe transcribe`: the cost is charged to the ledger of the data before anything
    is computed from them, and everything is kept in a run folder. Pass images in memory, or `data`.

    Args:
        images: private images [n, h, w], [n, h, w, ch] or [n, ch, h, w], square, as a numpy array
            or a torch tensor, uint8 or floating point in [0, 1]. Or a list of arrays or of Pillow's
            pictures, a torch `Dataset` of (image, label), or a Hugging Face `Dataset`.
        labels: one class number per image, from 0; a data set brings its own.
        data: instead of images, a name or path as `--data` takes it.
        data_id: of images in memory: a lasting name of these records. All runs on them share the
            ledger that is kept under it, `~/.fedtranscribe/ledgers/<data_id>.ledger.sqlite`.
        classes: how many classes there are, or their names. It is public, and never counted from
            labels.
        class_names: what the classes are called, where `classes` is their number.
        ids: a lasting name per image, or per patient: images that share an id count as one record.
            Of a Hugging Face `Dataset`, the name of a column. Without ids the position counts.
        test: held-out images, `(images, labels)` or a data set; one record in five if left out.
        epsilon: ε of this run; 10 if left out.
        delta: δ at which ε is quoted; 1e-5 if left out.
        out: the run folder; a new one under `runs` if left out.
        resume: go on with the run in `out`; pass the same data again.
        force: run although the forecast says that nothing can be learned.
        config: a TOML file with settings; what is passed here wins.
        progress: show bars and lines on standard error; or a function of (stage, done, total).
        **settings: any other field of `TranscribeSettings`, such as budget, teacher or seed.

    Returns:
        The finished run.

    Raises:
        ConfigError: an unknown or wrong setting, or data_id, classes or labels are missing.
        DataError: no such data, or images, labels or ids that cannot be used.
        BudgetExhaustedError: the ledger has too little left; nothing was spent.
        HopelessPlanError: nothing could be learned, and `force` was not given.
        FedtranscribeError: any other mistake; see `fedtranscribe.errors`.
    """
    folder = None if out is None else Path(out)
    source = InputData(images, labels, data, data_id, classes, class_names, ids, test)
    stored, configured = layers(None if config is None else Path(config), folder, resume=resume)
    named = named_settings(settings, epsilon=epsilon, delta=delta)
    chosen = build(TranscribeSettings, {**stored, **configured, **named, **source.settings})
    split = source.split(chosen.own_data)
    folder = folder or new_folder("transcribe")
    with reported(progress) as (show, say):
        prepared = prepare(chosen, existing_generator(chosen, show), split)
        say(f"run folder: {folder}")
        try:
            run_transcription(prepared, folder, resume=resume, force=force, progress=show, say=say)
        except KeyboardInterrupt:
            say(f"go on with: ft.transcribe(…, out={str(folder)!r}, resume=True)")
            raise
    return Run.of(folder, split)


@in_python
def synthesize(
    images: Images | None = None,
    labels: Labels | None = None,
    *,
    data: str | Path | None = None,
    data_id: str | None = None,
    classes: int | Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    ids: Ids | Path | None = None,
    test: Images | tuple[Images, Labels] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    config: str | Path | None = None,
    progress: bool | Progress = True,
    **settings: Any,
) -> Run:
    """Train a differentially private diffusion model where the data are.

    It is `fedtranscribe synthesize`, with dp-promise or DP-SAD. Pass images in memory, or `data`.

    Args:
        images: private images, as for `transcribe`.
        labels: one class number per image, from 0; a data set brings its own.
        data: instead of images, a name or path as `--data` takes it.
        data_id: of images in memory: a lasting name of these records, which their ledger is kept
            under.
        classes: how many classes there are, or their names.
        class_names: what the classes are called, where `classes` is their number.
        ids: a lasting name per image, or per patient.
        test: held-out images, `(images, labels)` or a data set; one record in five if left out.
        epsilon: ε of this run; 10 if left out.
        delta: δ at which ε is quoted; 1e-5 if left out.
        out: the run folder; a new one under `runs` if left out.
        resume: go on with the run in `out`; pass the same data again.
        config: a TOML file with settings; what is passed here wins.
        progress: show bars and lines on standard error; or a function of (stage, done, total).
        **settings: any other field of `SynthesizeSettings`, or of the method's own table, such as
            method, pretrain_data or phase2_batch.

    Returns:
        The finished run; it has a generator and no student.

    Raises:
        ConfigError: an unknown or wrong setting, or data_id, classes or labels are missing.
        DataError: no such data, or images, labels or ids that cannot be used.
        BudgetExhaustedError: the ledger has too little left; nothing was spent.
        FedtranscribeError: any other mistake; see `fedtranscribe.errors`.
    """
    folder = None if out is None else Path(out)
    source = InputData(images, labels, data, data_id, classes, class_names, ids, test)
    stored, configured = layers(None if config is None else Path(config), folder, resume=resume)
    named = named_settings(settings, epsilon=epsilon, delta=delta) | source.settings
    chosen = synthesize_settings(named, configured, stored)
    split = source.split(chosen.own_data)
    folder = folder or new_folder("synthesize")
    with reported(progress) as (show, say):
        prepared = prepare_training(chosen, split, say)
        say(f"run folder: {folder}")
        judge = cnn_judge(chosen.seed) if chosen.evaluate else None
        try:
            run_synthesis(prepared, folder, resume=resume, judge=judge, progress=show, say=say)
        except KeyboardInterrupt:
            say(f"go on with: ft.synthesize(…, out={str(folder)!r}, resume=True)")
            raise
    return Run.of(folder, split)


@in_python
def simulate(
    app: str | Path,
    *,
    holders: int | None = None,
    cpus: int = 1,
    workers: int | None = None,
    num_gpus: float = 0.0,
    out: str | Path | None = None,
    resume: bool = False,
    config: str | Path | None = None,
    progress: bool | Progress = True,
    **settings: Any,
) -> Run:
    """Simulate a federation: data holders and server as a Flower app, on this machine.

    It is `fedtranscribe simulate`, through Flower's simulation. The holders share out one data set
    with a name or a path, `data`; they run in processes of their own, which get no arrays.

    Args:
        app: a packaged app, such as "dirichlet_mnist", or the folder of one.
        holders: data holders, a Flower node each; the app's number if left out.
        cpus: processor cores per holder at work.
        workers: holders at work at once; as many as cores if left out.
        num_gpus: share of a GPU per holder at work.
        out: the run folder; a new one under `runs` if left out.
        resume: go on with the run in `out`.
        config: a TOML file with settings, like an app's paper.toml.
        progress: show bars and lines on standard error; or a function of (stage, done, total).
        **settings: settings of the app, such as epsilon=5 or dpsd={"round_rows": 100}.

    Returns:
        The finished run.

    Raises:
        ConfigError: Flower is not installed, or an unknown or wrong setting; names all of them.
        StorageError: the folder holds another run, or none to go on with.
        SimulationError: Flower or Ray did not carry the run to its end.
        FedtranscribeError: what the run itself found wrong.
    """
    require_flower()
    found = find_app(str(app))
    pairs = [f"{name}={value}" for name, value in _flat(settings)]
    chosen = choose(
        found,
        pairs,
        holders,
        None if out is None else Path(out),
        resume,
        None if config is None else Path(config),
    )
    federation = nodes(found, chosen, cpus, num_gpus, workers)
    with reported(progress) as (show, say):

        def noted(stage: str, done: int, total: int, note: str = "") -> None:
            show(stage, done, total)

        folder = run_app(found, chosen, federation, noted, say)
    return Run.of(folder)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Settings as an app's run-config has them: `dpsd.round_rows`, values as TOML."""
    for name, value in settings.items():
        if isinstance(value, Settings):
            value = value.model_dump(exclude_unset=True, exclude_none=True)
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, str | Path):
            yield f"{prefix}{name}", str(value)
        elif isinstance(value, bool | int | float):
            yield f"{prefix}{name}", json.dumps(value)
        else:
            raise ConfigError(
                f"Expected {prefix}{name} as a text, a number or True or False, got "
                f"{type(value).__name__}; a simulation takes data by name or path."
            )
