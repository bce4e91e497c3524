"""Ready folders for a data holder and for a server, copied from `client/` and `server/`.

What is copied is what the project tests. What differs from place to place stands in three files
that the folder's owner fills in: `.env`, `policy.toml`, and whatever is laid into its folders.
"""

import os
import shutil
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import fedtranscribe
from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.files import unwritable

CERTIFICATES, KEYS, TEACHERS, LEDGER, SOCKET, STATE, RUNS, WHEELS = (
    "certificates",
    "keys",
    "teachers",
    "ledger",
    "socket",
    "state",
    "runs",
    "wheels",
)
POLICY, POLICY_EXAMPLE, ENVIRONMENT, NODE_KEY = (
    "policy.toml",
    "policy.example.toml",
    ".env",
    "node",
)

_OPEN, _GROUP, _CLOSED = 0o755, 0o750, 0o700
_NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.pyc", WHEELS, ENVIRONMENT)


class Kind(StrEnum):
    """Whose folder it is."""

    CLIENT = "client"
    SERVER = "server"


_FOLDERS = {
    Kind.CLIENT: {
        CERTIFICATES: _OPEN,
        KEYS: _CLOSED,
        TEACHERS: _CLOSED,
        LEDGER: _CLOSED,
        SOCKET: _GROUP,
        WHEELS: _OPEN,
    },
    Kind.SERVER: {CERTIFICATES: _OPEN, STATE: _CLOSED, RUNS: _CLOSED, WHEELS: _OPEN},
}

_ENVIRONMENT = {
    Kind.CLIENT: """# Address of the server, that its operator gave you: host:port.
SUPERLINK=
""",
    Kind.SERVER: """# Port on which the SuperNodes and `flwr` reach the server.
PORT=8000
""",
}
_VERSIONS = """
# Versions in the image. Holders and server use the same Flower.
FLWR_VERSION={flower}
FEDTRANSCRIBE_VERSION={own}
"""


def template(kind: Kind) -> Path:
    """Where the files of a kind lie: in the installed package, or in a checkout beside it.

    Raises:
        ConfigError: this installation has none.
    """
    package = Path(fedtranscribe.__file__).parent
    for home in (package / kind, package.parent / kind):
        if (home / "compose.yaml").is_file():
            return home
    raise ConfigError(f"This installation lacks the files of {kind}/; install fedtranscribe again.")


def init(kind: Kind, folder: Path) -> Path:
    """Write a ready folder.

    Raises:
        StorageError: the folder holds something already, or cannot be written.
        ConfigError: this installation has no templates.
    """
    source = template(kind)
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise StorageError(f"{folder} is not an empty folder; choose another one.")
    try:
        shutil.copytree(source, folder, ignore=_NOT_COPIED, dirs_exist_ok=True)
        for name, mode in _FOLDERS[kind].items():
            (folder / name).mkdir(exist_ok=True)
            (folder / name).chmod(mode)
        if kind is Kind.CLIENT:
            shutil.copyfile(folder / POLICY_EXAMPLE, folder / POLICY)
        (folder / ENVIRONMENT).write_text(_ENVIRONMENT[kind] + _versions(), encoding="utf-8")
    except OSError as error:
        raise unwritable(folder, error) from None
    return folder


def read_environment(folder: Path) -> dict[str, str]:
    """The settings in `.env`, as compose reads plain ones; empty where there is no such file."""
    path = folder / ENVIRONMENT
    if not path.is_file():
        return {}
    pairs = (line.partition("=") for line in path.read_text(encoding="utf-8").splitlines())
    return {
        key.strip(): value.strip().strip("\"'")
        for key, equals, value in pairs
        if equals and not key.lstrip().startswith("#")
    }


def _versions() -> str:
    try:
        flower = version("flwr")
    except PackageNotFoundError:
        # The image's own default stands.
        flower = ""
    return _VERSIONS.format(flower=flower, own=fedtranscribe.__version__)
