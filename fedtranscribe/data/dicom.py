"""A DICOM file -> pixels that mean what a viewer would show, or a refusal.

What is done to a picture depends on its file alone: stored values are rescaled, brought through the
file's own look-up table or window, and white is made bright. Nothing of the header is read but what
says how to show the pixels, and the one field that names the person where the user asks for it.
"""

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedtranscribe.errors import ConfigError, DataNotFoundError, InvalidDataError

DICOM_SUFFIXES = frozenset({".dcm", ".dicom"})

_SHAPE = (
    *("Rows", "Columns", "NumberOfFrames", "SamplesPerPixel", "PlanarConfiguration"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
    "PhotometricInterpretation",
)
_MEANING = (
    *("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence"),
    *("WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence"),
    *("LUTDescriptor", "LUTData", "PixelPaddingValue"),
    *(f"{c}PaletteColorLookupTableDescriptor" for c in ("Red", "Green", "Blue")),
    *(f"{c}PaletteColorLookupTableData" for c in ("Red", "Green", "Blue")),
)
_GREY = ("MONOCHROME1", "MONOCHROME2")
_COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT", "PALETTE COLOR")
_MOST_PIXELS = 89_000_000
# Of a file without a window: what lies beyond is shown black or white.
_DARKEST, _BRIGHTEST = 0.5, 99.5


def dicom_pixels(stream: BinaryIO, what: str) -> NDArray[np.uint8]:
    """Pixels of a DICOM file.

    Args:
        stream: the file, from its beginning.
        what: how messages call it.

    Returns:
        uint8 [h, w] for grey, [h, w, 3] for colour.
    """
    header = _header(stream, what, (*_SHAPE, *_MEANING, "PixelData"))
    _expect_usable(header, what)
    stored = _decoded(header, what)
    if header.PhotometricInterpretation not in _GREY:
        return _colours(header, stored)
    try:
        shown = _shown(header, stored, what)
    except (ValueError, TypeError, AttributeError, IndexError, NotImplementedError) as error:
        raise _refused(
            what, f"has a look-up table that cannot be used ({type(error).__name__})", "repair it"
        ) from None
    if header.PhotometricInterpretation == "MONOCHROME1":
        shown = 1 - shown
    return (shown * 255).round().astype(np.uint8)


def dicom_is_grey(stream: BinaryIO, what: str) -> bool:
    """Whether a DICOM file is grey, by its header alone."""
    header = _header(stream, what, _SHAPE)
    _expect_usable(header, what)
    return header.PhotometricInterpretation in _GREY


def dicom_field(keyword: str, file: Path) -> str:
    """What a file's header says of a field, such as PatientID; empty where it says nothing.

    Args:
        keyword: the field's name in the standard.
        file: the file.

    Raises:
        ConfigError: there is no such field.
    """
    pydicom = _pydicom()
    tag = pydicom.datadict.tag_for_keyword(keyword)
    if tag is None:
        raise ConfigError(
            f"Expected ids={keyword!r} as a CSV file with path and id of each image, or as the "
            "name of a DICOM field such as PatientID; no such file or field."
        )
    what = f"The image {str(file)!r}"
    try:
        with file.open("rb") as stream:
            header = _header(stream, what, (keyword,), pixels=False)
    except OSError as error:
        raise _refused(
            what, f"cannot be read ({type(error).__name__})", "repair or remove it"
        ) from None
    return str(header.get(keyword, "") or "").strip()


def _pydicom() -> Any:
    try:
        import pydicom
    except ImportError:
        raise DataNotFoundError(
            "DICOM files are read by pydicom, which is not installed; "
            "run: pip install 'fedtranscribe[dicom]'"
        ) from None
    return pydicom


def _header(stream: BinaryIO, what: str, fields: tuple[str, ...], *, pixels: bool = True) -> Any:
    """These fields of a file, and no other."""
    pydicom = _pydicom()
    try:
        return pydicom.dcmread(stream, specific_tags=list(fields), stop_before_pixels=not pixels)
    except Exception as error:  # pydicom raises many kinds for a damaged file
        raise _refused(
            what, f"is no DICOM file that can be read ({type(error).__name__})", "remove it"
        ) from None


def _expect_usable(header: Any, what: str) -> None:
    """Refuse by the header alone what must not be decoded, or would not be one picture."""
    absent = [name for name in ("Rows", "Columns", "BitsStored") if not header.get(name)]
    kind = header.get("PhotometricInterpretation")
    if absent or not kind:
        raise _refused(what, "holds no picture", "remove it")
    if header.Rows * header.Columns > _MOST_PIXELS:
        size = f"{header.Columns}x{header.Rows}"
        raise _refused(what, f"has {size} pixels, {_MOST_PIXELS:,} are allowed", "scale it down")
    if int(header.get("NumberOfFrames") or 1) > 1:
        frames = header.NumberOfFrames
        raise _refused(what, f"has {frames} frames", "store one image per file")
    if kind not in (*_GREY, *_COLOUR):
        raise _refused(what, f"has pixels of kind {str(kind)!r}", "store grey or RGB")
    most = 16 if kind in (*_GREY, "PALETTE COLOR") else 8
    if not 8 <= header.BitsStored <= most:
        raise _refused(what, f"has {header.BitsStored} bits per pixel", f"store 8 to {most}")


def _decoded(header: Any, what: str) -> NDArray[Any]:
    from pydicom.pixels.decoders.base import get_decoder

    if "PixelData" not in header:
        raise _refused(what, "holds no picture", "remove it")
    syntax = header.file_meta.get("TransferSyntaxUID")
    if syntax is None:
        raise _refused(what, "does not say how its pixels are encoded", "repair or remove it")
    if syntax.is_compressed:
        try:
            available = get_decoder(syntax).is_available
        except NotImplementedError:
            available = False
        if not available:
            raise _refused(
                what,
                f"is compressed as {syntax.name}, which no installed package decodes",
                "pip install 'fedtranscribe[dicom]', or decompress it, as with gdcmconv --raw",
            )
    try:
        return header.pixel_array
    except Exception as error:  # of each decoder its own
        raise _refused(
            what, f"has pixels that cannot be decoded ({type(error).__name__})", "repair it"
        ) from None


def _colours(header: Any, stored: NDArray[Any]) -> NDArray[np.uint8]:
    """Red, green and blue; decoders have left no other colours."""
    if header.PhotometricInterpretation != "PALETTE COLOR":
        return stored.astype(np.uint8)
    from pydicom.pixels.processing import apply_color_lut

    found = apply_color_lut(stored, header)
    return (found >> 8 if found.dtype == np.uint16 else found).astype(np.uint8)


def _shown(header: Any, stored: NDArray[Any], what: str) -> NDArray[np.float64]:
    """How bright each pixel is shown, in [0, 1]."""
    from pydicom.pixels.processing import apply_modality_lut, apply_voi

    values = np.asarray(apply_modality_lut(stored, header))
    if header.get("VOILUTSequence"):
        bits = header.VOILUTSequence[0].LUTDescriptor[2]
        return apply_voi(values.astype(np.int64), header) / (2.0**bits - 1)
    values = values.astype(np.float64)
    if header.get("WindowWidth") is not None and header.get("WindowCenter") is not None:
        centre, width = _first(header.WindowCenter), _first(header.WindowWidth)
        return _windowed(values, centre, width, header.get("VOILUTFunction") or "LINEAR", what)
    padding = header.get("PixelPaddingValue")
    known = values if padding is None else values[stored != padding]
    if not known.size:
        return np.zeros_like(values)
    low, high = np.percentile(known, [_DARKEST, _BRIGHTEST])
    return ((values - low) / max(high - low, 1e-12)).clip(0, 1)


def _first(value: Any) -> float:
    """Of several windows a viewer shows the first."""
    return float(value if not hasattr(value, "__len__") else value[0])


def _windowed(
    values: NDArray[np.float64], centre: float, width: float, function: str, what: str
) -> NDArray[np.float64]:
    """PS3.3, C.11.2.1.2 and C.11.2.1.3."""
    enough = width >= 1 if function == "LINEAR" else width > 0
    if not enough or not np.isfinite([centre, width]).all():
        raise _refused(what, f"has a window of width {width:g}", "repair it")
    if function == "SIGMOID":
        return 1 / (1 + np.exp(-4 * (values - centre) / width))
    if function == "LINEAR_EXACT":
        return ((values - centre) / width + 0.5).clip(0, 1)
    if function != "LINEAR":
        raise _refused(what, f"has a window of kind {function!r}", "store a linear one")
    # A window of width 1 is a threshold.
    return ((values - centre + 0.5) / max(width - 1, 1e-12) + 0.5).clip(0, 1)


def _refused(what: str, why: str, fix: str) -> InvalidDataError:
    return InvalidDataError(f"{what} {why}; {fix}.")
