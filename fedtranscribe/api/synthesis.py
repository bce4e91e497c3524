"""`ft.synthesize`: a differentially private diffusion model of private images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtranscribe.api.finished import Run
from fedtranscribe.api.given import GivenData, given_settings
from fedtranscribe.api.reporting import in_python, reported
from fedtranscribe.config.sources import layers, new_folder
from fedtranscribe.config.synthesize import synthesize_settings
from fedtranscribe.data.memory import Ids, Images, Labels
from fedtranscribe.evaluation.judging import cnn_judge
from fedtranscribe.synthesis import prepare
from fedtranscribe.synthesis import synthesize as run_synthesis
from fedtranscribe.tracking import Progress


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
    source = GivenData(images, labels, data, data_id, classes, class_names, ids, test)
    started, given = layers(None if config is None else Path(config), folder, resume=resume)
    said = given_settings(settings, epsilon=epsilon, delta=delta) | source.settings
    chosen = synthesize_settings(said, given, started)
    split = source.split(chosen.own_data)
    folder = folder or new_folder("synthesize")
    with reported(progress) as (show, say):
        prepared = prepare(chosen, split, say)
        say(f"run folder: {folder}")
        judge = cnn_judge(chosen.seed) if chosen.evaluate else None
        try:
            run_synthesis(prepared, folder, resume=resume, judge=judge, progress=show, say=say)
        except KeyboardInterrupt:
            say(f"go on with: ft.synthesize(…, out={str(folder)!r}, resume=True)")
            raise
    return Run.of(folder, split)
