"""`fedtranscribe deploy …`: certificates, keys and folders, and starting what they are for."""

from pathlib import Path
from typing import Annotated

import typer

from fedtranscribe.cli.options import Json, group
from fedtranscribe.cli.output import emit, show_table, warn
from fedtranscribe.errors import ConfigError
from fedtranscribe.flower.folders import FolderKind

certs_app = group("Certificates of the server and of the authority that holders trust.")
keys_app = group("Key pairs by which the server knows the holders' nodes.")

Days = Annotated[int, typer.Option(help="Days that the server's certificate is good for.")]
Authority = Annotated[
    Path, typer.Option(help="Folder of ca.crt and ca.key; keep it away from the server.")
]

_CERTS_CREATE = """Make the server's certificate, and the authority that signs it if there is none.

\b
Examples:
  fedtranscribe deploy certs create server/certificates --name superlink.example.org
  fedtranscribe deploy certs create server/certificates --name 10.0.0.5 --name superlink --days 90
  fedtranscribe deploy certs create certificates --name localhost --authority /mnt/stick/authority

Writes ca.crt, server.crt and server.key; holders get ca.crt alone. Names of loopback are added,
because the ServerApp uses them. Nothing is overwritten.
"""

_CERTS_RENEW = """Sign the server's key again, under the same names, before the certificate expires.

\b
Example:
  fedtranscribe deploy certs renew server/certificates --authority authority --days 365

Start the SuperLink again afterwards. Holders change nothing.
"""

_CERTS_SHOW = """Show what a certificate says: subject, names, validity, fingerprint.

\b
Examples:
  fedtranscribe deploy certs show certificates/ca.crt     # compare it over another channel
  fedtranscribe deploy certs show server/certificates/server.crt --json
"""

_KEYS_CREATE = """Make a node's key pair; the private half never leaves the holder's machine.

\b
Example:
  fedtranscribe deploy keys create hospital/keys/node --comment hospital

\b
Send PATH.pub to the operator, who registers it:
  flwr supernode register node.pub CONNECTION --name hospital

Nothing is overwritten.
"""

_KEYS_SHOW = """Show a key's kind and fingerprint, as `ssh-keygen -l` does; never its secret.

\b
Examples:
  fedtranscribe deploy keys show hospital/keys/node
  fedtranscribe deploy keys show node.pub --json
"""


@certs_app.command("create", help=_CERTS_CREATE)
def certs_create(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The server's certificates.")],
    name: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="Host name or address that holders use; repeatable."),
    ],
    authority: Authority = Path("authority"),
    days: Days = 365,
    authority_days: Annotated[int, typer.Option(help="Days of a new authority.")] = 3650,
    as_json: Json = False,
) -> None:
    """Make certificates."""
    from fedtranscribe.flower import certificates
    from fedtranscribe.flower.folders import refuse_existing

    # Before a new authority appears that nothing would use.
    certificates.general_names(name)
    refuse_existing(folder / certificates.SERVER_CERTIFICATE, folder / certificates.SERVER_KEY)
    if not (authority / certificates.CA_CERTIFICATE).exists():
        certificates.make_authority(authority, authority_days)
    _show_certificate(certificates.make_server(folder, authority, name, days), as_json)


@certs_app.command("renew", help=_CERTS_RENEW)
def certs_renew(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The server's certificates.")],
    authority: Authority = Path("authority"),
    days: Days = 365,
    as_json: Json = False,
) -> None:
    """Renew the server's certificate."""
    from fedtranscribe.flower.certificates import renew_server

    _show_certificate(renew_server(folder, authority, days), as_json)


@certs_app.command("show", help=_CERTS_SHOW)
def certs_show(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A certificate in PEM form.")],
    as_json: Json = False,
) -> None:
    """Show a certificate."""
    _show_certificate(path, as_json)


@keys_app.command("create", help=_KEYS_CREATE)
def keys_create(
    path: Annotated[Path, typer.Argument(help="The private half; PATH.pub is written next to it.")],
    comment: Annotated[str, typer.Option(metavar="WORDS", help="Whose key: public.")] = "",
    as_json: Json = False,
) -> None:
    """Make a node's key pair."""
    from fedtranscribe.flower.certificates import make_node_key, public_path

    key = make_node_key(path, comment)
    facts = {"private": str(path), "public": str(public_path(path)), **key._asdict()}
    emit(facts, as_json, "Node key")


@keys_app.command("show", help=_KEYS_SHOW)
def keys_show(
    path: Annotated[Path, typer.Argument(help="Either half.")], as_json: Json = False
) -> None:
    """Show a key's fingerprint."""
    from fedtranscribe.flower.certificates import read_private, read_public

    key = read_public(path) if path.suffix == ".pub" else read_private(path)
    emit({"path": str(path), **key._asdict()}, as_json, "Node key")


def _show_certificate(path: Path, as_json: bool) -> None:
    from fedtranscribe.flower.tls import read_certificate

    found = read_certificate(path)
    facts = {
        "path": str(found.path),
        "subject": found.subject,
        "issuer": found.issuer,
        "names": list(found.names) if as_json else ", ".join(found.names) or "-",
        "not before": found.not_before.isoformat(),
        "not after": found.not_after.isoformat(),
        "days left": found.days_left(),
        "authority": found.authority,
        # Shown with blanks, so that a narrow window wraps it instead of cutting it.
        "fingerprint": found.fingerprint if as_json else found.fingerprint.replace(":", " "),
    }
    emit(facts, as_json, "Certificate")


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
    kind: Annotated[FolderKind, typer.Argument(help="Whose folder.", metavar="client|server")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder.")],
    as_json: Json = False,
) -> None:
    """Write a ready folder."""
    from fedtranscribe.flower.folders import init

    made = init(kind, folder)
    facts = {"kind": kind.value, "folder": str(made), "read next": str(made / "README.md")}
    emit(facts, as_json, "Folder")


@deploy_app.command("check", help=_CHECK)
def check_command(
    kind: Annotated[FolderKind, typer.Argument(help="Whose folder.", metavar="client|server")],
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
    from fedtranscribe.flower.folder_check import check_client, check_server, first_fault

    if kind is FolderKind.CLIENT:
        if name:
            raise ConfigError("--name belongs to `check server`; a holder's server is in .env.")
        checks = check_client(folder, connect)
    else:
        if connect:
            raise ConfigError("--connect belongs to `check client`.")
        checks = check_server(folder, name or [])
    fault = first_fault(checks)
    if as_json:
        lines = [
            {"name": c.name, "verdict": c.verdict.value, "found": c.found, "fix": c.fix}
            for c in checks
        ]
        emit({"ok": fault is None, "checks": lines}, as_json=True, title="")
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
    from fedtranscribe.flower.folders import SOCKET, read_environment
    from fedtranscribe.flower.launch import NodeProcess, join

    node = NodeProcess(
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
    from fedtranscribe.flower.launch import ServerProcess, serve

    serve(ServerProcess(folder, host, port, health), _warn)


def _warn(words: str) -> None:
    warn(f"warning: {words}")
