"""`fedtranscribe teacher …` and `fedtranscribe data pack`: what a holder prepares."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtranscribe.cli.options import GroupedCommand, Json, about, group, settings_options
from fedtranscribe.cli.output import emit, say_path
from fedtranscribe.cli.runs import expect_known
from fedtranscribe.config import OwnData, Topic, TranscribeSettings, build, read_toml
from fedtranscribe.config.catalogue import expect_data, expect_declaration, expect_teachers
from fedtranscribe.errors import ConfigError, HopelessPlanError, WeightsNotFoundError
from fedtranscribe.files import expect_free
from fedtranscribe.privacy.calibrate import EnsembleLayout
from fedtranscribe.privacy.forecasts import Forecast, forecast
from fedtranscribe.privacy.units import NoiseMode, RowAnswer
from fedtranscribe.results.stage_bars import StageBars

if TYPE_CHECKING:
    from fedtranscribe.data import DataSplit
    from fedtranscribe.models.teacher_import import ImportedNetworks

teacher_app = group(
    "Train teachers on disjoint shards of private records, import and describe them."
)

_TRAIN = """Train one teacher, or p teachers on disjoint shards.

\b
Examples:
  fedtranscribe teacher train --data digits --shards 250 --out teachers
  fedtranscribe teacher train --data mnist --data-root DIR --arch cnn --out mnist-teacher
  fedtranscribe teacher train --data scans.npz --arch resnet50 --shards 100 --out teachers

After an interrupt, run it again: finished shards are kept.
"""


_OF_RUNS = (
    "teacher_weights",
    "teacher_weights_declared_by",
    "data_root",
    "download",
    "device",
    "seed",
)


@teacher_app.command("train", help=_TRAIN, cls=GroupedCommand)
@settings_options(TranscribeSettings, only=(*OwnData.model_fields, *_OF_RUNS))
def train(
    typed: dict[str, Any],
    data: Annotated[
        str,
        typer.Option(
            metavar="NAME|PATH",
            help=about(TranscribeSettings, "data"),
            rich_help_panel=Topic.DATA,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the teachers.")],
    arch: Annotated[str, typer.Option(metavar="NAME", help="Architecture.")] = "cnn",
    shards: Annotated[int, typer.Option(help="Disjoint shards, one teacher each.")] = 1,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with a table [teachers].", rich_help_panel=Topic.RUN),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train teachers."""
    configured = read_toml(config) if config else {}
    own = {"data": data, "teacher": arch, "shards": shards}
    settings = build(TranscribeSettings, {**configured, **typed, **own})
    expect_known(settings, network=settings.teacher)

    from joblib import cpu_count

    from fedtranscribe.data import load
    from fedtranscribe.models import pick_device
    from fedtranscribe.models.teacher_training import train_teachers
    from fedtranscribe.results.run_directory import check_writable
    from fedtranscribe.runs.picking import training_mode
    from fedtranscribe.runs.preparation import make_manifest

    split = load(data, settings.data_root, settings.download, settings.own_data)
    images = split.train
    # One teacher is worth a whole network; hundreds of large ones are not to be had in minutes.
    mode = "full" if shards == 1 else training_mode(arch, settings.teacher_weights)
    manifest = make_manifest(settings, images, shards, mode)
    check_writable(out)
    with StageBars() as bars:
        for line in split.words:
            bars.say(line)
        train_teachers(
            images,
            manifest,
            out,
            device=pick_device(settings.device),
            progress=lambda done, total: bars("teachers on disjoint shards", done, total),
            workers=cpu_count(),
        )
    _describe(out, as_json)


_IMPORT = """Make teachers of networks that were trained elsewhere.

\b
Examples:
  fedtranscribe teacher import --template > networks/networks.toml      # then fill it in
  fedtranscribe teacher import networks --data scans --out teachers     # a folder of networks
  fedtranscribe teacher import resnet18.pt --arch resnet18              # one: why not, what instead

A folder needs networks.toml, in which a person declares that the networks learned from disjoint
shards. The name goes into every result, statement and model card. A single network that was trained
on all records cannot be transcribed at a sound ε: you get the forecast and the ways out, and exit
code 5. Weights are state dicts, .safetensors or .pt; no code in them is run.
"""

_OF_IMPORTS = ("data", "data_root", "download", "epsilon", "delta")


@teacher_app.command("import", help=_IMPORT, cls=GroupedCommand)
@settings_options(TranscribeSettings, only=(*OwnData.model_fields, *_OF_IMPORTS))
def import_command(
    typed: dict[str, Any],
    networks: Annotated[
        Path | None, typer.Argument(help="A folder of networks, or the file of one.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the teachers.")] = Path("teachers"),
    arch: Annotated[
        str | None, typer.Option(metavar="NAME", help="Architecture of a single network.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Import a single network although nothing can be learned."),
    ] = False,
    template: Annotated[
        bool, typer.Option("--template", help="Print a networks.toml to fill in.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Import teachers."""
    if networks is None and not template:
        raise ConfigError("Expected a folder of networks, or the file of one; see --help.")
    settings = build(TranscribeSettings, typed)
    expect_known(settings, network=arch)
    if networks is not None:
        _expect_networks(networks, arch)

    from fedtranscribe.models.teacher_import import TEMPLATE, import_networks, read_networks

    if networks is None:
        typer.echo(TEMPLATE, nl=False)
        return
    if networks.is_dir():
        found = read_networks(networks, _records(settings), settings)
        alone = found.manifest.shards == 1
    else:
        found, alone = None, True
    if alone:
        architecture = arch if found is None else found.manifest.architecture
        path = networks if found is None else found.files[0]
        found = _alone(path, architecture, settings, force, as_json)
    assert found is not None
    with StageBars() as bars:
        import_networks(found, out, lambda done, total: bars("networks", done, total))
    m = found.manifest
    _describe(out, as_json, forecast=_forecast(settings, m.shards, m.classes).words)


def _expect_networks(path: Path, arch: str | None) -> None:
    """Refuse a path at which no networks can be, before torch is loaded."""
    if path.is_dir():
        if arch is not None:
            raise ConfigError("Expected no --arch with a folder: its networks.toml says it.")
        expect_declaration(path)
    elif not path.is_file():
        raise WeightsNotFoundError(f"No weights file {str(path)!r}; check the path.")
    elif arch is None:
        raise ConfigError("Expected --arch with the file of one network: resnet18, …")


def _records(settings: TranscribeSettings) -> "DataSplit | None":
    from fedtranscribe.data import load

    if settings.data is None:
        return None
    return load(settings.data, settings.data_root, settings.download, settings.own_data)


def _forecast(settings: TranscribeSettings, teachers: int, classes: int) -> Forecast:
    layout = EnsembleLayout(teachers)
    local, vote = NoiseMode.LOCAL, RowAnswer.VOTE
    return forecast(
        settings.epsilon, settings.delta, layout, answer=vote, noise=local, classes=classes
    )


def _alone(
    path: Path, arch: str | None, settings: TranscribeSettings, force: bool, as_json: bool
) -> "ImportedNetworks":
    """One network, if it is insisted on; otherwise what to do instead."""
    from fedtranscribe.models.registry import class_count
    from fedtranscribe.models.teacher_import import one_network

    assert arch is not None  # `_expect_networks`, or the declaration
    classes = class_count(arch, path)
    expected = _forecast(settings, 1, classes)
    ways = _ways_out(path, arch, settings)
    if expected.hopeless and not force:
        facts = {"network": str(path), "architecture": arch, "classes": classes, "teachers": 1}
        facts |= {"epsilon": settings.epsilon, "delta": settings.delta, "unit": "record"}
        facts |= {"verdict": expected.verdict.value, "signal": expected.signal}
        if as_json:
            ahead = {"forecast": expected.words, "ways": ways, "imported": False}
            emit({**facts, **ahead}, as_json=True, title="")
        else:
            emit({**facts, "forecast": expected.words}, as_json=False, title="One opaque network")
            for number, (what, command) in enumerate(ways.items(), 1):
                say_path(f"{number}. {what}", command)
        raise HopelessPlanError(
            f"One network that was trained on all records cannot be transcribed at "
            f"ε = {settings.epsilon:g}; nothing was imported. Choose one of the three ways, or add "
            "--force."
        )
    if settings.data is None:
        raise ConfigError(
            "Expected --data with one network: the records that it was trained on, to whose ledger "
            "its answers are charged."
        )
    split = _records(settings)
    assert split is not None
    return one_network(path, split, settings.model_copy(update={"teacher": arch}))


def _ways_out(path: Path, arch: str, settings: TranscribeSettings) -> dict[str, str]:
    """What to do instead of transcribing one network, each with its command."""
    data = settings.data or "DATA"
    return {
        "Train an ensemble on disjoint shards of the records": (
            f"fedtranscribe teacher train --data {data} --arch {arch} --shards 250 --out teachers"
        ),
        "Leave the network out: let noisy sums over the records teach a student": (
            f"fedtranscribe transcribe --data {data}"
        ),
        "Only if the network never saw the private records: use it as public features": (
            f"fedtranscribe transcribe --data {data} --features {arch} --features-weights {path} "
            "--features-declared-by NAME"
        ),
    }


@teacher_app.command("info")
def info(
    folder: Annotated[Path, typer.Argument(help="Folder of `teacher train` or `import`.")],
    as_json: Json = False,
) -> None:
    """Describe a folder of teachers, and check that every shard can be loaded.

    \b
    Example:
      fedtranscribe teacher info teachers --json
    """
    _describe(folder, as_json)


def _describe(folder: Path, as_json: bool, **more: str) -> None:
    expect_teachers(folder)

    import torch

    from fedtranscribe.models.ensemble import Ensemble

    teachers = Ensemble(folder, torch.device("cpu"))
    teachers.verify()
    hidden = {"key", "complete", "version"}
    if teachers.manifest.imported is not None:
        hidden |= {"settings", "seed", "weights", "weights_declared_by"}  # of our own training
    described = teachers.manifest.model_dump(mode="json", exclude=hidden)
    emit({"folder": str(folder), **described, **more}, as_json, "Teachers")


data_app = group("Prepare data sets of your own.")

_PACK = """Write the pictures of an image folder as arrays that runs read a few at a time.

\b
Examples:
  fedtranscribe data pack pictures --out scans
  fedtranscribe data pack pictures --out scans --image-size 64 --ids patients.csv

Afterwards name the new folder: fedtranscribe transcribe --data scans. Records, ids and data id stay
those of the pictures, and so does the budget.
"""


@data_app.command("pack", help=_PACK, cls=GroupedCommand)
@settings_options(
    TranscribeSettings,
    only=(
        "classes",
        "ids",
        "id_pattern",
        "image_size",
        "bit_depth",
        "channels",
        "allow_skipped",
        "ledger",
    ),
)
def pack_command(
    typed: dict[str, Any],
    folder: Annotated[Path, typer.Argument(help="Image folder, one subfolder per class.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    as_json: Json = False,
) -> None:
    """Pack an image folder."""
    place = typed.pop("ledger", None)
    own = build(OwnData, typed)
    expect_data(str(folder))
    expect_free(out)

    from fedtranscribe.data.array_folders import pack

    with StageBars() as bars:
        ledger = pack(folder, out, own, bars, ledger=place, say=bars.say)
    emit({"folder": str(out), "ledger": str(ledger)}, as_json, "Packed")
