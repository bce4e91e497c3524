"""Columns of a Hugging Face `Dataset` (package `datasets`), which nobody here needs to install."""

import sys
from typing import Any, Protocol, TypeGuard

from fedtranscribe.data.classes import Classes
from fedtranscribe.data.validation import expect_read
from fedtranscribe.errors import ConfigError

_IMAGE_NAMES, _LABEL_NAMES = ("image", "img", "pixel_values"), ("label", "labels")


class HubDataset(Protocol):
    """What is used of a `datasets.Dataset`."""

    @property
    def features(self) -> Any:
        """Kind of each column, by name."""
        ...

    def select_columns(self, column_names: Any) -> Any:
        """The same rows with fewer columns."""
        ...


def is_hub_dataset(value: Any) -> TypeGuard[HubDataset]:
    """Whether a value is a `datasets.Dataset`, without importing the package.

    Raises:
        ConfigError: it is another thing of that package; says what to pass.
    """
    package = sys.modules.get("datasets")
    if package is None or type(value).__module__.split(".")[0] != "datasets":
        return False
    if isinstance(value, package.Dataset):
        return True
    if isinstance(value, package.DatasetDict):
        parts = ", ".join(map(repr, value))
        raise ConfigError(
            f"Expected one Dataset, got a DatasetDict of {parts}; pass one of them, such as "
            "dataset['train'], and test=dataset['test'] if there is one."
        )
    raise ConfigError(
        f"Expected a Hugging Face Dataset, got {type(value).__name__}: every record is read once, "
        "and their number is part of the plan."
    )


def column_of(dataset: HubDataset, name: str) -> list[Any]:
    """The values of one column.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in dataset.features:
        columns = ", ".join(map(repr, dataset.features))
        raise ConfigError(f"Expected ids={name!r} as one of the columns {columns}.")
    return [row[name] for row in dataset.select_columns([name]).with_format(None)]


def columns_of(
    dataset: HubDataset, name: str, ids_needed: bool
) -> tuple[list[Any], list[Any], Classes | None]:
    """Images and labels of a `datasets.Dataset`, and its classes where its features name them.

    Args:
        dataset: with one column of images and one of labels.
        name: of the data, for messages.
        ids_needed: whether a column that looks like ids must not be left out.

    Raises:
        ConfigError: it is not clear which columns are meant.
        InvalidDataError: there is such a column.
    """
    kinds = sys.modules["datasets"]
    features = dataset.features
    image = _column(features, kinds.Image, _IMAGE_NAMES, "images", name)
    label = _column(features, kinds.ClassLabel, _LABEL_NAMES, "labels", name)
    if ids_needed:
        fix = "Pass ids='NAME' of the column, or leave it out by dataset.remove_columns([…])."
        expect_read(features, (image, label), f"the Dataset {name}", fix)
    stated = features[label]
    known = None
    if isinstance(stated, kinds.ClassLabel) and stated.names:
        known = Classes(len(stated.names), tuple(stated.names))
    plain = dataset.select_columns([image, label]).with_format(None)
    rows = [(row[image], row[label]) for row in plain]
    return [row[0] for row in rows], [row[1] for row in rows], known


def _column(features: Any, kind: Any, usual: tuple[str, ...], what: str, name: str) -> str:
    """The one column of a kind; otherwise the one with a usual name."""
    of_kind = [column for column, feature in features.items() if isinstance(feature, kind)]
    found = of_kind or [column for column in features if column in usual]
    if len(found) != 1:
        columns = ", ".join(map(repr, features))
        raise ConfigError(
            f"Expected one column of {what} in the Dataset {name}, found {len(found)} among "
            f"{columns}; choose by dataset.select_columns([…])."
        )
    return found[0]
