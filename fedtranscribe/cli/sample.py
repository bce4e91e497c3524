"""`fedtranscribe sample`: labelled images from the generator of a finished run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedtranscribe.cli.options import Json, Run
from fedtranscribe.cli.output import emit
from fedtranscribe.cli.runs import expect_finished
from fedtranscribe.cli.settings_options import settings_options
from fedtranscribe.config import Place, Topic, build
from fedtranscribe.files import expect_free
from fedtranscribe.stage_bars import StageBars

_EXAMPLES = """Draw labelled images from the generator of a finished run; this costs no privacy.

\b
Examples:
  fedtranscribe sample runs/digits --num 1000 --out samples.npz    # --data reads it
  fedtranscribe sample runs/digits --num 100 --labels 3,7 --out pictures
  fedtranscribe sample runs/diffusion --num 100 --guidance 1 --steps 50 --out guided.npz

An .npz holds `images` (uint8), `labels` (int64), `classes` and what they were drawn from; a folder
holds PNG, one sub-folder per label. A diffusion model and a mixture draw the classes that you ask
for; the student labels what another generator draws. A diffusion model that learned no labels gives
none; only a diffusion model takes --steps and --guidance. For other runs on the same records,
samples do not count as public images.
"""


@settings_options(Place, only=("device",))
def sample_command(
    typed: dict[str, Any],
    run: Run,
    num: Annotated[int, typer.Option(help="Images to draw.")],
    out: Annotated[Path, typer.Option(help="A file .npz, or a folder.")],
    labels: Annotated[
        str,
        typer.Option(
            metavar="[all|uniform|NAMES]",
            help="all (equal numbers), uniform (at random), or classes, separated by commas.",
        ),
    ] = "all",
    steps: Annotated[
        int | None, typer.Option(help="Sampler steps T'; default: those of the run.")
    ] = None,
    guidance: Annotated[
        float | None, typer.Option(help="Guidance weight w; default: that of the run.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Public randomness.", rich_help_panel=Topic.RUN)
    ] = 0,
    as_json: Json = False,
) -> None:
    """Run it; the help text is `_EXAMPLES`."""
    expect_finished(run)
    expect_free(out)

    from fedtranscribe.models import pick_device
    from fedtranscribe.runs.sampling import Sampler
    from fedtranscribe.synthesis.samples import drawn_from, expect_writable, write_samples

    device = pick_device(build(Place, typed).device)
    sampler = Sampler(run, labels, num, seed, device, steps, guidance)
    result = sampler.result
    expect_writable(out)
    with StageBars() as bars:
        for caveat in result.guarantee.caveats:
            bars.say(f"NOT PRIVATE: {caveat}")
        drawn = sampler.draw(lambda done, total: bars("samples", done, total))
        names, origin = result.class_names, drawn_from(result)
        write_samples(drawn.images, drawn.labels, out, drawn.classes, names, origin)
    told = {
        "out": str(out),
        "images": num,
        "shape": "x".join(str(side) for side in drawn.images.shape[1:]),
        "classes": drawn.classes,
        "steps": drawn.steps,
        "guidance": drawn.guidance,
        "seed": seed,
        "run": result.run,
        "private": result.guarantee.private,
        "epsilon": result.guarantee.epsilon,
    }
    emit(told, as_json, "Samples")


sample_command.__doc__ = _EXAMPLES
