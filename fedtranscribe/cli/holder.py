"""`fedtranscribe holder …`: what a data holder's administrator does."""

import importlib.util
import json
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from fedtranscribe.cli.options import Json, group
from fedtranscribe.cli.output import emit, emit_json, say_path, show_table
from fedtranscribe.config import read_toml
from fedtranscribe.errors import ConfigError, FederationError
from fedtranscribe.text import counted

holder_app = group("Run a data holder's service, and look after its budget.")
ledger_app = group("Read, prove and export a ledger; nothing here writes to it.")
policy_app = group("Check a holder's policy file.")
holder_app.add_typer(ledger_app, name="ledger")
holder_app.add_typer(policy_app, name="policy")


def _readable(policy: Path) -> Path:
    """Refuse a file that is absent or no TOML before torch is loaded."""
    read_toml(policy)
    return policy


PolicyFile = Annotated[
    Path, typer.Option("--policy", help="The holder's file.", callback=_readable)
]
LedgerFile = Annotated[Path, typer.Argument(help="The ledger's SQLite file.")]

_NEEDED = ("grpc", "grpc_health", "prometheus_client")

_SERVE = """Answer on the local socket, within the policy, until stopped.

\b
Examples:
  fedtranscribe holder serve                            # policy.toml in this folder
  fedtranscribe holder serve --policy /etc/holder/policy.toml

It checks policy, records, teachers and the whole ledger before it takes the first question. On
SIGTERM it answers the question that it works on, and ends. Run it as another user than the
SuperNode.
"""


@holder_app.command("serve", help=_SERVE)
def serve_command(policy: PolicyFile = Path("policy.toml")) -> None:
    """Serve."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"A holder service needs {' and '.join(missing)}: "
            "pip install 'fedtranscribe[federation]'."
        )
    from fedtranscribe.holder.holder_file import HolderFile
    from fedtranscribe.holder.service import serve

    file = HolderFile.read(policy)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    serve(file, stop, lambda: say_path(f"{file.holder.name} answers on", file.holder.socket))


@holder_app.command("status")
def status(policy: PolicyFile = Path("policy.toml"), as_json: Json = False) -> None:
    """Show whether the service answers, what is booked, left and stored, limits, runs and refusals.

    `proved` is when the whole ledger was last proved, by the service or by a run.

    The exit code is 8 if no service answers.

    \b
    Example:
      fedtranscribe holder status --policy policy.toml --json
    """
    from fedtranscribe.holder.holder_file import HolderFile
    from fedtranscribe.holder.link import is_serving
    from fedtranscribe.holder.readiness import budget_left, limits, quotas
    from fedtranscribe.holder.service import refusals
    from fedtranscribe.privacy.ledger import Ledger

    file = HolderFile.read(policy)
    serving = is_serving(file.holder.socket)
    state = {"holder": file.holder.name, "serving": serving, "socket": str(file.holder.socket)}
    if file.holder.ledger.exists():
        with Ledger.open_read_only(file.holder.ledger) as ledger:
            runs = {run.run: {"first": run.first, "rows": run.rows} for run in ledger.runs()}
            booked, since = budget_left(ledger), limits(ledger)
            quota, proved = quotas(file, ledger), ledger.proved or None
    else:
        runs, booked, since, quota, proved = {}, {}, {}, {}, None
    state |= {"budget": booked, "limits": since, "quotas": quota, "proved": proved, "runs": runs}
    state |= {"refusals": refusals(file.holder.log)}
    if as_json:
        emit(state, as_json=True, title="")
    else:
        cells = {
            run: f"{counted(facts['rows'], 'row')} since {facts['first']}"
            for run, facts in runs.items()
        }
        full = {name: f"{each['used']} of {each['limit']}" for name, each in quota.items()}
        emit({**state, "quotas": full, "runs": cells}, as_json=False, title="Holder")
    if not serving:
        raise typer.Exit(FederationError.exit_code)


@policy_app.command("check")
def check(
    policy: Annotated[Path, typer.Argument(help="The holder's file.")], as_json: Json = False
) -> None:
    """Check a policy file, and the records, teachers, ledger and folders that it names.

    The exit code is 2 if anything is wrong.

    \b
    Example:
      fedtranscribe holder policy check policy.toml
    """
    from fedtranscribe.holder.readiness import examine

    findings = examine(policy)
    if as_json:
        emit_json([vars(finding) for finding in findings])
    else:
        rows = [("ok" if f.ok else "not ok", f.name, f.words) for f in findings]
        show_table(policy, ("", "checked", ""), rows)
    wrong = [finding.name for finding in findings if not finding.ok]
    if wrong:
        raise ConfigError(f"{policy}: {', '.join(wrong)} cannot be used as they are.")


@ledger_app.command("show")
def show(ledger: LedgerFile, as_json: Json = False) -> None:
    """Show every limit, what is booked per unit, every run, and when all of it was last proved.

    \b
    Example:
      fedtranscribe holder ledger show ledger.sqlite --json
    """
    from fedtranscribe.privacy.ledger import Ledger

    with Ledger.open_read_only(ledger) as book:
        from fedtranscribe.holder.readiness import budget_left, limits

        head = book.head
        facts = {
            "data": book.data_id,
            "entries": head.sequence,
            "head": head.hash,
            "proved": book.proved or None,
            "budget": budget_left(book),
            "limits": limits(book),
            "runs": {
                run.run: f"{counted(run.rows, 'row')} since {run.first}" for run in book.runs()
            },
        }
    emit(facts, as_json, "Ledger")


@ledger_app.command("verify")
def verify(ledger: LedgerFile, as_json: Json = False) -> None:
    """Prove the whole ledger: pages, hash chain, totals, stored answers and head file.

    Other commands prove what was added since the ledger's last checkpoint. Run this one every
    week, and after each backup. It reads only, so that `holder status` does not know of it.

    \b
    Example:
      fedtranscribe holder ledger verify ledger.sqlite
    """
    from fedtranscribe.privacy.ledger import Ledger

    with Ledger.open_read_only(ledger) as book:
        head = book.verify()
    emit({"proved": True, "entries": head.sequence, "head": head.hash}, as_json, "Ledger")


@ledger_app.command("export")
def export(
    ledger: LedgerFile,
    out: Annotated[Path, typer.Option(help="JSON lines to write, an entry each.")],
) -> None:
    """Prove the ledger and write every entry as a JSON line, for an auditor, without the answers.

    \b
    Example:
      fedtranscribe holder ledger export ledger.sqlite --out ledger.jsonl
    """
    from dataclasses import asdict

    from fedtranscribe.files import write_atomically
    from fedtranscribe.privacy.ledger import Ledger

    with Ledger.open_read_only(ledger) as book:
        book.verify()
        lines = [json.dumps(asdict(entry)) for entry in book.entries()]
    write_atomically(out, "".join(f"{line}\n" for line in lines).encode())
    say_path(counted(len(lines), "entry", "entries"), out)
