"""The IDX files of the MNIST family, plain or gzipped, read without any other library."""

import gzip
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtranscribe.catalogue import absent_data
from fedtranscribe.data.imageset import DataSplit, ImageSet
from fedtranscribe.data.validation import to_images, to_labels
from fedtranscribe.errors import DataNotFoundError, InvalidDataError

_UNSIGNED_BYTES = 0x08
_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


@dataclass(frozen=True)
class IdxSet:
    """One member of the family: our name, torchvision's for folder and class, and class names."""

    name: str
    torchvision_name: str
    class_names: tuple[str, ...] | None = None


# As their authors call them, in the order of the labels.
_CLOTHES = (
    *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)

IDX_SETS = {
    s.name: s
    for s in (
        IdxSet("mnist", "MNIST"),
        IdxSet("fashion-mnist", "FashionMNIST", _CLOTHES),
        IdxSet("kmnist", "KMNIST"),
    )
}


def load_idx_set(which: IdxSet, root: Path | None, download: bool) -> DataSplit:
    """Read train and test from `root`, which is one of three things.

    A torchvision root (`<root>/FashionMNIST/raw`), that set's own folder (`<root>/raw`), or the
    folder with the four files themselves. Record ids are places in the official, frozen files.

    Raises:
        DataNotFoundError: no folder given, or the files are not in it.
        InvalidDataError: a file is broken.
    """
    if root is None:
        raise absent_data(which.name, None)
    folder = _folder_with_files(root, which)
    if folder is None and download:
        _download(which, root)
        folder = _folder_with_files(root, which)
    if folder is None:
        raise absent_data(which.name, root)
    return DataSplit(_part(which, folder, "train"), _part(which, folder, "test"))


def read_idx(path: Path) -> NDArray[np.uint8]:
    """One IDX file of unsigned bytes, gzipped where the name ends in .gz.

    Raises:
        InvalidDataError: it is no such file, or it is shorter or longer than its header says.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            content = stream.read()
    except (OSError, EOFError) as error:
        raise InvalidDataError(
            f"Cannot read {str(path)!r} ({type(error).__name__}); fetch it again."
        ) from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTES:
        raise InvalidDataError(f"Expected an IDX file of unsigned bytes: {str(path)!r}.")
    axes = content[3]
    start = 4 + 4 * axes
    if len(content) < start:
        raise InvalidDataError(f"The header of {str(path)!r} is cut off; fetch the file again.")
    shape = struct.unpack(f">{axes}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise InvalidDataError(
            f"Expected {math.prod(shape)} values in {str(path)!r}, got {len(content) - start}; "
            f"fetch the file again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _part(which: IdxSet, folder: Path, part: str) -> ImageSet:
    image_file, label_file = (_present(folder, name) for name in _FILES[part])
    if image_file is None or label_file is None:
        raise DataNotFoundError(
            f"Expected {_FILES[part][0]} and {_FILES[part][1]} (or .gz) in {str(folder)!r}."
        )
    images = to_images(read_idx(image_file), f"{which.name} {part} images")
    return ImageSet(
        name=which.name,
        data_id=which.name,
        pixels=images,
        labels=to_labels(read_idx(label_file), f"{which.name} {part} labels"),
        classes=10,
        record_ids=tuple(f"{which.name}-{part}-{i}" for i in range(len(images))),
        folder=folder,
        class_names=which.class_names,
    )


def _folder_with_files(root: Path, which: IdxSet) -> Path | None:
    for folder in (root / which.torchvision_name / "raw", root / "raw", root):
        # All members use the same file names: never read one set as another.
        others = {s.torchvision_name for s in IDX_SETS.values() if s is not which}
        if others.isdisjoint(folder.parts[-2:]) and _present(folder, _FILES["train"][0]):
            return folder
    return None


def _present(folder: Path, name: str) -> Path | None:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    return None


def _download(which: IdxSet, root: Path) -> None:
    from fedtranscribe.data.torchvision_sets import fetch

    fetch(which.torchvision_name, root)
