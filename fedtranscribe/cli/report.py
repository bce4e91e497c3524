"""`fedtranscribe report`: one page per finished run, or one page over several."""

from pathlib import Path
from typing import Annotated

import typer

from fedtranscribe.cli.options import Runs
from fedtranscribe.cli.output import say_path
from fedtranscribe.cli.runs import expect_finished
from fedtranscribe.errors import ConfigError

_EXAMPLES = """Write a finished run as one HTML page: verdict, figures, ε, samples, audits.

\b
Examples:
  fedtranscribe report runs/demo                             # into runs/demo/report.html
  fedtranscribe report runs/demo --out demo.html
  fedtranscribe report runs/eps-* --out comparison.html      # one page over several runs

The page needs no server and no script, and shows nothing that was measured on your own records.
Run `fedtranscribe evaluate` and `fedtranscribe audit` before: what they found is shown too.
"""


def report_command(
    runs: Runs,
    out: Annotated[
        Path | None, typer.Option(help="Page to write; RUN/report.html for a single run.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="Ledger of the data, where the run does not name it.")
    ] = None,
) -> None:
    """Run it; the help text is `_EXAMPLES`."""
    if len(runs) > 1 and out is None:
        raise ConfigError(f"Expected --out FILE for one page over {len(runs)} runs.")
    if len(runs) > 1 and ledger is not None:
        raise ConfigError("Expected --ledger with a single run; a comparison shows no ledger.")
    expect_finished(*runs)

    from fedtranscribe.report import write_comparison, write_report

    if len(runs) > 1 and out is not None:
        written = write_comparison(runs, out)
    else:
        written = write_report(runs[0], out, ledger)
    say_path("Report", written)


report_command.__doc__ = _EXAMPLES
