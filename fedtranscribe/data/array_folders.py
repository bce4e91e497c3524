"""A folder with the arrays of an `.npz`, a file each, and packing an image folder into one."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtranscribe.config import UNSTATED, OwnData
from fedtranscribe.config.sources import expect_outside
from fedtranscribe.data.archives import (
    IDS_MADE,
    data_id_of,
    drawn_from,
    expect_ids,
    expect_own_ids,
    ids_made,
    keys_read,
    required,
    stated_classes,
)
from fedtranscribe.data.folders import Pictures, find_pictures
from fedtranscribe.data.imageset import Classes, DataSplit, ImageSet, labels_of, split_by_id
from fedtranscribe.data.npz import Arrays, NpyFile
from fedtranscribe.data.pictures import as_grey, is_grey, read_picture
from fedtranscribe.data.stored import StoredIds, StoredPixels
from fedtranscribe.errors import ConfigError, InvalidDataError
from fedtranscribe.files import unwritable
from fedtranscribe.privacy.budget import PATHS, stated
from fedtranscribe.privacy.ledger_place import LedgerPlace
from fedtranscribe.results.progress import Progress, silent

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
    ids = files.get(f"{prefix}ids")
    if ids is not None:
        expect_ids(ids.shape, ids.dtype, f"{prefix}ids", len(pixels), path)
    return ImageSet(
        name=path.name,
        data_id=data_id_of(arrays, path),
        pixels=pixels,
        labels=labels_of(labels, len(pixels), classes, own, where),
        classes=classes.count,
        record_ids=None if ids is None else StoredIds(ids),
        folder=path.resolve().parent,
        class_names=classes.names,
        drawn_from=drawn_from(arrays, path),
        ids_made=ids_made(arrays, path),
    )


def pack(
    source: Path,
    out: Path,
    own: OwnData = UNSTATED,
    progress: Progress = silent,
    ledger: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """Decode the pictures of a folder, one after the other, into `out`.

    The ledger stays one: where the pictures have one, a marker beside `out` says so, and a run on
    `out` asks for it by name; otherwise a marker among the pictures says where it will be. A ledger
    that is named has a marker in both places.

    Args:
        source: as for `load_folder`.
        out: a folder that is not there yet.
        own: how the pictures are read.
        progress: shows how far it is.
        ledger: of the records, where it does not lie beside them.
        say: receives what is left out.
    """
    if out.exists():
        raise ConfigError(
            f"Expected --out {str(out)!r} as a new folder; remove it, or name another."
        )
    expect_outside(out, str(source))
    train, test, notes = find_pictures(source, own)
    for note in notes:
        say(note)
    before = LedgerPlace.find(train.data_id, source, ledger)
    partial = out.with_name(f".{out.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700, parents=True)
        after = LedgerPlace.find(train.data_id, out.resolve().parent, ledger)
        grey = None if own.channels else _grey_among_colour(*train.files, *(test or train).files)
        _write(train, partial, "", own, grey, progress)
        if test is not None:
            _write(test, partial, "test_", own, grey, progress)
        np.save(partial / "class_names.npy", np.array(train.class_names))
        np.save(partial / "data_id.npy", np.array(train.data_id))
        np.save(partial / f"{IDS_MADE}.npy", np.array(stated(own) or PATHS))
        partial.rename(out)
    except OSError as error:
        raise unwritable(out, error) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    used = before.path if before.path.exists() else after.path
    for place in (before, after):
        replace(place, path=used).mark()
    return used


def _write(
    found: Pictures,
    folder: Path,
    prefix: str,
    own: OwnData,
    grey: Path | None,
    progress: Progress,
) -> None:
    count, first = len(found.files), _picture(found.files[0], own, grey)
    if first.shape[0] != first.shape[1]:
        raise _uneven(found)
    with (folder / f"{prefix}{IMAGES}").open("wb") as stream:
        header = {"descr": "|u1", "fortran_order": False, "shape": (count, *first.shape)}
        np.lib.format.write_array_header_1_0(stream, header)
        for number, file in enumerate(found.files):
            image = _picture(file, own, grey)
            if image.shape != first.shape:
                raise _uneven(found)
            stream.write(image.tobytes())
            progress(f"{prefix}pictures", number + 1, count)
    np.save(folder / f"{prefix}labels.npy", found.labels.numpy())
    np.save(folder / f"{prefix}ids.npy", np.array(found.ids))


def _grey_among_colour(*files: Path) -> Path | None:
    """A grey picture, where others are stored as colour."""
    grey = [is_grey(file) for file in files]
    return files[grey.index(True)] if any(grey) and not all(grey) else None


def _picture(file: Path, own: OwnData, grey: Path | None) -> NDArray[np.uint8]:
    picture = read_picture(file, own)
    return picture if grey is None else as_grey(picture, repr(str(file)), repr(str(grey)))


def _uneven(found: Pictures) -> InvalidDataError:
    return InvalidDataError(
        f"Expected square images of one size in {str(found.folder)!r}; pass --image-size to resize."
    )
