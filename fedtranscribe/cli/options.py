"""Options that several commands share, each said once, and how groups of commands behave."""

from pathlib import Path
from typing import Annotated

import typer

from fedtranscribe.privacy.calibrate import NoiseMode, RowAnswer
from fedtranscribe.privacy.units import Adjacency, Unit

Epsilon = Annotated[float, typer.Option(help="Target ε of the whole plan.")]
Delta = Annotated[float, typer.Option(help="δ at which ε is quoted.")]
Rows = Annotated[int, typer.Option(help="Rows asked in the whole plan.")]
Teachers = Annotated[int, typer.Option(help="Teachers on disjoint records, over all holders.")]
Holders = Annotated[int, typer.Option(help="Data holders, each with the same number of teachers.")]
UnitOption = Annotated[Unit, typer.Option("--unit", help="Whose presence is hidden.")]
AdjacencyOption = Annotated[
    Adjacency, typer.Option("--adjacency", help="Against which change the headline holds.")
]
Noise = Annotated[NoiseMode, typer.Option(help="Where the noise is added.")]
Answer = Annotated[RowAnswer, typer.Option(help="What a noisy row is.")]
Records = Annotated[int, typer.Option(help="Private records.")]
Batch = Annotated[int, typer.Option(help="Expected records per Poisson batch.")]
Epochs = Annotated[float, typer.Option(help="Passes over the records.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]

# Of the calculators.
Sigma = Annotated[float, typer.Option(help="Noise multiplier.")]
Dimensions = Annotated[int, typer.Option(help="Numbers in an image, d.")]
Queries = Annotated[int, typer.Option(help="Labels asked in the whole plan.")]
SetSize = Annotated[int, typer.Option(help="Size of the set that a label is randomised over.")]
LabelEpsilon = Annotated[float, typer.Option(help="ε of one randomised label.")]

# Of runs; what is left out is the settings file's, or the default of the settings.
Data = Annotated[
    str | None, typer.Option(help="Private data: a name, an .npz file, or an image folder.")
]
DataRoot = Annotated[Path | None, typer.Option(help="Where named data sets lie.")]
Download = Annotated[bool | None, typer.Option("--download", help="Fetch a missing data set.")]
ImageSize = Annotated[
    int | None, typer.Option(help="Pixels a side, for an image folder of mixed sizes.")
]
ClassesOption = Annotated[
    str | None, typer.Option("--classes", help="Own data: how many classes, or names by commas.")
]
Ids = Annotated[
    Path | None, typer.Option(help="Image folder: CSV file with path and id of each image.")
]
IdPattern = Annotated[
    str | None, typer.Option(help="Image folder: regular expression; its group is a path's id.")
]
BitDepth = Annotated[
    int | None, typer.Option(help="Bits that 16-bit grey values use: 12 for many DICOM exports.")
]
MaxGib = Annotated[
    float | None, typer.Option(help="Most memory that the images may take, in GiB. [default: 8]")
]
PublicImages = Annotated[
    str | None, typer.Option(help="Public images to start from: shapes, uci-digits, …, none.")
]
RunEpsilon = Annotated[float | None, typer.Option(help="ε of this run.")]
RunDelta = Annotated[float | None, typer.Option(help="δ at which ε is quoted.")]
Budget = Annotated[
    float | None, typer.Option(help="Most ε that all runs on these data may reach together.")
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, …")]
Seed = Annotated[int | None, typer.Option(help="Public randomness; never the noise.")]
Out = Annotated[Path | None, typer.Option(help="Run folder.")]
LedgerFile = Annotated[
    Path | None, typer.Option(help="Budget book of the data; default: beside them.")
]
Tensorboard = Annotated[
    bool | None, typer.Option("--tensorboard", help="Write TensorBoard event files too.")
]
SettingsFile = Annotated[Path | None, typer.Option(help="TOML file with settings.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]

# Of what is done with finished runs.
Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")]


def group(purpose: str) -> typer.Typer:
    """A group of commands that shows its help when no command is named."""
    app = typer.Typer(
        help=purpose,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        invoke_without_command=True,
    )

    @app.callback(help=purpose)
    def _show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return app
