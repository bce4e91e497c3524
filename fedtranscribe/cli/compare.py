"""`fedtranscribe compare`: finished runs side by side, those of several seeds as one row."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedtranscribe.cli.options import Json, Runs
from fedtranscribe.cli.output import emit

if TYPE_CHECKING:
    from fedtranscribe.evaluation import Comparison

_EXAMPLES = """Compare finished runs; runs that differ by their seed alone become one row.

\b
Examples:
  fedtranscribe compare runs/*                            # a table
  fedtranscribe compare runs/eps-* --out results          # and compare.json, compare.md, curve.png

Downstream accuracy and FID come from `fedtranscribe evaluate`. Accuracy on your own records is
shown here only, with a stamp; the files say `private`.
"""


def compare_command(
    runs: Runs,
    out: Annotated[
        Path | None, typer.Option(help="Folder for compare.json, compare.md and curve.png.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run it; the help text is `_EXAMPLES`."""
    from fedtranscribe.evaluation import compare

    comparison = compare(runs)
    written = comparison.write(out) if out is not None else []
    if as_json:
        emit(comparison.to_json(), as_json=True, title="")
        return
    show(comparison)
    for path in written:
        Console().print(f"written: {escape(str(path))}", highlight=False)


compare_command.__doc__ = _EXAMPLES


def show(comparison: "Comparison") -> None:
    """Print the table; accuracy on a user's own records under its stamp."""
    from fedtranscribe.evaluation.comparison import SPREAD_WORDS, cells, percent

    console = Console()
    table = Table(title="Finished runs", title_justify="left", show_lines=True)
    for name in ("what", "ε (sound)", "rows"):
        table.add_column(name)
    for name in ("student %", "CNN %", "FID"):
        table.add_column(name, justify="right")
    for group in comparison.groups:
        method, data, privacy, unit, epsilon, delta, noise, rows, runs, *figures = cells(group)
        if group.private:
            figures[0] = f"{percent(group.own_accuracy)} NOT PRIVATE"
        table.add_row(
            escape(f"{method}, {data}\n{privacy}, {unit}"),
            f"{epsilon}, δ = {delta}\nnoise {noise}",
            f"{rows}\nruns: {runs}",
            *figures,
        )
    console.print(table)
    console.print(f"[dim]{SPREAD_WORDS}[/dim]")
    for words in comparison.features:
        console.print(f"[dim]FID under {escape(words)}[/dim]", highlight=False)
    if any(group.private for group in comparison.groups):
        console.print(
            "[bold red]NOT PRIVATE: accuracy on a holder's own held-out records; do not "
            "release.[/bold red]"
        )
