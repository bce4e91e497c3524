"""`ft.transcribe`: private images in, a differentially private student and generator out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtranscribe.api.finished import Run
from fedtranscribe.api.given import GivenData, given_settings
from fedtranscribe.api.reporting import in_python, reported
from fedtranscribe.config import TranscribeSettings, build
from fedtranscribe.config.sources import layers, new_folder
from fedtranscribe.data.memory import Ids, Images, Labels
from fedtranscribe.runs import given_generator, prepare
from fedtranscribe.runs import transcribe as run_transcription
from fedtranscribe.tracking import Progress


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
    source = GivenData(images, labels, data, data_id, classes, class_names, ids, test)
    started, given = layers(None if config is None else Path(config), folder, resume=resume)
    said = given_settings(settings, epsilon=epsilon, delta=delta)
    chosen = build(TranscribeSettings, {**started, **given, **said, **source.settings})
    split = source.split(chosen.own_data)
    folder = folder or new_folder("transcribe")
    with reported(progress) as (show, say):
        prepared = prepare(chosen, given_generator(chosen, show), split)
        say(f"run folder: {folder}")
        try:
            run_transcription(prepared, folder, resume=resume, force=force, progress=show, say=say)
        except KeyboardInterrupt:
            say(f"go on with: ft.transcribe(…, out={str(folder)!r}, resume=True)")
            raise
    return Run.of(folder, split)
