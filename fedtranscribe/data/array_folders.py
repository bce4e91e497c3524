"""A folder with the arrays of an `.npz`, a file each: images stay on disk."""

from pathlib import Path

from fedtranscribe.config import UNSTATED, OwnData
from fedtranscribe.data.archives import (
    data_id_of,
    drawn_from,
    expect_ids,
    expect_one_each,
    expect_own_ids,
    ids_made,
    keys_read,
    required,
    stated_classes,
)
from fedtranscribe.data.classes import Classes, below
from fedtranscribe.data.imageset import DataSplit, ImageSet
from fedtranscribe.data.npy_files import NpyFile
from fedtranscribe.data.npz import Arrays
from fedtranscribe.data.splits import split_by_id
from fedtranscribe.data.stored import StoredIds, StoredPixels
from fedtranscribe.data.validation import to_labels
from fedtranscribe.errors import ConfigError, InvalidDataError

IMAGES = "images.npy"
"""The file that such a folder is known by."""
_STORED = frozenset({"images", "ids", "test_images", "test_ids"})
_GIB = 2**30


def is_array_folder(path: Path) -> bool:
    """Whether a path is a folder with `images.npy`."""
    try:
        return path.is_dir() and (path / IMAGES).is_file()
    except PermissionError:
        return False  # of another user's folder nothing is known


def load_array_folder(path: Path, own: OwnData = UNSTATED) -> DataSplit:
    """`<path>/<key>.npy` for every key of `load_archive`: an unpacked archive is such a folder.

    Files that are not read are refused as keys are: `test_ids.npy` without `test_images.npy`, or
    `patients.csv`.

    Images, which have to be uint8, and ids stay in their files; labels are read. The records, their
    data id and the place of their ledger are those of the archive `<path>.npz`.

    Args:
        path: the folder.
        own: may state the classes.

    Raises:
        DataNotFoundError: no such folder, or no images in it.
        InvalidDataError: a file is broken or absent, classes not stated, or unusable content.
        ConfigError: `own` contradicts the folder.
    """
    expect_own_ids(path, own)
    if own.channels is not None:
        raise ConfigError(
            f"Expected no --channels for {str(path)!r}, whose images are arrays; pack the image "
            "files again with it."
        )
    there = [file for file in path.iterdir() if not file.name.startswith(".")]
    keys = [file.stem if file.suffix == ".npy" else file.name for file in there]
    files = {key: NpyFile(path / f"{key}.npy") for key in keys_read(keys, path)}
    arrays = _read({key: file for key, file in files.items() if key not in _STORED}, path, own)
    classes = stated_classes(
        arrays, path, own, fix=f"python -c \"import numpy as np; np.save('{path}/classes.npy', N)\""
    )
    train = _part(path, files, arrays, "", classes, own)
    if "test_images" in files:
        return DataSplit(train, _part(path, files, arrays, "test_", classes, own))
    return split_by_id(train)


def _read(files: dict[str, NpyFile], path: Path, own: OwnData) -> Arrays:
    size = sum(file.bytes for file in files.values())
    if size > own.max_gib * _GIB:
        raise InvalidDataError(
            f"Expected the labels in {str(path)!r} to take at most {own.max_gib:g} GiB of memory, "
            f"they take {size / _GIB:,.1f}; raise --max-gib if this machine has as much."
        )
    return {key: file.whole() for key, file in files.items()}


def _part(
    path: Path,
    files: dict[str, NpyFile],
    arrays: Arrays,
    prefix: str,
    classes: Classes,
    own: OwnData,
) -> ImageSet:
    pixels = StoredPixels(files[f"{prefix}images"], own.max_gib)
    labels, where = required(arrays, f"{prefix}labels", path), f"{prefix}labels in {str(path)!r}"
    expect_one_each(labels.shape, f"{prefix}labels", len(pixels), path)
    ids = files.get(f"{prefix}ids")
    if ids is not None:
        expect_ids(ids.shape, ids.dtype, f"{prefix}ids", len(pixels), path)
    return ImageSet(
        name=path.name,
        data_id=data_id_of(arrays, path),
        pixels=pixels,
        labels=below(to_labels(labels, where, classes.names), classes, where),
        classes=classes.count,
        record_ids=None if ids is None else StoredIds(ids),
        folder=path.resolve().parent,
        class_names=classes.names,
        drawn_from=drawn_from(arrays, path),
        ids_made=ids_made(arrays, path),
    )
