"""Data sets that torchvision reads (and, only when asked, downloads)."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedtranscribe.catalogue import absent_data
from fedtranscribe.data.imageset import DataSplit, ImageSet
from fedtranscribe.data.validation import to_images, to_labels
from fedtranscribe.errors import DataNotFoundError

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
    )
}


def load_torchvision_set(which: TorchvisionSet, root: Path | None, download: bool) -> DataSplit:
    """Read train and test below `root`, in torchvision's own layout.

    Record ids are places in the official, frozen files, whose checksums torchvision verifies.

    Raises:
        DataNotFoundError: torchvision is not installed, no folder was given, the files are
            absent or are not the official ones, or the download failed.
    """
    if root is None:
        raise absent_data(which.name, None)
    return DataSplit(_part(which, root, "train", download), _part(which, root, "test", download))


def fetch(torchvision_name: str, root: Path) -> None:
    """Let torchvision download one of its MNIST-like sets into `root`.

    Raises:
        DataNotFoundError: torchvision is not installed, or the download failed.
    """
    _open(torchvision_name, torchvision_name, root, True, {"train": True})


def _part(which: TorchvisionSet, root: Path, part: str, download: bool) -> ImageSet:
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
