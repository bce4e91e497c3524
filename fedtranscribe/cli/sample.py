"""`fedtranscribe sample`: images from a diffusion model that `synthesize` trained."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedtranscribe.cli.options import Json
from fedtranscribe.cli.output import emit
from fedtranscribe.cli.progress import StageBars
from fedtranscribe.cli.settings_options import settings_options
from fedtranscribe.config import Place, Topic, build

_EXAMPLES = """Draw images from a finished run of `synthesize`: as many as wanted, at no cost.

\b
Examples:
  fedtranscribe sample runs/digits --num 1000 --out samples.npz    # --data reads it
  fedtranscribe sample runs/digits --num 100 --labels 3,7 --out pictures
  fedtranscribe sample runs/digits --num 100 --guidance 1 --steps 50 --out guided.npz

An .npz holds `images` (uint8), `labels` (int64), `classes` and what they were drawn from; a folder
holds PNG, one sub-folder per label. A network that learned no labels gives none. Beside the records
that the run learned from samples are no public images: transcribe --generator counts their cost.
"""


@settings_options(Place, only=("device",))
def sample_command(
    typed: dict[str, Any],
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    num: Annotated[int, typer.Option(help="Images to draw.")],
    out: Annotated[Path, typer.Option(help="A file .npz, or a folder.")],
    labels: Annotated[
        str, typer.Option(help="all (each alike), uniform (by lot), or classes by commas.")
    ] = "all",
    steps: Annotated[int | None, typer.Option(help="T', if not the run's.")] = None,
    guidance: Annotated[float | None, typer.Option(help="w, if not the run's.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Public randomness.", rich_help_panel=Topic.RUN)
    ] = 0,
    as_json: Json = False,
) -> None:
    """Run it; the help text is `_EXAMPLES`."""
    from fedtranscribe.models import pick_device
    from fedtranscribe.synthesize.samples import (
        chosen_labels,
        drawn_from,
        expect_free,
        open_run,
        write_samples,
    )

    model, result = open_run(run, pick_device(build(Place, typed).device))
    model = model.told(steps, guidance)
    wanted = chosen_labels(labels, num, model.classes, seed)
    expect_free(out)
    with StageBars() as bars:
        for caveat in result.guarantee.caveats:
            bars.say(f"NOT PRIVATE: {caveat}")
        images = model.draw(wanted, seed, lambda done, total: bars("samples", done, total))
        labelled = wanted if model.classes else None
        write_samples(images, labelled, out, model.classes, result.class_names, drawn_from(result))
    told = {
        "out": str(out),
        "images": num,
        "shape": "x".join(str(side) for side in images.shape[1:]),
        "classes": model.classes,
        "steps": model.sampling.steps,
        "guidance": model.sampling.guidance,
        "seed": seed,
        "run": result.run,
        "private": result.guarantee.private,
        "epsilon": result.guarantee.epsilon,
    }
    emit(told, as_json, "Samples")


sample_command.__doc__ = _EXAMPLES
