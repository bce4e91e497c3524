"""MedMNIST's archives, official or rebuilt."""

from pathlib import Path

from fedtranscribe.data.archives import read_arrays, required
from fedtranscribe.data.imageset import DataSplit, ImageSet
from fedtranscribe.data.validation import to_images, to_labels
from fedtranscribe.errors import DataNotFoundError


def load_medmnist(flag: str, root: Path | None, download: bool) -> DataSplit:
    """`medmnist:<flag>`: `<root>/<flag>.npz`, or the same in `<root>/medmnist`.

    The official training part is trained on and the official test part tested on; the
    validation part is left alone.

    Raises:
        DataNotFoundError: no folder given, or no such file in it and no download wanted.
        InvalidDataError: broken or multi-label content.
    """
    if root is None:
        raise DataNotFoundError(
            f"Data set 'medmnist:{flag}' needs a folder; pass --data-root DIR, "
            f"and --download to fetch it there."
        )
    candidates = (root / f"{flag}.npz", root / "medmnist" / f"{flag}.npz")
    path = next((p for p in candidates if p.is_file()), None)
    if path is None and download:
        path = _download_medmnist(flag, root)
    if path is None:
        raise DataNotFoundError(f"No {flag}.npz in {str(root)!r}; put it there or pass --download.")
    return read_medmnist(path)


def read_medmnist(path: Path) -> DataSplit:
    """One archive in MedMNIST's layout, known by its `train_images`; the file name is the id.

    Raises:
        InvalidDataError: broken or multi-label content.
    """
    arrays = read_arrays(path)
    flag = path.stem
    labels = {
        part: to_labels(required(arrays, f"{part}_labels", path), f"{flag} {part}_labels")
        for part in ("train", "test")
    }
    classes = int(max(part.max().item() for part in labels.values())) + 1

    def part(which: str) -> ImageSet:
        raw = required(arrays, f"{which}_images", path)
        return ImageSet(
            name=f"medmnist:{flag}",
            data_id=f"medmnist:{flag}",
            images=to_images(raw, f"{flag} {which}_images"),
            labels=labels[which],
            classes=classes,
            record_ids=tuple(f"{flag}-{which}-{i}" for i in range(len(raw))),
            folder=path.parent,
        )

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
