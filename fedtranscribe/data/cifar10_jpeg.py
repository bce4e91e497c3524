"""CIFAR-10 kept as JPEG files in two archives: complete, but lossy."""

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtranscribe.catalogue import absent_data
from fedtranscribe.data.archives import required
from fedtranscribe.data.imageset import DataSplit, ImageSet
from fedtranscribe.data.npz import read_arrays
from fedtranscribe.data.validation import to_images, to_labels
from fedtranscribe.errors import DataNotFoundError, InvalidDataError


def load_cifar10_jpeg(root: Path | None) -> DataSplit:
    """`cifar10-jpeg`: CIFAR-10 as JPEG files, lossy; never report it as CIFAR-10.

    `<root>[/cifar10]/cifar10_jpeg_{train,test}.npz` hold `jpeg` (uint8, one file after
    another), `offsets` (int64 [n + 1]) and `labels` ([n]).

    Raises:
        DataNotFoundError: no folder given, no such files, or Pillow is not installed.
        InvalidDataError: broken content.
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
