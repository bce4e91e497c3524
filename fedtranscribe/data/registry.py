"""One name or path -> the data set, and where its ledger lies."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedtranscribe.config import UNSTATED, OwnData
from fedtranscribe.config.catalogue import (
    DATA_SETS,
    MEDMNIST,
    MEMORY,
    expect_data,
    is_saved_dataset,
)
from fedtranscribe.config.sources import expect_readable
from fedtranscribe.data.archives import load_archive, load_medmnist, read_medmnist
from fedtranscribe.data.array_folders import is_array_folder, load_array_folder
from fedtranscribe.data.folders import load_folder
from fedtranscribe.data.hub_datasets import load_saved_dataset
from fedtranscribe.data.imageset import Classes, DataSplit, ImageSet, agreed_classes
from fedtranscribe.data.named_sets import (
    IDX_SETS,
    TORCHVISION_SETS,
    load_cifar10_jpeg,
    load_digits,
    load_idx_set,
    load_torchvision_set,
    load_uci_digits,
)
from fedtranscribe.data.npz import keys_of
from fedtranscribe.errors import InvalidDataError
from fedtranscribe.privacy.ledger_place import LedgerPlace

PACKAGED: dict[str, Callable[[], DataSplit]] = {
    "digits": load_digits,
    "uci-digits": load_uci_digits,
}
# By name: a path behind the prefix is nobody's benchmark.
_MEDMNIST_SET = re.compile(
    r"medmnist:(blood|breast|chest|derma|oct|organa|organc|organs|path|pneumonia|retina|tissue)"
    r"mnist"
)


def available() -> list[str]:
    """Names that `load` knows, in the order of a help text; paths come on top."""
    return list(DATA_SETS)


def load(
    spec: str, root: Path | None = None, download: bool = False, own: OwnData = UNSTATED
) -> DataSplit:
    """The data set called `spec`.

    Args:
        spec: one of `available()`, or the path of an `.npz` archive, of a folder with its arrays,
            of an image folder, or of a folder that the package `datasets` has saved.
        root: where downloaded sets lie; packaged sets and paths need none.
        download: fetch an absent set into `root`; nothing is ever fetched unasked.
        own: how an archive or folder of one's own is read: its classes, ids and pixels.

    Raises:
        DataNotFoundError: unknown or absent; the message says how to get it.
        InvalidDataError: present but unusable.
        ConfigError: `own` contradicts what the set states itself.
    """
    expect_readable(spec, own)
    expect_data(spec, table=own.table is not None)
    if spec.startswith(MEDMNIST):
        return load_medmnist(spec.removeprefix(MEDMNIST), root, download, own)
    if spec in available():
        return _as_stated(_named(spec, root, download), own)
    return _expect_apart(_own(Path(spec).expanduser(), own))


def _own(path: Path, own: OwnData) -> DataSplit:
    """Data of a path."""
    if path.suffix == ".npz":
        if "train_images" in keys_of(path):
            return read_medmnist(path, own)
        return load_archive(path, own)
    if is_saved_dataset(path):
        return load_saved_dataset(path, own)
    if is_array_folder(path):
        return load_array_folder(path, own)
    return load_folder(path, own)


def _expect_apart(split: DataSplit) -> DataSplit:
    """The split of own data, if nobody is in both parts: who is learned of is not tested on."""
    if split.train.positional or split.test.positional:
        return split
    both = set(split.train.ids) & set(split.test.ids)
    if both:
        raise InvalidDataError(
            f"Expected nobody in both parts of {split.train.name!r}, but {len(both):,} ids are in "
            "train and test; move all images of an id to one part."
        )
    return split


def _named(spec: str, root: Path | None, download: bool) -> DataSplit:
    if spec in PACKAGED:
        return PACKAGED[spec]()
    if spec in IDX_SETS:
        return load_idx_set(IDX_SETS[spec], root, download)
    if spec in TORCHVISION_SETS:
        return load_torchvision_set(TORCHVISION_SETS[spec], root, download)
    return load_cifar10_jpeg(root)


def _as_stated(split: DataSplit, own: OwnData) -> DataSplit:
    """A named set brings classes and ids; the settings may only give its classes names."""
    train = split.train
    classes = agreed_classes(Classes(train.classes, train.class_names), own, train.name)
    if classes is None or classes.names is None:
        return split
    train, test = (replace(part, class_names=classes.names) for part in (train, split.test))
    return replace(split, train=train, test=test)


def has_own_ids(path: Path) -> bool:
    """Whether data are an archive, or its arrays in a folder: those say which their ids are."""
    return path.suffix == ".npz" or is_array_folder(path)


def is_of_files(spec: str) -> bool:
    """Whether data are image files, which are decoded here, and no arrays."""
    by_name = spec in available() or spec.startswith(MEDMNIST)
    return not by_name and not has_own_ids(Path(spec).expanduser())


def is_published(specs: str) -> bool:
    """Whether the images belong to a public benchmark, by name: its test part is public.

    A user's own files are not, and what is measured on their held-out part stays private. Runs of
    early versions named several sets by commas.
    """
    return all(is_benchmark(part.strip()) for part in specs.split(","))


def is_benchmark(name: str) -> bool:
    """Whether one name, and no path, is that of a public benchmark."""
    known = not name.startswith(MEDMNIST) and name in available()
    return known or _MEDMNIST_SET.fullmatch(name) is not None


def folder_of(spec: str) -> Path | None:
    """Where the data of a path lie, if it is one and they are there; None for names."""
    path = Path(spec).expanduser()
    if spec in available() or spec.startswith((MEDMNIST, MEMORY)) or not spec or not path.exists():
        return None
    inside = path.is_dir() and not is_array_folder(path)
    return path if inside else path.resolve().parent


def lasting(spec: str) -> str:
    """The name of a data set, or its path as it leads there from any working directory.

    A service that has teachers looks for the data's ledger where the data lie.
    """
    names_a_path = not is_published(spec) and Path(spec).expanduser().exists()
    return str(Path(spec).expanduser().resolve()) if names_a_path else spec


def ledger_of(images: ImageSet, data: str, named: Path | None) -> LedgerPlace:
    """Where the ledger of a run's data is, or will be.

    Args:
        images: the private records.
        data: as the user named them.
        named: the ledger that the user named.

    Raises:
        SecondLedgerError, StorageError: as `LedgerPlace.find`.
    """
    return LedgerPlace.find(images.data_id, images.folder, named, published=is_published(data))
