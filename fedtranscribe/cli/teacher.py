"""`fedtranscribe teacher train|info`: the data holder's own networks."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedtranscribe.cli.options import Json, group
from fedtranscribe.cli.output import emit
from fedtranscribe.cli.runs import expect_known
from fedtranscribe.cli.settings_options import GroupedCommand, about, settings_options
from fedtranscribe.config import OwnData, Topic, TranscribeSettings, build, read_toml
from fedtranscribe.stage_bars import StageBars

teacher_app = group("Train teachers on disjoint shards of private records, and describe them.")

_TRAIN = """Train one teacher, or p teachers on disjoint shards.

\b
Examples:
  fedtranscribe teacher train --data digits --shards 250 --out teachers
  fedtranscribe teacher train --data mnist --data-root DIR --arch cnn --out mnist-teacher
  fedtranscribe teacher train --data scans.npz --arch resnet50 --shards 100 --out teachers

Run it again after an interrupt: shards that are there are kept.
"""


_OF_RUNS = ("teacher_weights", "data_root", "download", "device", "seed")


@teacher_app.command("train", help=_TRAIN, cls=GroupedCommand)
@settings_options(TranscribeSettings, only=(*OwnData.model_fields, *_OF_RUNS))
def train(
    typed: dict[str, Any],
    data: Annotated[
        str, typer.Option(help=about(TranscribeSettings, "data"), rich_help_panel=Topic.DATA)
    ],
    out: Annotated[Path, typer.Option(help="Folder for the teachers.")],
    arch: Annotated[str, typer.Option(help="Architecture.")] = "cnn",
    shards: Annotated[int, typer.Option(help="Disjoint shards, one teacher each.")] = 1,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with a table [teachers].", rich_help_panel=Topic.RUN),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train teachers."""
    given = read_toml(config) if config else {}
    own = {"data": data, "teacher": arch, "shards": shards}
    settings = build(TranscribeSettings, {**given, **typed, **own})
    expect_known(settings.data, networks=[settings.teacher])

    from joblib import cpu_count

    from fedtranscribe.data import load
    from fedtranscribe.models import pick_device
    from fedtranscribe.run_directory import check_writable
    from fedtranscribe.runs.picking import training_mode
    from fedtranscribe.runs.preparation import make_manifest
    from fedtranscribe.teachers import train_teachers

    images = load(data, settings.data_root, settings.download, settings.own_data).train
    # One teacher is worth a whole network; hundreds of large ones are not to be had in minutes.
    mode = "full" if shards == 1 else training_mode(arch, settings.teacher_weights)
    manifest = make_manifest(settings, images, shards, mode)
    check_writable(out)
    with StageBars() as bars:
        train_teachers(
            images,
            manifest,
            out,
            device=pick_device(settings.device),
            progress=lambda done, total: bars("teachers on disjoint shards", done, total),
            workers=cpu_count(),
        )
    _describe(out, as_json)


@teacher_app.command("info")
def info(
    folder: Annotated[Path, typer.Argument(help="Folder made by `teacher train`.")],
    as_json: Json = False,
) -> None:
    """Describe a folder of teachers, and check that every shard can be loaded.

    \b
    Example:
      fedtranscribe teacher info teachers --json
    """
    _describe(folder, as_json)


def _describe(folder: Path, as_json: bool) -> None:
    import torch

    from fedtranscribe.teachers import Ensemble

    teachers = Ensemble(folder, torch.device("cpu"))
    teachers.verify()
    described = teachers.manifest.model_dump(mode="json", exclude={"key", "complete", "version"})
    emit({"folder": str(folder), **described}, as_json, "Teachers")
