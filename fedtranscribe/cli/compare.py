"""`fedtranscribe compare`: finished runs side by side, those of several seeds as one row."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtranscribe.cli.options import Json, Runs
from fedtranscribe.cli.output import emit, say, say_path, show_table
from fedtranscribe.cli.runs import expect_finished

if TYPE_CHECKING:
    from fedtranscribe.evaluation import Comparison

_EXAMPLES = """Compare finished runs; runs that differ only in their seed are one row.

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
    expect_finished(*runs)

    from fedtranscribe.evaluation import compare

    comparison = compare(runs)
    written = comparison.write(out) if out is not None else []
    if as_json:
        emit(comparison.to_json(), as_json=True, title="")
        return
    show(comparison)
    for path in written:
        say_path("written", path)


compare_command.__doc__ = _EXAMPLES


def show(comparison: "Comparison") -> None:
    """Print the table; accuracy on a user's own records under its stamp."""
    from fedtranscribe.evaluation.comparison import SPREAD_WORDS, cells, percent

    figures = ("student %", "CNN %", "FID")
    rows = []
    for group in comparison.groups:
        method, data, privacy, unit, epsilon, delta, noise, answered, runs, *shown = cells(group)
        if group.private:
            shown[0] = f"{percent(group.own_accuracy)} NOT PRIVATE"
        what = (f"{method}, {data}", f"{privacy}, {unit}")
        cost = (f"{epsilon}, δ = {delta}", f"noise {noise}")
        rows.append((what, cost, (answered, f"runs: {runs}"), *shown))
    columns = ("what", "ε (sound)", "rows", *figures)
    show_table("Finished runs", columns, rows, right=figures, lines=True)
    say(SPREAD_WORDS, "dim")
    for words in comparison.features:
        say(f"FID under {words}", "dim")
    if any(group.private for group in comparison.groups):
        say("NOT PRIVATE: accuracy on a holder's own held-out records; do not release.", "bold red")
