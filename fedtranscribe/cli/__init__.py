"""The command line. Commands that need torch import it inside their functions.

What a user can do wrong ends as one line on standard error and an exit code that names the kind
of mistake (see `fedtranscribe.errors`); a traceback is always our mistake.
"""

import os
import re
import signal
import sys
from types import FrameType
from typing import Annotated

import typer
import typer.core

from fedtranscribe import __version__
from fedtranscribe.cli.audit import audit_command, plant_command
from fedtranscribe.cli.deploy import deploy_app
from fedtranscribe.cli.finished import (
    compare_command,
    evaluate_command,
    report_command,
    sample_command,
)
from fedtranscribe.cli.holder import holder_app
from fedtranscribe.cli.options import GroupedCommand, group
from fedtranscribe.cli.output import print_in_any_encoding, warn
from fedtranscribe.cli.privacy import privacy_app
from fedtranscribe.cli.release import release_app
from fedtranscribe.cli.teacher import data_app, teacher_app
from fedtranscribe.cli.transcribe import simulate_command, synthesize_command, transcribe_command
from fedtranscribe.errors import ConfigError, FedtranscribeError, StorageError

_INTERRUPTED, _TERMINATED = 130, 143

_SUGGESTION = re.compile(r"(Did you mean [^?]*\?)(?: \1)+")

# Read when torch is loaded. By default its threads wait spinning, which beside another busy process
# makes training ten times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# It escapes brackets of help texts for rich wherever rich is installed, although rich does not
# print them here: "\\[required]".
typer.core.HAS_RICH = False

# Typer carries click inside itself since 0.2x, so that `import click` would name another class.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]

app = group("Learn a differentially private student and generator from private images.")
app.add_typer(privacy_app, name="privacy")
app.add_typer(teacher_app, name="teacher")
app.add_typer(data_app, name="data")
app.add_typer(holder_app, name="holder")
app.command("transcribe", cls=GroupedCommand)(transcribe_command)
app.command("synthesize", cls=GroupedCommand)(synthesize_command)
app.command("sample", cls=GroupedCommand)(sample_command)
app.command("simulate")(simulate_command)
app.command("evaluate", cls=GroupedCommand)(evaluate_command)
app.command("compare")(compare_command)
app.command("audit", cls=GroupedCommand)(audit_command)
app.command("plant", cls=GroupedCommand)(plant_command)
app.command("report")(report_command)
app.add_typer(release_app, name="release")
app.add_typer(deploy_app, name="deploy")


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Learn a differentially private student and generator from private images."""
    if version:
        typer.echo(f"fedtranscribe {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


class Terminated(KeyboardInterrupt):
    """SIGTERM: a run ends as after Ctrl-C, and says how to go on with it."""


def main() -> None:
    """Run the command line and exit with its code."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run(sys.argv[1:]))


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def run(arguments: list[str]) -> int:
    """Run one command line; errors become one line on standard error."""
    print_in_any_encoding()
    try:
        code = app(arguments, standalone_mode=False, prog_name="fedtranscribe")
    except FedtranscribeError as error:
        return _print_error(str(error), error.exit_code)
    except _USAGE_ERROR as error:
        return _print_error(_usage(error), ConfigError.exit_code)
    except Terminated:
        return _print_error("terminated.", _TERMINATED)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return _print_error(f"{error.strerror or error}{where}.", StorageError.exit_code)
    if code == _INTERRUPTED:
        return _print_error("interrupted.", _INTERRUPTED)
    return code if isinstance(code, int) else 0


def _usage(error: Exception) -> str:
    message = str(error.format_message())  # pyright: ignore[reportAttributeAccessIssue]
    # Both click and typer suggest a close name.
    once = _SUGGESTION.sub(r"\1", message).strip().rstrip(".")
    return f"{once}{'' if once.endswith('?') else '.'} Try --help."


def _print_error(message: str, code: int) -> int:
    warn(f"error: {' '.join(message.split())}")
    return code
