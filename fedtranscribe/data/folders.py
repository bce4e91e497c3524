"""Folders of image files, one subfolder per class."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedtranscribe.data.imageset import DataSplit, ImageSet
from fedtranscribe.data.splits import split_by_id
from fedtranscribe.data.validation import to_images
from fedtranscribe.errors import DataNotFoundError, InvalidDataError

IMAGE_SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff"})


def load_folder(path: Path, size: int | None = None) -> DataSplit:
    """`<path>/<class>/<image>`, or the same below `<path>/train` and `<path>/test`.

    Classes are the subfolders in alphabetical order. A record's id is its file name without
    the class folder, so that a changed label leaves the record in its shard; equal names in two
    classes share a shard, which costs nothing. Without a test part one record in five is
    held out by a fixed hash of its id.

    Args:
        path: the folder.
        size: bring every image to this many pixels a side (scaled, then cut in the middle).
            Without it all images must already be square and of one size.

    Raises:
        DataNotFoundError: no such folder, or no images in class subfolders.
        InvalidDataError: unreadable images, several sizes, grey and colour mixed.
    """
    if not path.is_dir():
        raise DataNotFoundError(f"No folder {str(path)!r}; check the path.")
    if not ((path / "train").is_dir() and (path / "test").is_dir()):
        return split_by_id(_read(path, path, size, _class_names(path)))
    names = _class_names(path / "train")
    train, test = (_read(path / part, path, size, names) for part in ("train", "test"))
    return DataSplit(train, test)


def _class_names(path: Path) -> list[str]:
    names = sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not names:
        raise DataNotFoundError(
            f"No class subfolders in {str(path)!r}; expected {str(path / '<class>' / '<image>')!r}."
        )
    return names


def _read(path: Path, whole: Path, size: int | None, names: list[str]) -> ImageSet:
    strangers = set(_class_names(path)) - set(names)
    if strangers:
        raise InvalidDataError(
            f"Expected the classes of the train part in {str(path)!r}, found also "
            f"{', '.join(sorted(strangers))}."
        )
    files = [
        (label, file)
        for label, name in enumerate(names)
        for file in sorted((path / name).glob("*"))
        if file.suffix.lower() in IMAGE_SUFFIXES
    ]
    if not files:
        raise DataNotFoundError(
            f"No images ({', '.join(sorted(IMAGE_SUFFIXES))}) in the subfolders of {str(path)!r}."
        )
    return ImageSet(
        name=whole.name,
        data_id=f"folder:{whole.resolve().name}",
        images=_stack([_open(file, size) for _, file in files], path),
        labels=torch.tensor([label for label, _ in files], dtype=torch.int64),
        classes=len(names),
        record_ids=tuple(file.name for _, file in files),
        folder=whole,
    )


def _stack(images: list[np.ndarray], path: Path) -> Tensor:
    if len({image.ndim for image in images}) > 1:
        raise InvalidDataError(
            f"Expected all images in {str(path)!r} to be grey or all to be colour; convert them."
        )
    shapes = {image.shape[:2] for image in images}
    if len(shapes) > 1 or any(height != width for height, width in shapes):
        raise InvalidDataError(
            f"Expected square images of one size in {str(path)!r}; pass --image-size to resize."
        )
    return to_images(np.stack(images), f"images in {str(path)!r}")


def _open(file: Path, size: int | None) -> np.ndarray:
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise DataNotFoundError(
            "Image files are read by Pillow, which is not installed; "
            "run: pip install 'fedtranscribe[vision]'"
        ) from error
    try:
        with Image.open(file) as image:
            grey = image.mode in ("1", "L", "LA")
            pixels = image.convert("L" if grey else "RGB")
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise InvalidDataError(
            f"Cannot read the image {str(file)!r} ({type(error).__name__}); mend or remove it."
        ) from error
    if size is not None:
        pixels = ImageOps.fit(pixels, (size, size), method=Image.Resampling.BILINEAR)
    return np.asarray(pixels)
