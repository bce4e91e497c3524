"""Folders of image files, one subfolder per class."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtranscribe.config import UNSTATED, OwnData
from fedtranscribe.data.classes import Classes, settled
from fedtranscribe.data.image_ids import image_ids
from fedtranscribe.data.imageset import DataSplit, ImageSet
from fedtranscribe.data.pictures import IMAGE_SUFFIXES, read_picture
from fedtranscribe.data.splits import split_by_id
from fedtranscribe.data.validation import to_images
from fedtranscribe.errors import DataNotFoundError, InvalidDataError
from fedtranscribe.privacy.record_note import PATHS, stated

_GIB = 2**30


def load_folder(path: Path, own: OwnData = UNSTATED) -> DataSplit:
    """`<path>/<class>/<image>`, or the same below `<path>/train` and `<path>/test`.

    Classes are the subfolders in alphabetical order, or those that `own.classes` names; a class
    without images is fine. A record's id is its path inside the folder, unless `own` says which
    images belong to one patient. Without a test part one record in five is held out by a fixed hash
    of its id.

    Args:
        path: the folder.
        own: `image_size` brings every image to so many pixels a side (scaled, then cut in the
            middle); without it all images must already be square and of one size.

    Raises:
        DataNotFoundError: no such folder, or no images in class subfolders.
        InvalidDataError: unreadable images, several sizes, grey and colour mixed, unusable names.
        ConfigError: `own` states other classes than the subfolders.
    """
    train, test = find_pictures(path, own)
    if test is None:
        return split_by_id(_read(train, own))
    return DataSplit(_read(train, own), _read(test, own))


@dataclass(frozen=True)
class Pictures:
    """The files of an image folder, or of one part of it.

    Attributes:
        folder: the whole.
        files: in the order of their records.
        labels: int64 [n].
        ids: of the records.
        class_names: by label.
    """

    folder: Path
    files: tuple[Path, ...]
    labels: Tensor
    ids: tuple[str, ...]
    class_names: tuple[str, ...]

    @property
    def data_id(self) -> str:
        """What the ledger is bound to."""
        return f"folder:{self.folder.resolve().name}"


def find_pictures(path: Path, own: OwnData) -> tuple[Pictures, Pictures | None]:
    """The files of a folder, or of its training part and of its test part; raises as `load_folder`.

    No picture is read.
    """
    if not path.is_dir():
        raise DataNotFoundError(f"No folder {str(path)!r}; check the path.")
    if not ((path / "train").is_dir() and (path / "test").is_dir()):
        return _find(path, path, own, _stated(path, own)), None
    classes = _stated(path / "train", own)
    train, test = (_find(path / part, path, own, classes) for part in ("train", "test"))
    return train, test


def _stated(path: Path, own: OwnData) -> tuple[str, ...]:
    """The class names: those of the settings, or the subfolders."""
    if isinstance(own.classes, tuple):
        return own.classes
    names = _subfolders(path)
    settled(Classes(len(names), names), own, str(path))
    return names


def _subfolders(path: Path) -> tuple[str, ...]:
    names = sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not names:
        raise DataNotFoundError(
            f"No class subfolders in {str(path)!r}; expected {str(path / '<class>' / '<image>')!r}."
        )
    return tuple(names)


def _find(path: Path, whole: Path, own: OwnData, names: tuple[str, ...]) -> Pictures:
    strangers = set(_subfolders(path)) - set(names)
    if strangers:
        raise InvalidDataError(
            f"Expected the classes {', '.join(map(repr, names))} in {str(path)!r}, found also "
            f"{', '.join(map(repr, sorted(strangers)))}; rename or remove it, or state all classes "
            "by --classes."
        )
    files = [
        (label, file)
        for label, name in enumerate(names)
        if (path / name).is_dir()
        for file in sorted((path / name).iterdir())
        if file.suffix.lower() in IMAGE_SUFFIXES
    ]
    if not files:
        raise DataNotFoundError(
            f"No images ({', '.join(sorted(IMAGE_SUFFIXES))}) in the subfolders of {str(path)!r}."
        )
    ids = image_ids([_relative(file, whole) for _, file in files], own)
    labels = torch.tensor([label for label, _ in files], dtype=torch.int64)
    return Pictures(whole, tuple(file for _, file in files), labels, ids, names)


def _read(found: Pictures, own: OwnData) -> ImageSet:
    return ImageSet(
        name=found.folder.name,
        data_id=found.data_id,
        pixels=stacked(
            (read_picture(file, own) for file in found.files), repr(str(found.folder)), own
        ),
        labels=found.labels,
        classes=len(found.class_names),
        record_ids=found.ids,
        folder=found.folder,
        class_names=found.class_names,
        ids_made=stated(own) or PATHS,
    )


def _relative(file: Path, whole: Path) -> str:
    name = file.relative_to(whole).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidDataError(
            f"Expected the name of {str(file)!r} in UTF-8; rename the file."
        ) from None
    return name


def stacked(pictures: Iterable[NDArray[np.uint8]], where: str, own: OwnData) -> Tensor:
    """Pictures as one tensor, uint8 [n, channels, size, size].

    Args:
        pictures: uint8 [h, w] or [h, w, 3] each, read one by one.
        where: they are, for messages.
        own: `max_gib` bounds the memory that they take.

    Raises:
        InvalidDataError: none at all, too many, several sizes, or grey and colour mixed.
    """
    images: list[NDArray[np.uint8]] = []
    left = own.max_gib * _GIB
    for picture in pictures:
        images.append(picture)
        left -= picture.nbytes
        if left < 0:
            raise InvalidDataError(
                f"Expected the images in {where} to take at most {own.max_gib:g} GiB of "
                "memory; pass --image-size to scale them, keep them on disk (fedtranscribe data "
                "pack), or raise --max-gib."
            )
    if not images:
        raise InvalidDataError(f"Expected images in {where}, found none.")
    if len({image.ndim for image in images}) > 1:
        raise InvalidDataError(
            f"Expected all images in {where} to be grey or all to be colour; convert them."
        )
    shapes = {image.shape[:2] for image in images}
    if len(shapes) > 1 or any(height != width for height, width in shapes):
        raise InvalidDataError(
            f"Expected square images of one size in {where}; pass --image-size to resize."
        )
    return to_images(np.stack(images), f"images in {where}")
