"""Raw arrays from files -> the tensors that `ImageSet` holds.

What is done to one record never depends on another: the pixel range follows from the dtype,
not from the largest value seen, or else one record could rescale all others and every
teacher would move with it.
"""

import re
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtranscribe.errors import InvalidDataError

# As people call what says which images are of one record: patient_id, SubjectID, mrn.
_IDS = re.compile(
    r"(?i:(?<![a-z])(?:[psu]?ids?|mrns?)(?![a-z])|patient|participant|person|subject)"
    r"|(?<=[a-z])U?I[dD]s?(?![a-z])"
)


def expect_read(
    names: Iterable[str],
    read: Collection[str],
    where: str,
    fix: str,
    known: Collection[str] = (),
) -> None:
    """Refuse keys, columns or files that are not read, and that are known or look like ids.

    Args:
        names: of all there are.
        read: those that are read.
        where: they are, for the message.
        fix: what the user can do.
        known: names that are read in other layouts; a final s and capitals do not matter.
    """
    near = {name.rstrip("s") for name in known}
    unread = [
        name
        for name in names
        if name not in read and (name.lower().rstrip("s") in near or _IDS.search(name))
    ]
    if unread:
        raise InvalidDataError(
            f"Expected {where} without {', '.join(map(repr, unread))}, which would not be read: "
            f"where ids are overlooked, each image of a patient counts as a record. {fix}"
        )


def to_images(raw: NDArray[np.generic], name: str, depth: int | None = None) -> Tensor:
    """Images as uint8 [n, channels, height, width].

    Args:
        raw: [n, h, w], [n, h, w, 1 or 3] or [n, 1 or 3, h, w]; integers in [0, 255] or floats
            in [0, 1].
        name: how messages call the array.
        depth: integers wider than a byte use so many bits; 8 if not given.
    """
    if raw.ndim and len(raw) == 0:
        raise InvalidDataError(
            f"Expected at least one record, got none: {name} have the shape {raw.shape}."
        )
    if raw.ndim not in (3, 4) or 0 in raw.shape:
        raise InvalidDataError(
            f"Expected {name} as [n, h, w], [n, h, w, channels] or [n, channels, h, w], "
            f"got shape {raw.shape}."
        )
    pixels = _to_bytes(raw, name, depth)
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    elif pixels.shape[3] in (1, 3):
        pixels = pixels.transpose(0, 3, 1, 2)
    elif pixels.shape[1] not in (1, 3):
        raise InvalidDataError(f"Expected {name} with 1 or 3 channels, got shape {raw.shape}.")
    return torch.from_numpy(np.array(pixels, order="C"))  # a copy: files may be mapped read-only


def from_depth(values: NDArray[np.generic], depth: int, name: str) -> NDArray[np.uint8]:
    """Integers of so many bits as bytes, by a constant: 0 becomes 0, 2^depth - 1 becomes 255."""
    top = 2**depth - 1
    if values.size and (values.min() < 0 or values.max() > top):
        raise InvalidDataError(
            f"Expected the pixels of {name} within 0..{top}, the range of {depth} bits; pass the "
            "--bit-depth that the values use."
        )
    # In whole numbers, rounded to the nearest.
    return ((values.astype(np.uint32) * 510 + top) // (2 * top)).astype(np.uint8)


def _to_bytes(raw: NDArray[np.generic], name: str, depth: int | None) -> NDArray[np.uint8]:
    if raw.dtype == np.uint8:
        return raw.astype(np.uint8, copy=False)
    if np.issubdtype(raw.dtype, np.floating):
        values = raw.astype(np.float64)
        if not np.isfinite(values).all():
            raise InvalidDataError(f"Expected finite pixels in {name}, found NaN or infinity.")
        if values.min() < 0 or values.max() > 1:
            raise InvalidDataError(
                f"Expected float pixels of {name} within [0, 1]; store 0..255 as uint8 instead."
            )
        return np.rint(values * 255).astype(np.uint8)
    if np.issubdtype(raw.dtype, np.integer):
        if depth is not None:
            return from_depth(raw, depth, name)
        if raw.min() < 0 or raw.max() > 255:
            raise InvalidDataError(
                f"Expected integer pixels of {name} within [0, 255]; pass --bit-depth if they use "
                "more than 8 bits."
            )
        return raw.astype(np.uint8)
    raise InvalidDataError(f"Expected numeric pixels in {name}, got dtype {raw.dtype}.")


def to_labels(
    raw: NDArray[np.generic], name: str, class_names: tuple[str, ...] | None = None
) -> Tensor:
    """Class numbers as int64 [n].

    Args:
        raw: [n] or [n, 1]; integers, floats that are whole numbers, or names of classes.
        name: how messages call the array.
        class_names: as they were stated, in the order of their numbers.
    """
    flat = raw[:, 0] if raw.ndim == 2 and raw.shape[1] == 1 else raw
    if flat.ndim != 1:
        raise InvalidDataError(
            f"Expected {name} as [n], one class number per image, got shape {raw.shape}."
        )
    if flat.dtype.kind == "U":
        return _numbered(flat, name, class_names)
    if np.issubdtype(flat.dtype, np.floating):
        values = flat.astype(np.float64)
        # The bound keeps the conversion to integers exact.
        whole = np.isfinite(values) & (np.abs(values) < 2**53) & (values == np.rint(values))
        if not whole.all():
            raise InvalidDataError(f"Expected whole, finite class numbers in {name}.")
    elif not np.issubdtype(flat.dtype, np.integer):
        raise InvalidDataError(f"Expected class numbers in {name}, got dtype {flat.dtype}.")
    return torch.from_numpy(flat.astype(np.int64))


def to_label_sets(
    raw: Any, n: int, name: str, classes: int, class_names: tuple[str, ...] | None = None
) -> Tensor:
    """Which classes each image has, int64 [n, classes] of 0 and 1.

    Args:
        raw: an array [n, classes] of 0 and 1, or n lists of class numbers or names, each of which
            may be empty.
        n: how many images there are.
        name: how messages call the labels.
        classes: how many there are.
        class_names: as they were stated.
    """
    if isinstance(raw, list):
        return _listed(raw, n, name, classes, class_names)
    values = np.asarray(raw)
    if values.shape != (n, classes):
        raise InvalidDataError(
            f"Expected {name} as [{n}, {classes}], a column for each class, got shape "
            f"{values.shape}."
        )
    if values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
        raise InvalidDataError(f"Expected {name} as 0 and 1, and one is not; correct the labels.")
    return torch.from_numpy(values.astype(np.int64))


def _listed(
    raw: list[Any], n: int, name: str, classes: int, class_names: tuple[str, ...] | None
) -> Tensor:
    """Lists of classes as rows of 0 and 1; does not say which label is none."""
    if len(raw) != n or not all(isinstance(row, list | tuple | np.ndarray) for row in raw):
        raise InvalidDataError(f"Expected {name} as {n} lists of classes, one per image.")
    numbers = {called: number for number, called in enumerate(class_names or ())}
    found = torch.zeros(n, classes, dtype=torch.int64)
    for image, row in enumerate(raw):
        if len(set(row)) < len(row):
            raise InvalidDataError(
                f"Expected {name} as lists of different classes, and one names a class twice; "
                f"columns of 0 and 1 are given as an array [{n}, {classes}]."
            )
        for label in row:
            number = numbers.get(label, -1) if isinstance(label, str) else label
            if not isinstance(number, int | np.integer) or not 0 <= number < classes:
                raise InvalidDataError(
                    f"Expected {name} among the {classes} classes, and a label is not; correct "
                    "the labels, or state other classes."
                )
            found[image, int(number)] = 1
    return found


def _numbered(flat: NDArray[np.generic], name: str, class_names: tuple[str, ...] | None) -> Tensor:
    """Names of classes as their numbers; does not say which label is none."""
    if class_names is None:
        raise InvalidDataError(
            f"Expected class numbers in {name}, got strings. State the names of all classes, in "
            "the order of their numbers, by --classes (cat,dog; in Python ['cat', 'dog']) or the "
            "key 'class_names'."
        )
    numbers = {called: number for number, called in enumerate(class_names)}
    found = torch.tensor([numbers.get(label, -1) for label in flat.tolist()], dtype=torch.int64)
    if bool((found < 0).any()):
        raise InvalidDataError(
            f"Expected {name} among the class names {', '.join(map(repr, class_names))}, and a "
            "label is not; correct the labels, or state the names of all classes."
        )
    return found
