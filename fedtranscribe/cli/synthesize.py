"""`fedtranscribe synthesize`: a differentially private diffusion model of private images."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtranscribe.cli.options import (
    BitDepth,
    Budget,
    ClassesOption,
    Data,
    DataRoot,
    Device,
    Download,
    IdPattern,
    Ids,
    ImageSize,
    Json,
    LedgerFile,
    MaxGib,
    Out,
    PublicImages,
    Resume,
    RunDelta,
    RunEpsilon,
    Seed,
    SettingsFile,
    Tensorboard,
)
from fedtranscribe.cli.output import emit, say, say_path
from fedtranscribe.cli.progress import StageBars
from fedtranscribe.cli.runs import layers, show_privacy
from fedtranscribe.config import SynthesizeSettings, build
from fedtranscribe.errors import ConfigError
from fedtranscribe.result import Shown

if TYPE_CHECKING:
    from fedtranscribe.synthesize.run import Judge

_EXAMPLES = """Train a differentially private diffusion model where the data are.

\b
Examples:
  fedtranscribe synthesize --epsilon 10                        # packaged digits, dp-promise
  fedtranscribe synthesize --no-noise                          # the same WITHOUT privacy
  fedtranscribe synthesize --pretrain-data shapes --epsilon 1
  fedtranscribe synthesize --method dp-sad --data scans.npz --out runs/scans
  fedtranscribe synthesize --data scans.npz --pretrain-data shapes --labels kmeans
  fedtranscribe synthesize --resume --out runs/scans           # go on after an interrupt
  fedtranscribe synthesize --data mnist --data-root DIR --profile paper --epsilon 10

ε is booked in the data's ledger before training begins, once. Draw images from the result with
`fedtranscribe sample`. More settings go into --config FILE.
"""

# Options of one method alone; those of `_EITHER` go to the method that runs.
_OWN = {
    "dp_promise": (
        *("boundary", "phase1", "noisy_images", "phase1_batch", "phase1_epochs"),
        *("phase2_batch", "phase2_epochs"),
    ),
    "dp_sad": ("teacher", "discriminator", "batch", "epochs"),
}
_EITHER = ("copies", "clip")
_NO_MEANING = ("epsilon", "adjacency", "budget")


def synthesize_command(
    method: Annotated[str | None, typer.Option(help="dp-promise or dp-sad.")] = None,
    data: Data = None,
    data_root: DataRoot = None,
    download: Download = None,
    classes: ClassesOption = None,
    ids: Ids = None,
    id_pattern: IdPattern = None,
    image_size: ImageSize = None,
    bit_depth: BitDepth = None,
    max_gib: MaxGib = None,
    conditional: Annotated[
        bool | None,
        typer.Option("--conditional/--unconditional", help="Whether the network learns labels."),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="own, or kmeans: clusters of the public images.")
    ] = None,
    clusters: Annotated[int | None, typer.Option(help="How many, with --labels kmeans.")] = None,
    epsilon: RunEpsilon = None,
    noise: Annotated[
        bool | None,
        typer.Option("--noise/--no-noise", help="Without: a baseline that is NOT private."),
    ] = None,
    delta: RunDelta = None,
    adjacency: Annotated[
        str | None, typer.Option(help="zero-out, replace or add-remove (without Phase I).")
    ] = None,
    calibrate_by: Annotated[
        str | None, typer.Option(help="sound; or published, as printed: NO guarantee.")
    ] = None,
    budget: Budget = None,
    profile: Annotated[str | None, typer.Option(help="quick or paper.")] = None,
    size: Annotated[str | None, typer.Option(help="U-Net: tiny, small, medium or large.")] = None,
    pretrain_data: PublicImages = None,
    pretrain_epochs: Annotated[float | None, typer.Option(help="Passes over them.")] = None,
    boundary: Annotated[
        int | None, typer.Option(help="dp-promise: S, first time step of Phase I.")
    ] = None,
    phase1: Annotated[
        bool | None,
        typer.Option("--phase1/--no-phase1", help="dp-promise: without, Phase II over all steps."),
    ] = None,
    noisy_images: Annotated[
        str | None, typer.Option(help="dp-promise: fresh, or cached: one per record for ever.")
    ] = None,
    phase1_batch: Annotated[int | None, typer.Option(help="dp-promise: expected records.")] = None,
    phase1_epochs: Annotated[float | None, typer.Option(help="dp-promise: passes.")] = None,
    phase2_batch: Annotated[int | None, typer.Option(help="dp-promise: expected records.")] = None,
    phase2_epochs: Annotated[float | None, typer.Option(help="dp-promise: passes.")] = None,
    copies: Annotated[int | None, typer.Option(help="K, time steps and noises per record.")] = None,
    clip: Annotated[float | None, typer.Option(help="C, norm of a record's gradient.")] = None,
    teacher: Annotated[
        str | None, typer.Option(help="dp-sad: from public images, or dp: by DP-SGD.")
    ] = None,
    discriminator: Annotated[
        str | None, typer.Option(help="dp-sad: learns from outputs, or dp: by DP-SGD.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="dp-sad: expected records.")] = None,
    epochs: Annotated[float | None, typer.Option(help="dp-sad: passes.")] = None,
    sampling_steps: Annotated[int | None, typer.Option(help="T' of the sampler.")] = None,
    guidance: Annotated[float | None, typer.Option(help="w of the sampler.")] = None,
    evaluate: Annotated[
        bool | None,
        typer.Option("--evaluate/--no-evaluate", help="Test a CNN trained on samples."),
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Samples that the CNN is trained on.")] = None,
    backend: Annotated[
        str | None, typer.Option(help="Gradients per record: contracted, functional or opacus.")
    ] = None,
    physical_batch: Annotated[
        int | None, typer.Option(help="Records at a time; measured if left out.")
    ] = None,
    device: Device = None,
    seed: Seed = None,
    out: Out = None,
    ledger: LedgerFile = None,
    tensorboard: Tensorboard = None,
    config: SettingsFile = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Run it; the help text is `_EXAMPLES`."""
    options = {
        "method": method,
        "data": data,
        "data_root": data_root,
        "download": download,
        "classes": classes,
        "ids": ids,
        "id_pattern": id_pattern,
        "image_size": image_size,
        "bit_depth": bit_depth,
        "max_gib": max_gib,
        "conditional": conditional,
        "labels": labels,
        "clusters": clusters,
        "epsilon": epsilon,
        "noise": noise,
        "delta": delta,
        "adjacency": adjacency,
        "calibrate_by": calibrate_by,
        "budget": budget,
        "profile": profile,
        "size": size,
        "pretrain_data": pretrain_data,
        "pretrain_epochs": pretrain_epochs,
        "boundary": boundary,
        "phase1": phase1,
        "noisy_images": noisy_images,
        "phase1_batch": phase1_batch,
        "phase1_epochs": phase1_epochs,
        "phase2_batch": phase2_batch,
        "phase2_epochs": phase2_epochs,
        "copies": copies,
        "clip": clip,
        "teacher": teacher,
        "discriminator": discriminator,
        "batch": batch,
        "epochs": epochs,
        "sampling_steps": sampling_steps,
        "guidance": guidance,
        "evaluate": evaluate,
        "samples": samples,
        "backend": backend,
        "physical_batch": physical_batch,
        "device": device,
        "seed": seed,
        "ledger": ledger,
        "tensorboard": tensorboard,
    }
    settings = _settings(options, config, out, resume)
    folder = out or Path("runs") / f"synthesize-{datetime.now(UTC):%Y%m%d-%H%M%S}"

    from fedtranscribe.synthesize import prepare, synthesize

    with StageBars() as bars:
        prepared = prepare(settings, say=bars.say)
        bars.say(f"run folder: {folder}")
        try:
            shown = synthesize(
                prepared,
                folder,
                resume=resume,
                judge=_cnn(settings) if settings.evaluate else None,
                progress=bars,
                say=bars.say,
            )
        except KeyboardInterrupt:
            bars.say(f"go on with: fedtranscribe synthesize --resume --out {folder}")
            raise
    if as_json:
        emit(shown.to_json(), as_json=True, title="")
    else:
        show(shown, folder)


synthesize_command.__doc__ = _EXAMPLES


def _settings(
    options: dict[str, Any], config: Path | None, out: Path | None, resume: bool
) -> SynthesizeSettings:
    started, given, typed = layers(options, config, out, resume=resume)
    method = str({"method": "dp-promise", **started, **given, **typed}["method"])
    own = _taken(typed, method)
    said = {**given, **typed}
    if said.get("noise") is False:
        _expect_nothing_to_calibrate(said)
    tables = {name: {**_table(started, name), **_table(given, name)} for name in _OWN}
    if own:
        tables[_table_of(method)] |= own
    return build(SynthesizeSettings, {**started, **said, **tables})


def _taken(typed: dict[str, Any], method: str) -> dict[str, Any]:
    """Take what belongs into the method's table out of what was typed."""
    for table, names in _OWN.items():
        for name in names:
            if name in typed and table != _table_of(method):
                raise ConfigError(
                    f"Expected {name}={typed[name]} with --method {table.replace('_', '-')} only; "
                    "leave it out."
                )
    names = (*_OWN.get(_table_of(method), ()), *_EITHER)
    return {name: typed.pop(name) for name in names if name in typed}


def _table_of(method: str) -> str:
    return method.replace("-", "_")


def _table(values: dict[str, Any], name: str) -> dict[str, Any]:
    table = values.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"Expected {name}={table!r} as a table, [{name}].")
    return table


def _expect_nothing_to_calibrate(said: dict[str, Any]) -> None:
    for name in _NO_MEANING:
        if name in said:
            raise ConfigError(
                f"Expected {name}={said[name]} or no noise, not both: without noise there is no "
                "guarantee. Leave one out."
            )


def _cnn(settings: SynthesizeSettings) -> "Judge":
    """The small CNN of the field's evaluations, chosen on synthetic images only."""
    from fedtranscribe.evaluation.downstream import downstream
    from fedtranscribe.evaluation.settings import EvaluationSettings

    wanted = build(EvaluationSettings, {"classifiers": "cnn", "seed": settings.seed})

    def judge(images: Any, labels: Any, test: Any, device: Any, progress: Any) -> float | None:
        real = test.images, test.labels
        return downstream((images, labels), real, test.classes, wanted, device, progress)["cnn"]

    return judge


def show(shown: Shown, folder: Path) -> None:
    """Print a finished run: accuracy, then privacy, then where things are."""
    result = shown.result
    for caveat in result.guarantee.caveats:
        say(f"NOT PRIVATE: {caveat}", "bold red")
    score = shown.accuracy.get("downstream")
    if score is not None:
        say(f"CNN trained on samples, tested on real images: {score:.1%}")
        say(result.accuracy_on, "dim")
    show_privacy(result)
    say_path("Network, samples and figures", folder)
    say(f"Draw images with: fedtranscribe sample {folder} --num 1000 --out samples.npz")
