"""Data sets of the Hugging Face package `datasets`, in memory or saved."""

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from fedtranscribe.config import OwnData
from fedtranscribe.config.catalogue import SPLITS, STATE
from fedtranscribe.data.folders import of_one_kind
from fedtranscribe.data.imageset import (
    Classes,
    DataSplit,
    ImageSet,
    agreed_classes,
    labels_of,
    split_by_id,
)
from fedtranscribe.data.pictures import decode_picture, stacked
from fedtranscribe.data.validation import expect_read
from fedtranscribe.errors import (
    ConfigError,
    DataNotFoundError,
    FedtranscribeError,
    InvalidDataError,
)
from fedtranscribe.files import read_object
from fedtranscribe.privacy.budget import OWN, stated

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
    """Whether a value is a `datasets.Dataset`, without importing the package."""
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
    """The values of one column."""
    if name not in dataset.features:
        columns = ", ".join(map(repr, dataset.features))
        raise ConfigError(f"Expected ids={name!r} as one of the columns {columns}.")
    return [row[name] for row in dataset.select_columns([name]).with_format(None)]


def columns_of(
    dataset: HubDataset, name: str, ids_needed: bool, *, several: bool = False
) -> tuple[list[Any], list[Any], Classes | None]:
    """Images and labels of a `datasets.Dataset`, and its classes where its features name them.

    Args:
        dataset: with one column of images and one of labels.
        name: of the data, for messages.
        ids_needed: whether a column that looks like ids must not be left out.
        several: whether labels are lists of classes.
    """
    kinds = sys.modules["datasets"]
    features = dataset.features
    single = {name: _label_kind(feature, several) for name, feature in features.items()}
    image = _column(features, kinds.Image, _IMAGE_NAMES, "images", name)
    label = _column(single, kinds.ClassLabel, _LABEL_NAMES, "labels", name)
    if ids_needed:
        fix = "Pass ids='NAME' of the column, or leave it out by dataset.remove_columns([…])."
        expect_read(features, (image, label), f"the Dataset {name}", fix)
    stated = single[label]
    known = None
    if isinstance(stated, kinds.ClassLabel) and stated.names:
        known = Classes(len(stated.names), tuple(stated.names))
    plain = dataset.select_columns([image, label]).with_format(None)
    rows = [(row[image], row[label]) for row in plain]
    return [row[0] for row in rows], [row[1] for row in rows], known


def _label_kind(feature: Any, several: bool) -> Any:
    """The kind of a column; where labels are lists, of what they list."""
    if not several:
        return feature
    return feature[0] if isinstance(feature, list) else getattr(feature, "feature", feature)


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


_TRAIN, _TEST = "train", "test"
_BATCH = 64


def load_saved_dataset(path: Path, own: OwnData) -> DataSplit:
    """The splits `train` and `test` of a saved DatasetDict, or a saved Dataset.

    Images are the column of the type `Image`, labels the one of the type `ClassLabel`, which states
    the classes, too. Where there are several, or labels are plain numbers, the settings name the
    column. Without a test part one record in five is held out by a fixed hash of its id. Other
    splits stay unread, and notes name them. Other columns stay unread, but a column that looks like
    ids is refused without `id_column`.

    Args:
        path: the folder.
        own: `image_column`, `label_column` and `id_column` name columns; the rest as for folders
            of image files.
    """
    if own.ids is not None or own.id_pattern is not None:
        raise ConfigError(
            f"Expected ids of {str(path)!r} in a column: --id-column NAME; --ids and --id-pattern "
            "are for folders of image files."
        )
    if importlib.util.find_spec("datasets") is None:
        raise DataNotFoundError(
            f"{str(path)!r} is read by the package datasets, which is not installed; "
            "run: pip install 'fedtranscribe[datasets]'"
        )
    if not (path / SPLITS).is_file():
        return split_by_id(_read(path, path, own))
    names = (_object(path / SPLITS)).get("splits")
    if not isinstance(names, list) or _TRAIN not in names:
        found = ", ".join(map(repr, names)) if isinstance(names, list) else "none"
        raise DataNotFoundError(
            f"Expected the splits 'train' and 'test' in {str(path)!r}, found {found}; give the "
            "folder of one split, or save the data again under these names."
        )
    train = _read(path / _TRAIN, path, own)
    others = ", ".join(repr(name) for name in names if name not in (_TRAIN, _TEST))
    notes = (f"left out of {str(path)!r}: the splits {others}",) if others else ()
    if _TEST not in names:
        return replace(split_by_id(train), notes=notes)
    return DataSplit(*of_one_kind(train, _read(path / _TEST, path, own)), notes)


def _read(part: Path, whole: Path, own: OwnData) -> ImageSet:
    where = repr(str(part))
    try:
        table = _table(part)
        image, label = _columns(table.features, own, where)
        if own.id_column is None:
            fix = "Name the column of ids by --id-column, or remove it and save the data again."
            expect_read(table.features, (image, label), where, fix)
        classes = _classes(_label_kind(table.features[label], own.multilabel), own, where)
        images = stacked(_pictures(table, image, own, where), where, own)
        values = table.with_format(None)[label][:]
        labels = labels_of(values, len(images), classes, own, f"labels in {where}")
        ids = _ids(table, own.id_column, where)
    except FedtranscribeError:
        raise
    except Exception as error:  # pyarrow and datasets raise many kinds for a damaged file
        raise InvalidDataError(
            f"Cannot read {where} as a saved dataset ({type(error).__name__}); save it again."
        ) from error
    return ImageSet(
        name=whole.name,
        data_id=f"datasets:{whole.resolve().name}",
        pixels=images,
        labels=labels,
        classes=classes.count,
        record_ids=ids,
        folder=whole,
        class_names=classes.names,
        ids_made=stated(own) or OWN,
    )


def _table(part: Path) -> Any:
    """The columns of one split, on disk; nothing is decoded yet."""
    files = _object(part / STATE).get("_data_files")
    names = [file.get("filename") for file in files or [] if isinstance(file, dict)]
    for name in names:
        # A file elsewhere is not part of these data.
        if not isinstance(name, str) or name != Path(name).name or not (part / name).is_file():
            raise InvalidDataError(
                f"Expected the Arrow files of {str(part)!r} inside of it, {name!r} is not; save "
                "the data again."
            )
    import datasets

    table = datasets.Dataset.load_from_disk(str(part.absolute()), keep_in_memory=False)
    for name, kind in table.features.items():
        if isinstance(kind, datasets.Image):
            table = table.cast_column(name, datasets.Image(decode=False))
    return table.with_format(None)


def _object(path: Path) -> dict[str, Any]:
    found = read_object(path)
    if found is None:
        raise InvalidDataError(f"{str(path)!r} is absent or damaged; save the data again.")
    return found


def _columns(features: Any, own: OwnData, where: str) -> tuple[str, str]:
    """The columns of images and of labels."""
    import datasets

    single = {name: _label_kind(feature, own.multilabel) for name, feature in features.items()}
    image = _named_column(features, datasets.Image, own.image_column, "image", where)
    label = _named_column(single, datasets.ClassLabel, own.label_column, "label", where)
    if not isinstance(features[image], datasets.Image):
        raise ConfigError(
            f"Expected the column {image!r} of {where} to have the type Image; cast it, and save "
            "the data again."
        )
    return image, label


def _named_column(features: Any, kind: type, named: str | None, what: str, where: str) -> str:
    found = [name for name, feature in features.items() if isinstance(feature, kind)]
    if named is not None:
        if named in features:
            return named
    elif len(found) == 1:
        return found[0]
    columns = ", ".join(map(repr, features))
    raise ConfigError(
        f"Expected one column of {what}s in {where}, found "
        f"{len(found) if named is None else f'no {named!r}'} among {columns}; name it by "
        f"--{what}-column."
    )


def _classes(feature: Any, own: OwnData, where: str) -> Classes:
    import datasets

    known = None
    if isinstance(feature, datasets.ClassLabel):
        known = Classes(len(feature.names), tuple(feature.names))
    found = agreed_classes(known, own, where)
    if found is None:
        raise InvalidDataError(
            f"Expected the labels in {where} to have the type ClassLabel, which states the "
            "classes; cast the column and save the data again, or pass --classes N or their names."
        )
    return found


def _pictures(
    table: Any, column: str, own: OwnData, where: str
) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    only, number = table.select_columns([column]), 0
    for batch in only.iter(_BATCH):
        for cell in batch[column]:
            content = cell.get("bytes") if isinstance(cell, dict) else None
            if not isinstance(content, bytes):
                raise InvalidDataError(
                    f"Expected a picture in every row of {where}, row {number} has none; save the "
                    "data again with save_to_disk, which stores the pictures themselves."
                )
            name = f"row {number} of {where}"
            yield name, decode_picture(content, own, f"The image in {name}")
            number += 1


def _ids(table: Any, column: str | None, where: str) -> tuple[str, ...] | None:
    if column is None:
        return None
    if column not in table.features:
        columns = ", ".join(map(repr, table.features))
        raise ConfigError(f"Expected --id-column={column!r} as one of the columns {columns}.")
    values = table[column][:]
    if not all(isinstance(value, str | int) and not isinstance(value, bool) for value in values):
        raise InvalidDataError(
            f"Expected strings or whole numbers in the column {column!r} of {where}."
        )
    return tuple(map(str, values))
