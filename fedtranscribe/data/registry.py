"""One name or path -> the data set."""

import difflib
import logging
import re
from collections.abc import Callable
from pathlib import Path

from fedtranscribe.data.archives import keys_of, load_archive
from fedtranscribe.data.cifar10_jpeg import load_cifar10_jpeg
from fedtranscribe.data.folders import load_folder
from fedtranscribe.data.idx import IDX_SETS, load_idx_set
from fedtranscribe.data.imageset import DataSplit
from fedtranscribe.data.medmnist_sets import load_medmnist, read_medmnist
from fedtranscribe.data.packaged import load_digits, load_uci_digits
from fedtranscribe.data.torchvision_sets import TORCHVISION_SETS, load_torchvision_set
from fedtranscribe.errors import DataNotFoundError

log = logging.getLogger(__name__)

PACKAGED: dict[str, Callable[[], DataSplit]] = {
    "digits": load_digits,
    "uci-digits": load_uci_digits,
}
_MEDMNIST = "medmnist:"
# By name: a path behind the prefix is nobody's benchmark.
_MEDMNIST_SET = re.compile(
    r"medmnist:(blood|breast|chest|derma|oct|organa|organc|organs|path|pneumonia|retina|tissue)"
    r"mnist"
)


def available() -> list[str]:
    """Names that `load` knows, in the order of a help text; paths come on top."""
    return [*PACKAGED, *IDX_SETS, *TORCHVISION_SETS, "cifar10-jpeg", f"{_MEDMNIST}<name>"]


def load(
    spec: str, root: Path | None = None, download: bool = False, size: int | None = None
) -> DataSplit:
    """The data set called `spec`.

    Args:
        spec: one of `available()`, the path of an `.npz` archive, or of an image folder.
        root: where downloaded sets lie; packaged sets and paths need none.
        download: fetch an absent set into `root`; nothing is ever fetched unasked.
        size: pixels a side for an image folder whose images differ in size.

    Raises:
        DataNotFoundError: unknown or absent; the message says how to get it.
        InvalidDataError: present but unusable.
    """
    if spec in PACKAGED:
        return PACKAGED[spec]()
    if spec in IDX_SETS:
        return load_idx_set(IDX_SETS[spec], root, download)
    if spec in TORCHVISION_SETS:
        return load_torchvision_set(TORCHVISION_SETS[spec], root, download)
    if spec == "cifar10-jpeg":
        return load_cifar10_jpeg(root)
    if spec.startswith(_MEDMNIST):
        return load_medmnist(spec.removeprefix(_MEDMNIST), root, download)
    path = Path(spec).expanduser()
    if path.suffix == ".npz":
        return read_medmnist(path) if "train_images" in keys_of(path) else load_archive(path)
    if path.is_dir():
        return load_folder(path, size)
    raise DataNotFoundError(_unknown(spec))


def load_first(
    specs: str, root: Path | None = None, download: bool = False, size: int | None = None
) -> DataSplit:
    """The first of several data sets, named by commas, that can be had; says so if it is a later.

    Raises:
        DataNotFoundError: none of them can; names each reason.
    """
    missing: list[str] = []
    for name in (part.strip() for part in specs.split(",")):
        try:
            split = load(name, root, download, size)
        except DataNotFoundError as error:
            missing.append(str(error))
            continue
        if missing:
            log.warning("%s Going on with data=%s.", " ".join(missing), name)
        return split
    raise DataNotFoundError(
        " ".join(missing) + ' Say where it lies, or take the packaged digits: data="digits".'
    )


def is_published(specs: str) -> bool:
    """Whether the images belong to a published benchmark, by name: its test part is public.

    A user's own files are not, and what is measured on their held-out part stays private.
    """
    return all(is_benchmark(part.strip()) for part in specs.split(","))


def is_benchmark(name: str) -> bool:
    """Whether one name, and no path, is that of a published benchmark."""
    known = not name.startswith(_MEDMNIST) and name in available()
    return known or _MEDMNIST_SET.fullmatch(name) is not None


def _unknown(spec: str) -> str:
    close = difflib.get_close_matches(spec, available(), n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(available())}"
    return f"No data set or path {spec!r}; {hint}"
