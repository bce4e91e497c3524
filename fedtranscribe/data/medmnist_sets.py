"""MedMNIST's archives, official or rebuilt."""

from dataclasses import replace
from pathlib import Path

from fedtranscribe.catalogue import MEDMNIST, absent_data
from fedtranscribe.config import UNSTATED, OwnData
from fedtranscribe.data.archives import expect_own_ids, keys_read, read_part, stated_classes
from fedtranscribe.data.classes import Classes
from fedtranscribe.data.imageset import DataSplit, ImageSet
from fedtranscribe.data.npz import keys_of, read_arrays
from fedtranscribe.errors import DataNotFoundError
from fedtranscribe.privacy.record_note import OWN, TRAIN_IDS

# Of the official sets, whose sizes share them: pneumoniamnist, pneumoniamnist_64, …
_SIZES = ("", "_64", "_128", "_224")
_CLASSES = {
    **{"bloodmnist": 8, "breastmnist": 2, "dermamnist": 7, "octmnist": 4, "organamnist": 11},
    **{"organcmnist": 11, "organsmnist": 11, "pathmnist": 9, "pneumoniamnist": 2},
    **{"retinamnist": 5, "tissuemnist": 8},
}
# Of two classes, so that it is plain what the second one is.
_NAMES = {
    "pneumoniamnist": ("normal", "pneumonia"),
    "breastmnist": ("malignant", "normal or benign"),
}


def load_medmnist(
    flag: str, root: Path | None, download: bool, own: OwnData = UNSTATED
) -> DataSplit:
    """`medmnist:<flag>`: `<root>/<flag>.npz`, or the same in `<root>/medmnist`.

    The official training part is trained on and the official test part tested on; the
    validation part is left alone.

    Raises:
        DataNotFoundError: no folder given, or no such file in it and no download wanted.
        InvalidDataError: broken or multi-label content.
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

    Raises:
        InvalidDataError: broken or multi-label content, classes that nobody states, or keys as
            `keys_read` refuses them.
        ConfigError: `own` contradicts the archive, or states ids.
    """
    expect_own_ids(path, own, "train_ids")
    arrays = read_arrays(path, keys_read(keys_of(path), path, "train_"), own.max_gib)
    stem = (flag or path.stem).partition("_")[0]
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
