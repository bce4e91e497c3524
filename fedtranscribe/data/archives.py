"""A user's own data in an `.npz` archive, of ours or of MedMNIST's layout."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtranscribe.config import UNSTATED, OwnData
from fedtranscribe.config.catalogue import MEDMNIST, absent_data
from fedtranscribe.data.imageset import (
    Classes,
    DataSplit,
    DrawnFrom,
    ImageSet,
    agreed_classes,
    labels_of,
    split_by_id,
)
from fedtranscribe.data.npz import Arrays, keys_of, read_arrays
from fedtranscribe.data.validation import expect_read, to_images
from fedtranscribe.errors import ConfigError, DataNotFoundError, InvalidDataError
from fedtranscribe.privacy.budget import OWN, TRAIN_IDS

DRAWN_FROM, DRAWN_FROM_DATA = "drawn_from", "drawn_from_data_id"
"""Keys of an archive of samples: the run that they were drawn from, and the data id of its records
where the run says one."""

IDS_MADE = "ids_made"
"""Key of a copy that this program made: how its ids were made, see `privacy.record_note`."""

_EACH = ("images", "labels", "ids")
_FACTS = ("classes", "class_names", "data_id", DRAWN_FROM, DRAWN_FROM_DATA, IDS_MADE)
_KNOWN = (*_FACTS, *(part + key for part in ("", "train_", "test_") for key in _EACH))


def load_archive(path: Path, own: OwnData = UNSTATED) -> DataSplit:
    """Train and test part of a user's own `.npz`.

    Keys: `images`, `labels` and `classes` (a number) or `class_names` (strings); optionally `ids`
    (strings or integers; persistent, may repeat where one person has several records), `data_id`
    (a name), and `test_images` with `test_labels` (and `test_ids`). Samples of a generator say what
    they were drawn from (`drawn_from`, `drawn_from_data_id`), and copies how their ids were made
    (`ids_made`). Without a test part, one record in five is held out by a fixed hash of its id. A
    validation part (`val_…`) and keys of other names stay unread; `keys_read` says which may not.

    Args:
        path: the archive.
        own: may state the classes instead.
    """
    expect_own_ids(path, own)
    arrays = read_arrays(path, keys_read(keys_of(path), path), own.max_gib)
    for key in ("images", "labels"):
        required(arrays, key, path)
    classes = stated_classes(arrays, path, own)
    train = read_part(arrays, path, "", classes, own)
    if "test_images" in arrays:
        return DataSplit(train, read_part(arrays, path, "test_", classes, own))
    return split_by_id(train)


def keys_read(there: Collection[str], path: Path, train: str = "") -> list[str]:
    """Those keys of an archive that are read, once no other one is known or looks like ids.

    Args:
        there: all its keys.
        path: of the archive, for messages.
        train: what the keys of the training part begin with.
    """
    parts = (train, "test_") if train or "test_images" in there else (train,)
    each = [part + key for part in parts for key in _EACH]
    # Nothing is trained or tested on the validation part.
    used = [key for key in there if not key.startswith("val_")]
    keys = ", ".join(map(repr, each))
    fix = f"Rename it (what is read of each image: {keys}), or remove it."
    expect_read(used, (*each, *_FACTS), repr(str(path)), fix, _KNOWN)
    return [key for key in (*each, *_FACTS) if key in there]


def expect_own_ids(path: Path, own: OwnData, key: str = "ids") -> None:
    """Refuse ids that are not in the data themselves, under `key`."""
    if own.ids is not None or own.id_pattern is not None:
        raise ConfigError(
            f"Expected ids of {str(path)!r} under its key {key!r}; --ids and --id-pattern are for "
            "image folders."
        )


def stated_classes(
    arrays: Arrays,
    path: Path,
    own: OwnData,
    known: Classes | None = None,
    fix: str | None = None,
) -> Classes:
    """The classes that an archive or the settings state.

    Args:
        arrays: of the archive.
        path: of the archive, for messages.
        own: the settings.
        known: what a published set has; the archive's own keys win.
        fix: how to add the key, if not to an archive.
    """
    count, names = arrays.get("classes"), arrays.get("class_names")
    if count is not None and (count.size != 1 or not np.issubdtype(count.dtype, np.integer)):
        raise InvalidDataError(f"Expected 'classes' in {str(path)!r} to be one whole number.")
    if names is not None and (names.ndim != 1 or names.dtype.kind != "U"):
        raise InvalidDataError(f"Expected 'class_names' in {str(path)!r} as strings [classes].")
    if count is not None or names is not None:
        called = None if names is None else tuple(str(name) for name in names.tolist())
        known = Classes(len(called or ()) if count is None else int(count.item()), called)
    found = agreed_classes(known, own, str(path))
    if found is None:
        fix = fix or (
            f'python -c "import numpy as np; a = dict(np.load({str(path)!r})); '
            f'np.savez({str(path)!r}, **a, classes=N)"'
        )
        raise InvalidDataError(
            f"Expected key 'classes' in {str(path)!r}: how many classes there are is public, and "
            f"never counted from labels. For private data pass --classes N or --classes cat,dog, "
            f"or add the key: {fix}"
        )
    return found


def read_part(
    arrays: Arrays,
    path: Path,
    prefix: str,
    classes: Classes,
    own: OwnData,
    called: str | None = None,
) -> ImageSet:
    """The training or the test part of an archive.

    Args:
        arrays: of the archive.
        path: of the archive.
        prefix: what the keys of the part begin with.
        classes: as they were stated.
        own: how pixels are read.
        called: name of the set, and its data id unless a key states one; those of the file, if not
            given.
    """
    name = called or path.name
    images = required(arrays, f"{prefix}images", path)
    labels = required(arrays, f"{prefix}labels", path)
    if not images.ndim:
        raise InvalidDataError(
            f"Expected one image per label under key '{prefix}images' in {str(path)!r}, got one "
            "number."
        )
    n = len(images)
    return ImageSet(
        name=name,
        data_id=data_id_of(arrays, path, called),
        pixels=to_images(images, f"{name} {prefix}images", own.bit_depth),
        labels=labels_of(labels, n, classes, own, f"{prefix}labels in {str(path)!r}"),
        classes=classes.count,
        record_ids=_ids(arrays, f"{prefix}ids", n, path),
        folder=path.resolve().parent,
        class_names=classes.names,
        drawn_from=drawn_from(arrays, path),
        ids_made=ids_made(arrays, path),
    )


def drawn_from(arrays: Arrays, path: Path) -> DrawnFrom | None:
    """What the images of an archive were drawn from, where it says so; raises as `load_archive`."""
    if DRAWN_FROM not in arrays:
        return None
    run = _text(arrays, DRAWN_FROM, path)
    return DrawnFrom(
        run, _text(arrays, DRAWN_FROM_DATA, path) if DRAWN_FROM_DATA in arrays else None
    )


def _ids(arrays: Arrays, key: str, n: int, path: Path) -> tuple[str, ...] | None:
    ids = arrays.get(key)
    if ids is None:
        return None
    expect_ids(ids.shape, ids.dtype, key, n, path)
    return tuple(str(i) for i in ids.ravel().tolist())


def expect_ids(
    shape: tuple[int, ...], dtype: np.dtype[np.generic], key: str, n: int, path: Path
) -> None:
    """Refuse ids that are neither strings nor whole numbers, or not one per image."""
    expect_one_each(shape, key, n, path)
    if dtype.kind not in "USiu":
        raise InvalidDataError(
            f"Expected {key!r} in {str(path)!r} as strings or whole numbers, got {dtype}."
        )


def expect_one_each(shape: tuple[int, ...], key: str, n: int, path: Path) -> None:
    """Refuse before converting: a few bytes may claim billions of values."""
    if shape not in ((n,), (n, 1)):
        raise InvalidDataError(
            f"Expected one value per image under key {key!r} in {str(path)!r}, [{n}], got shape "
            f"{shape}."
        )


def data_id_of(arrays: Arrays, path: Path, called: str | None = None) -> str:
    """What an archive's ledger is bound to; raises as `load_archive`."""
    if "data_id" in arrays:
        return _text(arrays, "data_id", path)
    if called is not None:
        return called
    # Of the file itself: a link to the data is no other data set.
    place = path.resolve()
    return f"npz:{place.name if place.is_dir() else place.stem}"


def ids_made(arrays: Arrays, path: Path) -> str:
    """How the ids of an archive were made."""
    return _text(arrays, IDS_MADE, path) if IDS_MADE in arrays else OWN


def _text(arrays: Arrays, key: str, path: Path) -> str:
    values = arrays[key]
    if values.ndim or values.dtype.kind not in "Uiu":
        raise InvalidDataError(
            f"Expected {key!r} in {str(path)!r} as one string, got {values.dtype} of shape "
            f"{values.shape}."
        )
    return str(values.item())


def required(arrays: Arrays, key: str, path: Path) -> NDArray[np.generic]:
    """The array under `key`."""
    if key not in arrays:
        raise InvalidDataError(
            f"Expected key {key!r} in {str(path)!r}, found {', '.join(sorted(arrays)) or 'none'}."
        )
    return arrays[key]


CHEST = "chestmnist"
"""The set whose images may have several of its classes."""
# Of the official sets, whose sizes share them: pneumoniamnist, pneumoniamnist_64, …
_SIZES = ("", "_64", "_128", "_224")
_CLASSES = {
    **{"bloodmnist": 8, "breastmnist": 2, "dermamnist": 7, "octmnist": 4, "organamnist": 11},
    **{"organcmnist": 11, "organsmnist": 11, "pathmnist": 9, "pneumoniamnist": 2},
    **{"retinamnist": 5, "tissuemnist": 8, CHEST: 14},
}
# Of two classes, so that it is plain what the second one is.
_NAMES = {
    "pneumoniamnist": ("normal", "pneumonia"),
    "breastmnist": ("malignant", "normal or benign"),
    CHEST: (
        *("atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule"),
        *("pneumonia", "pneumothorax", "consolidation", "edema", "emphysema", "fibrosis"),
        *("pleural thickening", "hernia"),
    ),
}


def load_medmnist(
    flag: str, root: Path | None, download: bool, own: OwnData = UNSTATED
) -> DataSplit:
    """`medmnist:<flag>`: `<root>/<flag>.npz`, or the same in `<root>/medmnist`.

    The official training part is trained on and the official test part tested on; the
    validation part is left alone.
    """
    if root is None:
        raise absent_data(f"{MEDMNIST}{flag}", None)
    candidates = (root / f"{flag}.npz", root / "medmnist" / f"{flag}.npz")
    path = next((p for p in candidates if p.is_file()), None)
    if path is None and download:
        path = _download_medmnist(flag, root)
    if path is None:
        raise absent_data(f"{MEDMNIST}{flag}", root)
    return read_medmnist(path, own, flag)


def read_medmnist(path: Path, own: OwnData = UNSTATED, flag: str | None = None) -> DataSplit:
    """One archive in MedMNIST's layout, known by its `train_images`; the file name is the id.

    Optional keys are those of `load_archive`: `train_ids`, `test_ids`, `data_id` and so on.
    Official sets have a known number of classes; others state it like any own archive. Without
    ids, places in an official set that is loaded by name are lasting; in any other file they are
    mere positions.

    Args:
        path: the archive.
        own: as for `load`.
        flag: its name in MedMNIST; None for a user's file, whose name is that of the file itself:
            a link to the data is no other data set.
    """
    expect_own_ids(path, own, "train_ids")
    arrays = read_arrays(path, keys_read(keys_of(path), path, "train_"), own.max_gib)
    stem = (flag or path.stem).partition("_")[0]
    if stem == CHEST:
        own = own.model_copy(update={"task": "multilabel"})
    known = _CLASSES.get(stem)
    classes = stated_classes(arrays, path, own, Classes(known, _NAMES.get(stem)) if known else None)
    name = flag or path.resolve().stem
    official = known is not None and flag in {stem + size for size in _SIZES}

    def part(which: str) -> ImageSet:
        found = read_part(arrays, path, f"{which}_", classes, own, f"medmnist:{name}")
        if not found.positional and found.ids_made == OWN:
            return replace(found, ids_made=TRAIN_IDS)
        if official and found.positional:
            rows = tuple(f"{flag}-{which}-{i}" for i in range(len(found)))
            return replace(found, record_ids=rows)
        return found

    return DataSplit(part("train"), part("test"))


def _download_medmnist(flag: str, root: Path) -> Path:
    try:
        import medmnist
    except ImportError as error:
        raise DataNotFoundError(
            f"Data set 'medmnist:{flag}' is downloaded by medmnist, which is not installed; "
            f"run: pip install 'fedtranscribe[medical]'"
        ) from error
    if flag not in medmnist.INFO:
        raise DataNotFoundError(
            f"MedMNIST has no set {flag!r}; it has {', '.join(sorted(medmnist.INFO))}."
        )
    try:
        loader = getattr(medmnist, medmnist.INFO[flag]["python_class"])
        loader(split="train", root=str(root), download=True)
    except (RuntimeError, OSError) as error:
        raise DataNotFoundError(
            f"Cannot download {flag}.npz to {str(root)!r} ({type(error).__name__}); "
            f"check the network and the folder."
        ) from error
    return root / f"{flag}.npz"
