"""Names of data sets and networks, known before torch is imported, which takes seconds."""

import difflib
import importlib.util
import re
from functools import cache
from pathlib import Path

from fedtranscribe.errors import DataNotFoundError, UnknownArchitectureError

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
    "cifar10-jpeg",
    f"{MEDMNIST}<name>",
)
"""What `data.load` knows by name, in the order of a help text; paths come on top."""

MEMORY = "memory:"
"""Before the data id of data that Python had in memory, where others have a name or a path."""

NETWORKS = ("cnn-small", "cnn", "cnn-wide", "scatter", "patches")
"""Our own; torchvision's classifiers come on top where it is installed."""

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


def expect_data(spec: str) -> None:
    """Refuse a name that no data set has, and a path that leads nowhere.

    Raises:
        DataNotFoundError: suggests close names.
    """
    if spec in DATA_SETS or spec.startswith(MEDMNIST) or Path(spec).expanduser().exists():
        return
    raise unknown_data(spec)


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


def expect_network(name: str) -> None:
    """Refuse a name that no network has.

    Raises:
        UnknownArchitectureError: suggests close names.
    """
    if name not in NETWORKS and name not in torchvision_networks():
        raise unknown_network(name)


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
