"""One image file -> pixels that mean what a viewer would show, or a refusal.

What is done to a picture depends on that picture alone and on public settings. Values are scaled by
constants, never by the darkest and brightest pixel of a set, which depend on all records; a DICOM
file that names no window is scaled by its own pixels (`dicom`).
"""

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedtranscribe.config import UNSTATED, OwnData
from fedtranscribe.data.dicom import DICOM_SUFFIXES, dicom_is_grey, dicom_pixels
from fedtranscribe.data.validation import from_depth, to_images
from fedtranscribe.errors import DataNotFoundError, FedtranscribeError, InvalidDataError

_GIB = 2**30

T = TypeVar("T")

IMAGE_SUFFIXES = DICOM_SUFFIXES | {
    *(".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
}
# Whatever the name says, nothing else is even tried.
_FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# From here on Pillow itself suspects a decompression bomb.
_MOST_PIXELS = 89_000_000
_GREY, _COLOUR = ("1", "L", "LA"), ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
_DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N")
# How Pillow calls them where it keeps the upper byte alone; "BGR;16" is 16 bits for all three.
_DEEP_COLOUR = re.compile(";16[BLN]")
_WHITE_IS_ZERO = 0
_PHOTOMETRIC = 262


def read_picture(file: Path, own: OwnData = UNSTATED) -> NDArray[np.uint8]:
    """Pixels of an image file, upright as its EXIF entry says; of a DICOM file as its window says.

    Args:
        file: the file.
        own: `image_size` scales the picture and cuts out its middle, or pads it with black as
            `fit` says; `bit_depth` says what white is
            in a 16-bit grey picture; `channels` turns colour into luminance, or grey into colour.

    Returns:
        uint8 [h, w] for grey, [h, w, 3] for colour.
    """
    if file.suffix.lower() in DICOM_SUFFIXES:
        return _fitted(_read(file, dicom_pixels), own)

    def pixels(stream: BinaryIO, what: str) -> NDArray[np.uint8]:
        return _opened(stream, what, lambda image, what: pixels_of(image, own, what))

    return _read(file, pixels)


def is_grey(file: Path) -> bool:
    """Whether an image file is stored as grey, by its header alone; raises as `read_picture`."""
    if file.suffix.lower() in DICOM_SUFFIXES:
        return _read(file, dicom_is_grey)

    def grey(stream: BinaryIO, what: str) -> bool:
        return _opened(stream, what, lambda image, _: image.mode in (*_GREY, *_DEEP))

    return _read(file, grey)


def _read(file: Path, look: Callable[[BinaryIO, str], T]) -> T:
    what = f"The image {str(file)!r}"
    try:
        # A pipe or a device might never answer, so look before opening.
        if not S_ISREG(file.stat().st_mode):
            raise _refused(what, "is no regular file", "remove it")
        # A stream, not a path: Pillow maps a raw TIFF into memory, and a rotated one wrongly.
        with file.open("rb") as stream:
            return look(stream, what)
    except OSError as error:
        raise _refused(
            what, f"cannot be read ({type(error).__name__})", "repair or remove it"
        ) from error


def decode_picture(content: bytes, own: OwnData, what: str) -> NDArray[np.uint8]:
    """Pixels of an image file that is in memory; as `read_picture`.

    Args:
        content: of the file.
        own: as for `read_picture`.
        what: how messages call it.
    """
    return _opened(io.BytesIO(content), what, lambda image, what: pixels_of(image, own, what))


def _opened(stream: BinaryIO, what: str, look: Callable[[Any, str], T]) -> T:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataNotFoundError(
            "Image files are read by Pillow, which is not installed; "
            "run: pip install 'fedtranscribe[vision]'"
        ) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(stream, formats=_FORMATS) as image:
                return look(image, what)
    except FedtranscribeError:
        raise
    except Image.DecompressionBombError:
        raise _refused(what, "has too many pixels", "scale it down") from None
    except Exception as error:  # Pillow raises many kinds for a damaged file
        raise _refused(
            what, f"cannot be read ({type(error).__name__})", "repair or remove it"
        ) from (error)


def pixels_of(image: Any, own: OwnData, what: str) -> NDArray[np.uint8]:
    """Pixels of a picture that Pillow has opened; as `read_picture`.

    Args:
        image: a `PIL.Image.Image`.
        own: as for `read_picture`.
        what: how messages call it.
    """
    from PIL import ImageOps

    _expect_usable(image, what)
    upright = ImageOps.exif_transpose(image)
    # Pillow brings a PGM of any range to 16 bits; other files do not say their range.
    whole_range = image.format == "PPM"
    return _fitted(_eight_bits(upright, 16 if whole_range else own.bit_depth, what), own)


def _fitted(pixels: NDArray[np.uint8], own: OwnData) -> NDArray[np.uint8]:
    """Pixels with the channels and the size that the settings ask for."""
    from PIL import Image, ImageOps

    if own.channels == 1 and pixels.ndim == 3:
        pixels = np.asarray(Image.fromarray(pixels).convert("L"))
    elif own.channels == 3 and pixels.ndim == 2:
        pixels = np.repeat(pixels[..., np.newaxis], 3, axis=2)
    if own.image_size is None:
        return pixels
    side = (own.image_size, own.image_size)
    brought = ImageOps.pad if own.fit == "pad" else ImageOps.fit
    return np.asarray(brought(Image.fromarray(pixels), side, method=Image.Resampling.BILINEAR))


def _expect_usable(image: Any, what: str) -> None:
    """Refuse by the header alone what must not be decoded, or could not be kept."""
    if math.prod(image.size) > _MOST_PIXELS:
        size = "x".join(map(str, image.size))
        raise _refused(what, f"has {size} pixels, {_MOST_PIXELS:,} are allowed", "scale it down")
    # A telephone's MPO is a JPEG with further views behind the picture.
    if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":
        raise _refused(what, f"has {image.n_frames} frames", "store one image per file")
    if image.mode not in (*_GREY, *_COLOUR, *_DEEP):
        raise _refused(what, f"has pixels of kind {image.mode!r}", "store 8-bit grey or RGB")
    if image.mode not in _DEEP and _DEEP_COLOUR.search(str(getattr(image, "tile", ""))):
        raise _refused(what, "has 16 bits per colour or alpha value", "store 8 bits")
    if image.mode in _DEEP and "transparency" in image.info:
        raise _refused(what, "has transparent pixels", "flatten it")
    inverted = getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == _WHITE_IS_ZERO
    if image.mode in _DEEP and inverted:
        raise _refused(what, "stores white as zero", "invert it")


def _eight_bits(image: Any, depth: int | None, what: str) -> NDArray[np.uint8]:
    if image.mode in _DEEP:
        if depth is None:
            raise _refused(
                what,
                "has 16-bit grey values, and does not say how many bits they use",
                "pass --bit-depth 16, or 12 as for many DICOM exports",
            )
        return from_depth(np.asarray(image), depth, f"{what[0].lower()}{what[1:]}")
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        lowest, _ = image.convert("RGBA").getchannel("A").getextrema()
        if lowest < 255:
            raise _refused(what, "has transparent pixels", "flatten it")
    return np.asarray(image.convert("L" if image.mode in _GREY else "RGB"))


def _refused(what: str, why: str, fix: str) -> InvalidDataError:
    return InvalidDataError(f"{what} {why}; {fix}.")


def stacked(pictures: Iterable[tuple[str, NDArray[np.uint8]]], where: str, own: OwnData) -> Tensor:
    """Pictures as one tensor, uint8 [n, channels, size, size].

    Args:
        pictures: name and pixels, uint8 [h, w] or [h, w, 3], of each, read one by one.
        where: they are, for messages.
        own: `max_gib` bounds the memory that they take.
    """
    names: list[str] = []
    images: list[NDArray[np.uint8]] = []
    left = own.max_gib * _GIB
    for name, picture in pictures:
        names.append(name)
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
        grey = names[[image.ndim for image in images].index(2)]
        images = [as_grey(image, name, grey) for name, image in zip(names, images, strict=True)]
    shapes = {image.shape[:2] for image in images}
    if len(shapes) > 1 or any(height != width for height, width in shapes):
        raise InvalidDataError(
            f"Expected square images of one size in {where}; pass --image-size to resize."
        )
    return to_images(np.stack(images), f"images in {where}")


def as_grey(picture: NDArray[np.uint8], name: str, other: str) -> NDArray[np.uint8]:
    """A picture [h, w] among grey ones: a colour picture whose three channels are equal is grey.

    Args:
        picture: uint8 [h, w] or [h, w, 3].
        name: of the picture.
        other: name of a grey one.
    """
    if picture.ndim == 2:
        return picture
    if bool((picture != picture[..., :1]).any()):
        raise InvalidDataError(
            f"Expected all images to be grey or all to be colour, but {other} is grey and {name} "
            "is colour. Pass --channels 1 to turn colour into grey, or --channels 3 for the "
            "opposite."
        )
    return picture[..., 0]
