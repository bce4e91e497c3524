"""An image folder -> a folder of arrays, of which a few images at a time are read.

Records, ids, labels, data id and held-out part stay what they were.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtranscribe.config import UNSTATED, OwnData
from fedtranscribe.config.sources import expect_outside
from fedtranscribe.data.archives import IDS_MADE
from fedtranscribe.data.array_folders import IMAGES
from fedtranscribe.data.folders import Pictures, as_grey, find_pictures
from fedtranscribe.data.pictures import is_grey, read_picture
from fedtranscribe.errors import ConfigError, InvalidDataError
from fedtranscribe.files import unwritable
from fedtranscribe.privacy.ledger_place import LedgerPlace
from fedtranscribe.privacy.record_note import PATHS, stated
from fedtranscribe.tracking import Progress, silent


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

    Returns:
        Where the ledger of the records is or will be.

    Raises:
        ConfigError: `out` is there already, or lies in `source`.
        DataError: as `load_folder`.
        SecondLedgerError, StorageError: as `LedgerPlace.find`; or `out` cannot be written.
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
