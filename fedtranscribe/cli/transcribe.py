"""`fedtranscribe transcribe`: teachers in, a differentially private student and generator out."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedtranscribe.cli.options import Json
from fedtranscribe.cli.output import emit
from fedtranscribe.cli.progress import StageBars
from fedtranscribe.config import TranscribeSettings, build, read_toml
from fedtranscribe.errors import ConfigError

# From a diffusion model on two cores: some minutes, once.
_SAMPLES = 2_000

_EXAMPLES = """Transcribe teachers into a differentially private student and generator.

\b
Examples:
  fedtranscribe transcribe                                     # packaged digits, small CNNs
  fedtranscribe transcribe --teacher resnet50                  # any torchvision architecture
  fedtranscribe transcribe --teacher my-teachers --epsilon 5   # made by `teacher train`
  fedtranscribe transcribe --data scans.npz --privacy vote --out runs/scans
  fedtranscribe transcribe --generator runs/diffusion          # ask its samples, add its cost
  fedtranscribe transcribe --resume --out runs/scans           # go on after an interrupt

What is left out is picked from public facts (records, classes, shapes) and said aloud.
Settings of the method itself go into --config FILE, tables [dpsd] and [teachers].
"""


def transcribe_command(
    teacher: Annotated[
        str | None,
        typer.Option(help="Architecture (cnn, resnet50, …) or folder made by `teacher train`."),
    ] = None,
    teacher_weights: Annotated[
        str | None, typer.Option(help="'imagenet' or a file: the teacher's public start.")
    ] = None,
    student: Annotated[str | None, typer.Option(help="Student architecture.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Private data: a name, an .npz file, or an image folder.")
    ] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where named data sets lie.")] = None,
    download: Annotated[
        bool | None, typer.Option("--download", help="Fetch a missing data set.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Pixels a side, for an image folder of mixed sizes.")
    ] = None,
    public_data: Annotated[
        str | None, typer.Option(help="Public images to start from: shapes, uci-digits, …, none.")
    ] = None,
    generator: Annotated[
        Path | None,
        typer.Option(help="Run of `synthesize`: its samples are asked, its cost is added."),
    ] = None,
    shards: Annotated[int | None, typer.Option(help="Disjoint teachers to train.")] = None,
    privacy: Annotated[str | None, typer.Option(help="data, label or vote.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε of this run.")] = None,
    delta: Annotated[float | None, typer.Option(help="δ at which ε is quoted.")] = None,
    unit: Annotated[str | None, typer.Option(help="record or holder.")] = None,
    budget: Annotated[
        float | None, typer.Option(help="Most ε that all runs on these data may reach together.")
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Synthetic rows to ask in all.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Student's top-k mask.")] = None,
    calibrate_by: Annotated[str | None, typer.Option(help="sound or published.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, …")] = None,
    seed: Annotated[int | None, typer.Option(help="Public randomness; never the noise.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder.")] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="Budget book of the data; default: beside them.")
    ] = None,
    tensorboard: Annotated[
        bool | None, typer.Option("--tensorboard", help="Write TensorBoard event files too.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with settings.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Run although nothing can be learned.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run it; the help text is `_EXAMPLES`."""
    options = {
        "teacher": teacher,
        "teacher_weights": teacher_weights,
        "student": student,
        "data": data,
        "data_root": data_root,
        "download": download,
        "image_size": image_size,
        "public_data": public_data,
        "generator": generator,
        "shards": shards,
        "privacy": privacy,
        "epsilon": epsilon,
        "delta": delta,
        "unit": unit,
        "budget": budget,
        "rows": rows,
        "top_k": top_k,
        "calibrate_by": calibrate_by,
        "device": device,
        "seed": seed,
        "ledger": ledger,
        "tensorboard": tensorboard,
    }
    settings = _settings(options, config, out if resume else None, resume)
    folder = out or Path("runs") / f"transcribe-{datetime.now(UTC):%Y%m%d-%H%M%S}"

    from fedtranscribe.transcribe import prepare, transcribe

    with StageBars() as bars:
        prepared = prepare(settings, _generator(settings, bars))
        bars.say(f"run folder: {folder}")
        try:
            result = transcribe(
                prepared, folder, resume=resume, force=force, progress=bars, say=bars.say
            )
        except KeyboardInterrupt:
            bars.say(f"go on with: fedtranscribe transcribe --resume --out {folder}")
            raise
    if as_json:
        emit(result, as_json=True, title="")
    else:
        show(result, folder)


transcribe_command.__doc__ = _EXAMPLES


def _generator(settings: TranscribeSettings, bars: StageBars) -> Any:
    """Samples of the given run, with its cost; None where there is none."""
    if settings.generator is None:
        return None
    from fedtranscribe.synthesize.pool import open_generator
    from fedtranscribe.transcribe.session import pick_device

    return open_generator(
        settings.generator,
        _SAMPLES,
        pick_device(settings.device),
        lambda done, total: bars("samples of the generator", done, total),
    )


def _settings(
    options: dict[str, Any], config: Path | None, started: Path | None, resume: bool
) -> TranscribeSettings:
    """The command line over the settings file over what a resumed run was started with."""
    if resume and started is None:
        raise ConfigError("Expected --out with --resume: it names the run to go on with.")
    values: dict[str, Any] = {}
    if started is not None and (started / "config.toml").exists():
        values = read_toml(started / "config.toml")
        values.pop("run", None)
    if config is not None:
        values |= read_toml(config)
    values |= {name: value for name, value in options.items() if value is not None}
    return build(TranscribeSettings, values)


def show(result: dict[str, Any], folder: Path) -> None:
    """Print a finished run: accuracy, then privacy, then where things are."""
    console = Console()
    scores = Table(title="Accuracy on held-out real images", title_justify="left")
    scores.add_column("model")
    scores.add_column("accuracy", justify="right")
    names = {
        "single_teacher": f"one teacher of {result['teachers']} (mean)",
        "ensemble": "teacher ensemble, not private",
        "public_set_alone": f"public set alone ({result['public_data']})",
        "student": "private student",
    }
    for key, name in names.items():
        if key in result["accuracy"]:
            scores.add_row(name, f"{result['accuracy'][key]:.1%}")
    console.print(scores)
    console.print(f"[dim]{result['accuracy_on']}[/dim]")
    privacy = Table(title="Privacy", title_justify="left")
    privacy.add_column("figure")
    privacy.add_column("value", justify="right")
    privacy.add_row(
        f"ε, sound ({result['unit']}, {result['adjacency']}, δ = {result['delta']:g})",
        f"{result['epsilon']:.4g}",
    )
    for adjacency, value in result["sound"].items():
        if adjacency != result["adjacency"]:
            privacy.add_row(f"ε, sound ({result['unit']}, {adjacency})", f"{value:.4g}")
    published = result["published"]
    privacy.add_row("published formula, no guarantee", f"{published['epsilon']:.4g}")
    privacy.add_row("ε of all runs on these data so far", f"{result['ledger']['epsilon']:.4g}")
    console.print(privacy)
    console.print(f"[dim]Why the published figure is no guarantee: {published['reason']}[/dim]")
    console.print(f"Results, networks and figures: {folder}")
