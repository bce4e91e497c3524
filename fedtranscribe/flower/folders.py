"""Ready folders for a data holder and for a server, and files that appear whole."""

import os
import shutil
import tempfile
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


class FolderKind(StrEnum):
    """Whose folder it is."""

    CLIENT = "client"
    SERVER = "server"


_FOLDERS = {
    FolderKind.CLIENT: {
        CERTIFICATES: _OPEN,
        KEYS: _CLOSED,
        TEACHERS: _CLOSED,
        LEDGER: _CLOSED,
        SOCKET: _GROUP,
        WHEELS: _OPEN,
    },
    FolderKind.SERVER: {CERTIFICATES: _OPEN, STATE: _CLOSED, RUNS: _CLOSED, WHEELS: _OPEN},
}

_ENVIRONMENT = {
    FolderKind.CLIENT: """# Address of the server, that its operator gave you: host:port.
SUPERLINK=
""",
    FolderKind.SERVER: """# Port on which the SuperNodes and `flwr` reach the server.
PORT=8000
""",
}
_VERSIONS = """
# Versions in the image. Holders and server use the same Flower.
FLWR_VERSION={flower}
FEDTRANSCRIBE_VERSION={own}
"""


def template(kind: FolderKind) -> Path:
    """Where the files of a kind lie: in the installed package, or in a checkout beside it."""
    package = Path(fedtranscribe.__file__).parent
    for home in (package / kind, package.parent / kind):
        if (home / "compose.yaml").is_file():
            return home
    raise ConfigError(f"This installation lacks the files of {kind}/; install fedtranscribe again.")


def init(kind: FolderKind, folder: Path) -> Path:
    """Write a ready folder."""
    source = template(kind)
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise StorageError(f"{folder} is not an empty folder; choose another one.")
    try:
        shutil.copytree(source, folder, ignore=_NOT_COPIED, dirs_exist_ok=True)
        for name, mode in _FOLDERS[kind].items():
            (folder / name).mkdir(exist_ok=True)
            (folder / name).chmod(mode)
        if kind is FolderKind.CLIENT:
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


PRIVATE = 0o600
PUBLIC = 0o644


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Make a file that nobody else can ever have seen half written or with a wider mode."""
    _write(path, content, mode, replace=False)


def write_again(path: Path, content: bytes, mode: int) -> None:
    """The same, in place of what is there."""
    _write(path, content, mode, replace=True)


def refuse_existing(*paths: Path) -> None:
    """See that none of these is there, before anything is made."""
    there = [str(path) for path in paths if os.path.lexists(path)]
    if there:
        raise StorageError(
            f"{' and '.join(there)} exist{'s' if len(there) == 1 else ''} already, and keys are "
            "never overwritten; choose another place, or move the old ones away."
        )


def _write(path: Path, content: bytes, mode: int, replace: bool) -> None:
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # mkstemp makes it 0600; it is widened, if at all, only under its temporary name.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        if replace:
            temporary.replace(path)
        else:
            # Unlike a rename, a link fails where the name is taken.
            path.hardlink_to(temporary)
    except FileExistsError:
        refuse_existing(path)
        raise
    except OSError as error:
        raise unwritable(path, error) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
