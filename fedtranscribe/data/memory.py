"""Private data that Python has in memory: arrays, tensors, and data sets of torch and Hugging Face.

No file says what such data are. The caller states the facts that must not be counted from records:
a lasting name, which the ledger is kept under, and the classes.

Guarantee: each image is converted by itself, from its own type and values. An item of a torch
`Dataset` is what the user's code returns; it must depend on that record alone.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from fedtranscribe.config import UNSTATED, OwnData
from fedtranscribe.config.catalogue import MEMORY
from fedtranscribe.data.hub_datasets import HubDataset, column_of, columns_of, is_hub_dataset
from fedtranscribe.data.imageset import (
    Classes,
    DataSplit,
    ImageSet,
    agreed_classes,
    labels_of,
    split_by_id,
)
from fedtranscribe.data.pictures import as_grey, pixels_of
from fedtranscribe.data.validation import to_images
from fedtranscribe.errors import ConfigError, InvalidDataError
from fedtranscribe.text import counted

Images = Tensor | NDArray[Any] | Sequence[Any] | Dataset[Any] | HubDataset
"""Images [n, h, w], [n, h, w, ch] or [n, ch, h, w], uint8 or floating point in [0, 1]; a list of
arrays or of Pillow's pictures; or a torch or Hugging Face `Dataset`, which has labels as well."""

Labels = Tensor | ArrayLike | Sequence[Any]
"""One class number per image, from 0; or its class name, where names are stated. Where an image may
have several, an array [n, classes] of 0 and 1, or a list of classes for each image."""

Ids = Sequence[Any] | NDArray[Any] | Tensor | str
"""One string or whole number per image; of a Hugging Face `Dataset`, the name of their column."""

Raw = tuple[NDArray[Any], NDArray[Any] | list[Any], Classes | None]


def from_memory(
    images: Images,
    labels: Labels | None,
    data_id: str,
    *,
    ids: Ids | None = None,
    test: Images | tuple[Images, Labels] | None = None,
    own: OwnData = UNSTATED,
) -> DataSplit:
    """Train and test part of data in memory.

    Args:
        images: of the private records.
        labels: None where `images` has its own.
        data_id: a lasting name of these records.
        ids: a lasting name per record, or per patient: images that share an id stay together.
        test: held-out images with labels; without them one record in five is held out by a fixed
            hash of its id.
        own: states the classes; says how many bits 16-bit pixels use.
    """
    _expect_nothing_of_files(own)
    train = _part(images, labels, data_id, ids, own, ids_needed=ids is None)
    if test is None:
        return split_by_id(train)
    held_images, held_labels = test if isinstance(test, tuple) and len(test) == 2 else (test, None)
    return DataSplit(train, _part(held_images, held_labels, data_id, None, own, ids_needed=False))


def digest_of(split: DataSplit) -> str:
    """Digest of all images, labels and ids: PRIVATE, since it tells any two data sets apart."""
    found = hashlib.blake2b(digest_size=32)
    for part in (split.train, split.test):
        found.update(repr((tuple(part.images.shape), part.classes, part.record_ids)).encode())
        found.update(part.images.contiguous().numpy().data)
        found.update(part.labels.contiguous().numpy().data)
    return found.hexdigest()


def _expect_nothing_of_files(own: OwnData) -> None:
    """Refuse what would be ignored: ids that seem to be stated, and are not used, hide less."""
    for name in ("ids", "id_pattern", "id_column", "image_column", "label_column"):
        if (value := getattr(own, name)) is not None:
            raise ConfigError(
                f"Expected no {name}={str(value)!r} for images in memory: it says how files are "
                "read. Pass ids=…, one per image or the name of a column, and labels=…."
            )


def _part(
    images: Images,
    labels: Labels | None,
    data_id: str,
    ids: Ids | None,
    own: OwnData,
    *,
    ids_needed: bool,
) -> ImageSet:
    name = repr(data_id)
    if isinstance(ids, str):
        if not is_hub_dataset(images):
            raise ConfigError(
                f"Expected ids={ids!r} as one id per image; a name of a column is for a Hugging "
                "Face Dataset."
            )
        ids = column_of(images, ids)
    raw, classes_of, known = _raw(images, labels, name, own, ids_needed)
    classes = agreed_classes(known, own, data_id)
    if classes is None:
        raise ConfigError(
            "Expected classes=N, or their names: classes=['benign', 'malignant']. How many classes "
            "there are is public, and never counted from labels."
        )
    pixels = to_images(raw, f"the images of {name}", own.bit_depth)
    if own.channels not in (None, pixels.shape[1]):
        raise ConfigError(
            f"Expected no channels={own.channels} for the images of {name}, which are arrays with "
            f"{counted(pixels.shape[1], 'channel')}; convert them, or pass pictures of Pillow."
        )
    if len(pixels) != len(classes_of):
        raise InvalidDataError(
            f"Expected one label per image of {name}, got {len(classes_of)} labels for "
            f"{len(pixels)} images."
        )
    return ImageSet(
        name=f"{MEMORY}{data_id}",
        data_id=data_id,
        pixels=pixels,
        labels=labels_of(classes_of, len(pixels), classes, own, f"labels of {name}"),
        classes=classes.count,
        record_ids=None if ids is None else _ids(ids, name),
        class_names=classes.names,
    )


def _raw(images: Images, labels: Labels | None, name: str, own: OwnData, ids_needed: bool) -> Raw:
    """Images, labels, and the classes that a data set states itself."""
    if is_hub_dataset(images):
        _expect_no_labels(labels)
        pictures, found, known = columns_of(images, name, ids_needed, several=own.multilabel)
        return _stacked(pictures, name, own), found if own.multilabel else np.asarray(found), known
    if isinstance(images, Dataset):
        _expect_no_labels(labels)
        pictures, found = _items(images, name, ids_needed)
        return _stacked(pictures, name, own), _together(found, name, own), None
    if labels is None:
        raise ConfigError(
            f"Expected labels with the images of {name}: one class number per image. Only a torch "
            "Dataset or a Hugging Face Dataset brings its own."
        )
    if own.multilabel and isinstance(labels, list):
        return _array(images, name, own), labels, None
    return _array(images, name, own), _numbers(labels, f"labels of {name}"), None


def _together(labels: list[Any], name: str, own: OwnData) -> NDArray[Any] | list[Any]:
    """Labels of items: lists of classes stay as they are, arrays of 0 and 1 are stacked."""
    if own.multilabel and not any(isinstance(label, np.ndarray) for label in labels):
        return labels
    try:
        return np.asarray(labels)
    except ValueError:
        raise InvalidDataError(f"Expected labels of {name} of one shape; correct them.") from None


def _expect_no_labels(labels: Labels | None) -> None:
    if labels is not None:
        raise ConfigError("Expected no labels with a Dataset, which has its own; leave them out.")


def _items(dataset: Dataset[Any], name: str, ids_needed: bool) -> tuple[list[Any], list[Any]]:
    """All (image, label) of a torch `Dataset`, each read once."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise ConfigError(
            f"Expected a torch Dataset with a length for {name}: every record is read once, and "
            "their number is part of the plan. Collect the stream into arrays first."
        )
    images, labels = [], []
    for number in range(len(dataset)):  # pyright: ignore[reportArgumentType]
        item = dataset[number]
        if not isinstance(item, tuple | list) or len(item) < 2:
            raise InvalidDataError(
                f"Expected items (image, label) of the torch Dataset {name}, got "
                f"{type(item).__name__}."
            )
        if ids_needed and len(item) > 2:
            raise InvalidDataError(
                f"Expected items (image, label) of the torch Dataset {name}, got {len(item)} "
                "values: the others would not be read. If one is an id, pass ids=…, one per image; "
                "else leave them out."
            )
        images.append(item[0])
        labels.append(_label(item[1]))
    return images, labels


def _label(label: Any) -> Any:
    if not isinstance(label, Tensor | np.ndarray):
        return label
    return np.asarray(label) if label.ndim else label.item()


def _array(images: Any, name: str, own: OwnData) -> NDArray[Any]:
    if isinstance(images, Tensor | np.ndarray):
        return _numbers(images, f"images of {name}")
    if isinstance(images, Sequence) and not isinstance(images, str | bytes):
        return _stacked(images, name, own)
    raise ConfigError(
        f"Expected the images of {name} as a numpy array, a torch tensor, a torch Dataset or a "
        f"Hugging Face Dataset, got {type(images).__name__}. A name or a path is given as data=…"
    )


def _stacked(images: Sequence[Any], name: str, own: OwnData) -> NDArray[Any]:
    """Images one by one as one array [n, …]."""
    one_by_one = [_one(image, name, own) for image in images]
    grey = next((n for n, image in enumerate(one_by_one) if image.ndim == 2), None)
    if grey is not None and all(map(_is_picture, images)):
        one_by_one = [
            as_grey(image, f"number {number}", f"number {grey}")
            for number, image in enumerate(one_by_one)
        ]
    if len({image.shape for image in one_by_one}) > 1:
        raise InvalidDataError(
            f"Expected the images of {name} to have one size and as many channels each; scale or "
            "convert them first."
        )
    return np.stack(one_by_one) if one_by_one else np.empty((0,))


def _is_picture(image: Any) -> bool:
    return hasattr(image, "getexif")


def _one(image: Any, name: str, own: OwnData) -> NDArray[Any]:
    if isinstance(image, Tensor | np.ndarray | list):
        return _numbers(image, f"images of {name}")
    if _is_picture(image):
        return pixels_of(image, own, f"An image of {name}")
    raise InvalidDataError(
        f"Expected each image of {name} as an array, a tensor or a picture of Pillow, got "
        f"{type(image).__name__}."
    )


def _numbers(values: Any, what: str) -> NDArray[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values
        return values.numpy()
    try:
        found = np.asarray(values)
    except ValueError:
        found = np.empty(0, dtype=object)
    if found.dtype == object and found.size and all(isinstance(one, str) for one in found.flat):
        found = found.astype(str)  # as pandas has strings
    if found.dtype == object:
        raise InvalidDataError(f"Expected {what} as numbers of one shape, got Python objects.")
    return found


def _ids(ids: Sequence[Any] | NDArray[Any] | Tensor, name: str) -> tuple[str, ...]:
    # numpy would make strings of all of them, and "nan" of a missing one.
    listed = ids if isinstance(ids, list | tuple) else ()
    others = {type(one).__name__ for one in listed if not isinstance(one, str)}
    if others and any(isinstance(one, str) for one in listed):
        raise InvalidDataError(
            f"Expected ids of {name} as strings or whole numbers, got strings and "
            f"{', '.join(sorted(others))}; give each image an id of the same type."
        )
    found = _numbers(ids, f"ids of {name}")
    if found.ndim != 1 or found.dtype.kind not in "Uiu":
        raise InvalidDataError(
            f"Expected ids of {name} as strings or whole numbers [n], got {found.dtype} of shape "
            f"{found.shape}."
        )
    return tuple(map(str, found.tolist()))
