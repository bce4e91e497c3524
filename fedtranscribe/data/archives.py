"""A user's own data in an `.npz` archive."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtranscribe.data.imageset import DataSplit, ImageSet
from fedtranscribe.data.splits import split_by_id
from fedtranscribe.data.validation import to_images, to_labels
from fedtranscribe.errors import DataNotFoundError, InvalidDataError

Arrays = dict[str, NDArray[np.generic]]


def read_arrays(path: Path) -> Arrays:
    """All arrays of an archive; pickled objects are refused.

    Raises:
        DataNotFoundError: no such file.
        InvalidDataError: it is not an archive of plain arrays, or it is broken.
    """
    with _opened(path) as archive:
        return {key: archive[key] for key in archive.files}


def keys_of(path: Path) -> list[str]:
    """Names of an archive's arrays, without reading them; raises like `read_arrays`."""
    with _opened(path) as archive:
        return list(archive.files)


@contextmanager
def _opened(path: Path) -> Iterator[np.lib.npyio.NpzFile]:
    if not path.is_file():
        raise DataNotFoundError(f"No file {str(path)!r}; check the path.")
    try:
        # Opened here, because numpy leaves a file open whose archive it cannot read.
        with path.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise InvalidDataError(f"Expected an .npz archive, got one array: {str(path)!r}.")
            with archive:
                yield archive
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidDataError(
            f"Cannot read {str(path)!r} as .npz of plain arrays ({type(error).__name__})."
        ) from error


def load_archive(path: Path) -> DataSplit:
    """Train and test part of a user's own `.npz`.

    Keys: `images` and `labels`; optionally `ids` (strings or integers; persistent, may repeat
    where one person has several records), `classes` (a number), `data_id` (a name), and
    `test_images` with `test_labels` (and `test_ids`). Without a test part, one record in five
    is held out by a fixed hash of its id. Without `classes` the count is the largest label
    plus one: name it, so that it is public by decision and not by accident.

    Raises:
        DataNotFoundError: no such file.
        InvalidDataError: broken, keys missing, or unusable content.
    """
    arrays = read_arrays(path)
    train = _own(arrays, path, "", _class_count(arrays))
    if "test_images" in arrays:
        return DataSplit(train, _own(arrays, path, "test_", train.classes))
    return split_by_id(train)


def _own(arrays: Arrays, path: Path, prefix: str, classes: int) -> ImageSet:
    name = path.name
    ids = arrays.get(f"{prefix}ids")
    return ImageSet(
        name=name,
        data_id=str(arrays["data_id"]) if "data_id" in arrays else f"npz:{path.stem}",
        images=to_images(required(arrays, f"{prefix}images", path), f"{name} {prefix}images"),
        labels=to_labels(required(arrays, f"{prefix}labels", path), f"{name} {prefix}labels"),
        classes=classes,
        record_ids=None if ids is None else tuple(str(i) for i in ids.ravel().tolist()),
        folder=path.parent,
    )


def _class_count(arrays: Arrays) -> int:
    given = arrays.get("classes")
    if given is not None:
        if given.size != 1 or not np.issubdtype(given.dtype, np.integer):
            raise InvalidDataError("Expected 'classes' in the archive to be one whole number.")
        return int(given.item())
    tops = [
        to_labels(arrays[key], key).max().item()
        for key in ("labels", "test_labels")
        if key in arrays and arrays[key].size
    ]
    return int(max(tops, default=0)) + 1


def required(arrays: Arrays, key: str, path: Path) -> NDArray[np.generic]:
    """The array under `key`.

    Raises:
        InvalidDataError: no such key in the archive.
    """
    if key not in arrays:
        raise InvalidDataError(
            f"Expected key {key!r} in {str(path)!r}, found {', '.join(sorted(arrays)) or 'none'}."
        )
    return arrays[key]
