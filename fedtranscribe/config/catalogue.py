"""What names and paths show before torch is imported, which takes seconds."""

import difflib
import importlib.util
import re
import zipfile
from functools import cache
from pathlib import Path

from fedtranscribe.errors import (
    ConfigError,
    DataNotFoundError,
    InvalidDataError,
    StorageError,
    UnknownArchitectureError,
)

MEDMNIST = "medmnist:"
DATA_SETS = (
    "digits",
    "uci-digits",
    "mnist",
    "fashion-mnist",
    "kmnist",
    "cifar10",
    "cifar100",
    "svhn",
    "usps",
    "cifar10-jpeg",
    f"{MEDMNIST}<name>",
)
"""What `data.load` knows by name, in the order of a help text; paths come on top."""

_IDX = "{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]"
LAYOUT = {
    "mnist": f"MNIST/raw/{_IDX}",
    "fashion-mnist": f"FashionMNIST/raw/{_IDX}",
    "kmnist": f"KMNIST/raw/{_IDX}",
    "cifar10": "cifar-10-batches-py/{data_batch_1,…,data_batch_5,test_batch,batches.meta}",
    "cifar100": "cifar-100-python/{train,test,meta}",
    "svhn": "{train,test}_32x32.mat",
    "usps": "usps[.t].bz2",
    "cifar10-jpeg": "cifar10_jpeg_{train,test}.npz",
    f"{MEDMNIST}<name>": "<name>.npz",
}
"""The files of the sets that come with no package, under the data root."""

NOT_FETCHED = ("cifar10-jpeg",)
"""Sets that nobody offers for download."""

MEMORY = "memory:"
"""Before the data id of data that Python had in memory, where others have a name or a path."""

NETWORKS = ("cnn-small", "cnn", "cnn-wide", "cnn-deep", "scatter", "patches")
"""Our own; torchvision's classifiers come on top where it is installed."""

SPLITS, STATE, INFO = "dataset_dict.json", "state.json", "dataset_info.json"
"""Files of a folder that the package `datasets` has saved."""

MANIFEST = "manifest.json"
"""Of a folder of teachers."""

DECLARATION = "networks.toml"
"""Of a folder of networks that were trained elsewhere."""

STATEMENT = "privacy.json"
"""Of a release."""

# torchvision marks each function that makes a network.
_REGISTERED = re.compile(
    r"^@register_model\((?:name=\"(\w+)\")?\)\n(?:@.*\n(?:[ )].*\n)*)*def (\w+)", re.MULTILINE
)


@cache
def torchvision_networks() -> tuple[str, ...]:
    """torchvision's classifiers, read from its source; empty where it is not installed."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return ()
    sources = sorted((Path(found.origin).parent / "models").glob("*.py"))
    marked = (match for path in sources for match in _REGISTERED.finditer(path.read_text()))
    return tuple(sorted(match[1] or match[2] for match in marked))


def expect_data(spec: str, *, table: bool = False) -> None:
    """Refuse a name that no data set has, and a path to neither an archive nor a full folder.

    Args:
        spec: the name or path.
        table: whether a table says which files of a folder there are; they may lie in it as they
            are, without subfolders.
    """
    if spec in DATA_SETS or spec.startswith(MEDMNIST):
        return
    path = Path(spec).expanduser()
    if path.suffix == ".npz" and path.is_file():
        if not zipfile.is_zipfile(path):
            raise InvalidDataError(
                f"Expected {spec!r} as an .npz archive, not one array or another file; write it "
                "with numpy.savez."
            )
    elif not path.is_dir():
        raise unknown_data(spec)
    elif (
        not table
        and not is_saved_dataset(path)
        and not any(entry.is_dir() or entry.suffix == ".npy" for entry in path.iterdir())
    ):
        raise DataNotFoundError(
            f"No class subfolders in {spec!r}, nor any other data; expected "
            f"{str(path / '<class>' / '<image>')!r}."
        )


def is_saved_dataset(path: Path) -> bool:
    """Whether a folder looks as `save_to_disk` of the package `datasets` leaves it."""
    return (path / SPLITS).is_file() or all((path / n).is_file() for n in (STATE, INFO))


def unknown_data(spec: str) -> DataNotFoundError:
    """The error for a data set that is not there."""
    if spec.startswith(MEMORY):
        return DataNotFoundError(
            f"The data {spec.removeprefix(MEMORY)!r} were passed in memory, so that they cannot be "
            "read again; pass the same images and labels in Python."
        )
    close = difflib.get_close_matches(spec, DATA_SETS, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(DATA_SETS)}"
    return DataNotFoundError(f"No data set or path {spec!r}; {hint}")


def files_of(spec: str) -> str | None:
    """The files that a named set has under the data root; None where it needs none."""
    if spec.startswith(MEDMNIST):
        return f"{spec.removeprefix(MEDMNIST)}.npz"
    return LAYOUT.get(spec)


def absent_data(spec: str, root: Path | None, why: str = "") -> DataNotFoundError:
    """The error for a named set whose files are not there: where they go, how to get them.

    Args:
        spec: its name.
        root: the data root; None where nobody named one.
        why: what else is known.
    """
    files = files_of(spec)
    fetch = "" if spec in NOT_FETCHED else ", or add --download (download=true) to fetch them there"
    if root is None:
        words = (
            f"Data set {spec!r} needs a folder: pass --data-root DIR (data-root=DIR in a "
            f"simulation) with {files}{fetch}."
        )
    else:
        words = f"No {spec} in {str(root)!r}{why}: put {files} there{fetch}."
    return DataNotFoundError(
        f"{words} The packaged digits need no folder: --data digits (data=digits)."
    )


def expect_root(spec: str, root: str | Path | None, download: bool = False) -> None:
    """Refuse a named set that is in no package, and in no folder that somebody names."""
    if files_of(spec) is None:
        return
    if not root:
        raise absent_data(spec, None)
    folder = Path(root)
    if not download and not (folder.is_dir() and any(folder.iterdir())):
        raise absent_data(spec, folder)


def expect_network(name: str) -> None:
    """Refuse a name that no network has."""
    if name not in NETWORKS and name not in torchvision_networks():
        raise unknown_network(name)


def expect_teachers(folder: Path) -> None:
    """Refuse a folder without teachers."""
    if not (folder / MANIFEST).is_file():
        raise no_teachers(folder)


def no_teachers(folder: Path) -> StorageError:
    """The error for a folder whose manifest cannot be read."""
    return StorageError(
        f"No {MANIFEST} in {folder}; make teachers with `fedtranscribe teacher train`."
    )


def expect_declaration(folder: Path) -> None:
    """Refuse a folder of networks of which nobody declares anything."""
    if not (folder / DECLARATION).is_file():
        raise ConfigError(
            f"Expected {DECLARATION} in {folder}: it says on what the networks were trained, and "
            "who declares that. `fedtranscribe teacher import --template` prints one."
        )


def unknown_network(name: str) -> UnknownArchitectureError:
    """The error for an architecture that is not there."""
    if not torchvision_networks():
        return UnknownArchitectureError(
            f"No architecture {name!r} among {', '.join(NETWORKS)}; for torchvision's run: "
            f"pip install 'fedtranscribe[vision]'"
        )
    names = [*NETWORKS, *torchvision_networks()]
    close = difflib.get_close_matches(name.lower(), names, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(NETWORKS)}, …"
    return UnknownArchitectureError(
        f"No architecture {name!r}; {hint} Any torchvision classifier works by its name."
    )


def release_in(path: Path) -> Path:
    """The folder of a release: the path itself, or the release of a run's folder."""
    inside = path / "release"
    if not (path / STATEMENT).is_file() and (inside / STATEMENT).is_file():
        return inside
    if not (path / STATEMENT).is_file() and (path / "config.toml").is_file():
        raise StorageError(f"The run in {path} has no release; run: fedtranscribe release {path}")
    expect_release(path)
    return path


def expect_release(folder: Path) -> None:
    """Refuse a folder without a release."""
    if not (folder / STATEMENT).is_file():
        raise no_release(folder, "no such file")


def no_release(folder: Path, why: str | None) -> StorageError:
    """The error for a folder whose statement cannot be read."""
    return StorageError(
        f"No release in {folder} ({STATEMENT}: {why}); give a folder made by `fedtranscribe "
        "release`."
    )
