"""Options that several commands share, each said once, and how groups of commands behave."""

from pathlib import Path
from typing import Annotated

import typer

from fedtranscribe.cli.settings_options import about
from fedtranscribe.config import FederationSettings, RunOptions, StudentSettings, Topic
from fedtranscribe.privacy.units import Adjacency, NoiseMode, RowAnswer, Unit

Epsilon = Annotated[float, typer.Option(help="Target ε of the whole plan.")]
Delta = Annotated[float, typer.Option(help=about(RunOptions, "delta"))]
Rows = Annotated[int, typer.Option(help="Rows (images that teachers label) in all.")]
Teachers = Annotated[int, typer.Option(help="Teachers of all holders, on disjoint records.")]
Holders = Annotated[int, typer.Option(help="Data holders, each with the same number of teachers.")]
UnitOption = Annotated[Unit, typer.Option("--unit", help=about(StudentSettings, "unit"))]
AdjacencyOption = Annotated[
    Adjacency, typer.Option("--adjacency", help="The change to a record that ε hides.")
]
Noise = Annotated[NoiseMode, typer.Option(help="Where the noise is added.")]
Dropouts = Annotated[
    int | None,
    typer.Option(
        help="secagg: holders that may miss from a sum.  [default: 1]",
    ),
]
Colluders = Annotated[
    int | None,
    typer.Option(help="secagg: holders that may side with the server.  [default: 1]"),
]
Classes = Annotated[int, typer.Option(help="Classes of the task: numbers in a row.")]
Answer = Annotated[RowAnswer, typer.Option(help="What a row of the answer holds.")]
Records = Annotated[int, typer.Option(help="Private records.")]
Batch = Annotated[int, typer.Option(help="Expected records per Poisson batch.")]
Epochs = Annotated[float, typer.Option(help="Passes over the records.")]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON object instead of a table.", rich_help_panel=Topic.RUN
    ),
]

# Of the calculators.
Sigma = Annotated[float, typer.Option(help="Noise multiplier.")]
Dimensions = Annotated[int, typer.Option(help="Numbers in an image, d.")]
Queries = Annotated[int, typer.Option(help="Labels in all.")]
SetSize = Annotated[int, typer.Option(help="Classes that a label is randomised over.")]
LabelEpsilon = Annotated[float, typer.Option(help="ε of one randomised label.")]

# Of runs.
Out = Annotated[
    Path | None, typer.Option(help=about(StudentSettings, "out"), rich_help_panel=Topic.RUN)
]
SettingsFile = Annotated[
    Path | None, typer.Option(help="TOML file with settings.", rich_help_panel=Topic.RUN)
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help=about(FederationSettings, "resume"), rich_help_panel=Topic.RUN),
]
Force = Annotated[
    bool,
    typer.Option("--force", help=about(FederationSettings, "force"), rich_help_panel=Topic.RUN),
]
Plan = Annotated[
    bool,
    typer.Option(
        "--plan",
        help="Print what the run would ask and cost, and stop: nothing is spent or written.",
        rich_help_panel=Topic.RUN,
    ),
]

# Of what is done with finished runs.
Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]


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
