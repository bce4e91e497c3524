"""`fedtranscribe deploy certs|keys`: what server and nodes know each other by."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from fedtranscribe.cli.options import Json, group
from fedtranscribe.cli.output import emit
from fedtranscribe.errors import ConfigError

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
    require_cryptography()
    from fedtranscribe.deploy import certificates
    from fedtranscribe.deploy.new_files import refuse_existing

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
    require_cryptography()
    from fedtranscribe.deploy.certificates import renew_server

    _show_certificate(renew_server(folder, authority, days), as_json)


@certs_app.command("show", help=_CERTS_SHOW)
def certs_show(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A certificate in PEM form.")],
    as_json: Json = False,
) -> None:
    """Show a certificate."""
    require_cryptography()
    _show_certificate(path, as_json)


@keys_app.command("create", help=_KEYS_CREATE)
def keys_create(
    path: Annotated[Path, typer.Argument(help="The private half; PATH.pub is written next to it.")],
    comment: Annotated[str, typer.Option(metavar="WORDS", help="Whose key: public.")] = "",
    as_json: Json = False,
) -> None:
    """Make a node's key pair."""
    require_cryptography()
    from fedtranscribe.deploy.keys import make_node_key, public_path

    key = make_node_key(path, comment)
    facts = {"private": str(path), "public": str(public_path(path)), **key._asdict()}
    emit(facts, as_json, "Node key")


@keys_app.command("show", help=_KEYS_SHOW)
def keys_show(
    path: Annotated[Path, typer.Argument(help="Either half.")], as_json: Json = False
) -> None:
    """Show a key's fingerprint."""
    require_cryptography()
    from fedtranscribe.deploy.keys import read_private, read_public

    key = read_public(path) if path.suffix == ".pub" else read_private(path)
    emit({"path": str(path), **key._asdict()}, as_json, "Node key")


def _show_certificate(path: Path, as_json: bool) -> None:
    from fedtranscribe.deploy.pem import read_certificate

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


def require_cryptography() -> None:
    """See that what makes certificates is installed.

    Raises:
        ConfigError: says how to install it.
    """
    if importlib.util.find_spec("cryptography") is None:
        raise ConfigError(
            "Certificates need cryptography: pip install 'fedtranscribe[federation]'."
        )
