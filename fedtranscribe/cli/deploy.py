"""`fedtranscribe deploy …`: certificates, keys and folders, and starting Flower's programs."""

from pathlib import Path
from typing import Annotated

import typer

from fedtranscribe.cli.credentials import certs_app, keys_app, require_cryptography
from fedtranscribe.cli.options import Json, group
from fedtranscribe.cli.output import emit, show_table, warn
from fedtranscribe.deploy.folders import Kind
from fedtranscribe.errors import ConfigError

deploy_app = group("Prepare a deployment: certificates, node keys, ready folders, and their check.")
deploy_app.add_typer(certs_app, name="certs")
deploy_app.add_typer(keys_app, name="keys")

Health = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Address that answers gRPC health checks.")
]

_INIT = """Write a folder with compose files, Dockerfiles and a policy (client) or state (server).

\b
Examples:
  fedtranscribe deploy init client hospital    # a data holder's node
  fedtranscribe deploy init server server      # SuperLink and ServerApp

Its README says what to fill in. An existing folder is left alone.
"""

_CHECK = """Check a folder before you start anything; each fault comes with its fix.

\b
Examples:
  fedtranscribe deploy check client hospital
  fedtranscribe deploy check client hospital --connect      # speak TLS with the server, too
  fedtranscribe deploy check server server --name superlink.example.org
  fedtranscribe deploy check client hospital --json

Exit code 0 only if nothing is wrong; what expires within 30 days is a warning. Run it as the user
who will run the service: which files may be opened depends on the user. Records, teachers and
ledger themselves are checked by `fedtranscribe holder policy check`.
"""

_JOIN = """Check key, certificates, server and holder service, then run as the SuperNode.

\b
Examples:
  fedtranscribe deploy join hospital                     # the server is in hospital/.env
  fedtranscribe deploy join clinic --port 9096           # a second one on the same machine
  fedtranscribe deploy join /node --superlink superlink.example.org:8000 --socket /run/h.sock

Run it as a user who can open certificates/, keys/ and the socket, and nothing else of the holder's.
"""


_SERVE = """Check certificates and folders, then run as the SuperLink: TLS, and known nodes only.

\b
Examples:
  fedtranscribe deploy serve server                      # this machine alone
  fedtranscribe deploy serve server --host 0.0.0.0 --port 8000

Start a run with `flwr run`; anyone who reaches the port can, so open it to the holders and
yourself only.
"""


@deploy_app.command("init", help=_INIT)
def init_command(
    kind: Annotated[Kind, typer.Argument(help="Whose folder.", metavar="client|server")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder.")],
    as_json: Json = False,
) -> None:
    """Write a ready folder."""
    from fedtranscribe.deploy.folders import init

    made = init(kind, folder)
    facts = {"kind": kind.value, "folder": str(made), "read next": str(made / "README.md")}
    emit(facts, as_json, "Folder")


@deploy_app.command("check", help=_CHECK)
def check_command(
    kind: Annotated[Kind, typer.Argument(help="Whose folder.", metavar="client|server")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder.")],
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name or address of the server; repeatable."),
    ] = None,
    connect: Annotated[
        bool, typer.Option("--connect", help="A holder's folder: speak TLS with the server.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a folder."""
    require_cryptography()
    from fedtranscribe.deploy.check import check_client, check_server, first_fault

    if kind is Kind.CLIENT:
        if name:
            raise ConfigError("--name belongs to `check server`; a holder's server is in .env.")
        checks = check_client(folder, connect)
    else:
        if connect:
            raise ConfigError("--connect belongs to `check client`.")
        checks = check_server(folder, name or [])
    fault = first_fault(checks)
    if as_json:
        told = [
            {"name": c.name, "verdict": c.verdict.value, "found": c.found, "fix": c.fix}
            for c in checks
        ]
        emit({"ok": fault is None, "checks": told}, as_json=True, title="")
    else:
        columns = ("check", "", "what was found", "fix")
        rows = [(c.name, c.verdict.value, c.found, c.fix) for c in checks]
        show_table(f"{kind.value.capitalize()} folder {folder}", columns, rows)
    if fault is not None:
        found = fault.found.rstrip(".")
        raise ConfigError(f"{folder} is not ready ({fault.name}): {found}. Fix: {fault.fix}.")


@deploy_app.command("join", help=_JOIN)
def join_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The holder's folder.")],
    superlink: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Of the server, instead of the one in .env."),
    ] = None,
    socket: Annotated[
        Path | None, typer.Option(help="The holder service's; DIR/socket/holder.sock if left out.")
    ] = None,
    port: Annotated[int, typer.Option(help="Local port for Flower's own processes.")] = 9094,
    health: Health = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the holder service.")] = 120.0,
) -> None:
    """Start a SuperNode."""
    require_cryptography()
    from fedtranscribe.deploy.folders import SOCKET, read_environment
    from fedtranscribe.deploy.launch import Node, join

    node = Node(
        folder,
        superlink or read_environment(folder).get("SUPERLINK", ""),
        socket or folder / SOCKET / "holder.sock",
        port,
        health,
    )
    join(node, wait, _warn)


@deploy_app.command("serve", help=_SERVE)
def serve_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The server's folder.")],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 for all.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port for SuperNodes and `flwr` alike.")] = 8000,
    health: Health = None,
) -> None:
    """Start a SuperLink."""
    require_cryptography()
    from fedtranscribe.deploy.launch import Server, serve

    serve(Server(folder, host, port, health), _warn)


def _warn(words: str) -> None:
    warn(f"warning: {words}")
