"""`fedtranscribe teacher train|info`: the data holder's own networks."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedtranscribe.cli.options import (
    BitDepth,
    ClassesOption,
    DataRoot,
    IdPattern,
    Ids,
    ImageSize,
    Json,
    MaxGib,
    group,
)
from fedtranscribe.cli.output import emit
from fedtranscribe.cli.progress import StageBars
from fedtranscribe.config import TranscribeSettings, build, read_toml

teacher_app = group("Train teachers on disjoint shards of private records, and describe them.")

_TRAIN = """Train one teacher, or p teachers on disjoint shards.

\b
Examples:
  fedtranscribe teacher train --data digits --shards 250 --out teachers
  fedtranscribe teacher train --data mnist --data-root DIR --arch cnn --out mnist-teacher
  fedtranscribe teacher train --data scans.npz --arch resnet50 --shards 100 --out teachers

Run it again after an interrupt: shards that are there are kept.
"""


@teacher_app.command("train", help=_TRAIN)
def train(
    data: Annotated[str, typer.Option(help="A name, an .npz file, or an image folder.")],
    out: Annotated[Path, typer.Option(help="Folder for the teachers.")],
    arch: Annotated[str, typer.Option(help="Architecture.")] = "cnn",
    shards: Annotated[int, typer.Option(help="Disjoint shards, one teacher each.")] = 1,
    teacher_weights: Annotated[
        str | None, typer.Option(help="'imagenet' or a file: a public start.")
    ] = None,
    data_root: DataRoot = None,
    classes: ClassesOption = None,
    ids: Ids = None,
    id_pattern: IdPattern = None,
    image_size: ImageSize = None,
    bit_depth: BitDepth = None,
    max_gib: MaxGib = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch a missing data set.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    seed: Annotated[int, typer.Option(help="Public randomness.")] = 0,
    config: Annotated[Path | None, typer.Option(help="TOML file with a table [teachers].")] = None,
    as_json: Json = False,
) -> None:
    """Train teachers."""
    values: dict[str, Any] = read_toml(config) if config else {}
    values |= {
        "data": data,
        "data_root": data_root,
        "download": download,
        "teacher": arch,
        "teacher_weights": teacher_weights,
        "shards": shards,
        "device": device,
        "seed": seed,
    }
    own: dict[str, Any] = {
        "classes": classes,
        "ids": ids,
        "id_pattern": id_pattern,
        "image_size": image_size,
        "bit_depth": bit_depth,
        "max_gib": max_gib,
    }
    values |= {name: value for name, value in own.items() if value is not None}
    settings = build(TranscribeSettings, values)

    from fedtranscribe.data import load
    from fedtranscribe.teachers import train_teachers
    from fedtranscribe.transcribe.picking import training_mode
    from fedtranscribe.transcribe.preparation import make_manifest
    from fedtranscribe.transcribe.rundir import check_writable
    from fedtranscribe.transcribe.session import pick_device

    images = load(data, data_root, download, settings.own_data).train
    # One teacher is worth a whole network; hundreds of large ones are not to be had in minutes.
    mode = "full" if shards == 1 else training_mode(arch, teacher_weights)
    manifest = make_manifest(settings, images, shards, mode)
    check_writable(out)
    with StageBars() as bars:
        train_teachers(
            images,
            manifest,
            out,
            device=pick_device(device),
            progress=lambda done, total: bars("teachers on disjoint shards", done, total),
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

    from fedtranscribe.teachers import Teachers

    teachers = Teachers(folder, torch.device("cpu"))
    teachers.verify()
    described = teachers.manifest.model_dump(mode="json", exclude={"key", "complete", "version"})
    emit({"folder": str(folder), **described}, as_json, "Teachers")
