"""Labelled images as the rest of the package sees them: classes, ids, held-out part."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtranscribe.config import LONGEST_NAME, MOST_CLASSES, OwnData, is_name
from fedtranscribe.config.facts import Facts
from fedtranscribe.data.shards import held_out
from fedtranscribe.data.stored import RowNames, StoredIds, StoredPixels
from fedtranscribe.data.validation import to_label_sets, to_labels
from fedtranscribe.errors import ConfigError, InvalidDataError
from fedtranscribe.privacy.budget import OWN, POSITION
from fedtranscribe.text import counted


@dataclass(frozen=True)
class Classes:
    """How many classes there are, and what they are called.

    Raises:
        InvalidDataError: fewer than 2, too many, or names that do not fit.
    """

    count: int
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Bound what networks and cards are built from."""
        if not 2 <= self.count <= MOST_CLASSES:
            raise InvalidDataError(f"Expected 2 <= classes={self.count} <= {MOST_CLASSES}.")
        if self.names is None:
            return
        if len(self.names) != self.count or len(set(self.names)) != self.count:
            raise InvalidDataError(f"Expected a different name for each of {self.count} classes.")
        wrong = next((name for name in self.names if not is_name(name)), None)
        if wrong is not None:
            raise InvalidDataError(
                f"Expected the class name {wrong[:80]!r} to have 1 to {LONGEST_NAME} printable "
                "characters; rename the class."
            )


def agreed_classes(known: Classes | None, own: OwnData, where: str) -> Classes | None:
    """What a set and the settings say together; None where neither says anything.

    Args:
        known: what the set itself states.
        own: the settings.
        where: the set, for messages.

    Raises:
        ConfigError: they contradict each other.
    """
    if own.classes is None:
        return known
    if isinstance(own.classes, int):
        declared = Classes(own.classes)
    else:
        declared = Classes(len(own.classes), own.classes)
    if known is None:
        return declared
    if declared.count != known.count:
        raise ConfigError(
            f"Expected classes={declared.count} to be the {known.count} classes that {where!r} "
            "states; leave --classes out, or correct it."
        )
    if declared.names and known.names and declared.names != known.names:
        raise ConfigError(
            f"Expected --classes to be the class names that {where!r} states; leave it out."
        )
    return known if declared.names is None else declared


def labels_of(raw: Any, n: int, classes: Classes, own: OwnData, where: str) -> Tensor:
    """Labels as they were read, int64 [n]; or [n, classes] of 0 and 1 where there may be several.

    Args:
        raw: an array; of several labels also n lists of class numbers or names.
        n: how many images there are.
        classes: as they were stated.
        own: says whether there may be several.
        where: how messages call the labels.

    Raises:
        InvalidDataError: not as many as images, or not of these classes.
    """
    if own.multilabel:
        return to_label_sets(raw, n, where, classes.count, classes.names)
    values = np.asarray(raw)
    # Before anything is converted: a few bytes may claim billions of values.
    if values.shape not in ((n,), (n, 1)):
        raise InvalidDataError(
            f"Expected one label per image, {where} as [{n}], got shape {values.shape}. If an "
            "image may have several labels, pass --task multilabel."
        )
    return below(to_labels(values, where, classes.names), classes, where)


NO_LABEL = "none of them"
"""What images without any of several labels are called."""


def groups_of(labels: Tensor) -> Tensor:
    """What a generator tells images apart by, int64 [n]: one label each stands for itself.

    Of several labels the first one counts, as 1 + its class; 0 are images without any.

    Args:
        labels: int64 [n], or [n, classes] of 0 and 1.
    """
    if labels.ndim == 1:
        return labels
    return torch.where(labels.any(1), 1 + labels.argmax(1), 0)


VOTES = "teachers, who vote for one class"
"""What needs single labels first of all."""


def expect_single_labels(multilabel: bool, what: str) -> None:
    """Refuse several labels per image where only one can be used.

    Args:
        multilabel: whether there may be several.
        what: needs single labels.

    Raises:
        ConfigError: there may be.
    """
    if multilabel:
        raise ConfigError(
            f"Expected one label per image for {what}, got task=multilabel: only sums over records "
            "take several labels. Leave it out, or give data with one label per image."
        )


def below(labels: Tensor, classes: Classes, where: str) -> Tensor:
    """The labels, int64 [n], if each of them is a class; does not say which one is not.

    Raises:
        InvalidDataError: one is not in [0, classes).
    """
    if bool(((labels < 0) | (labels >= classes.count)).any()):
        raise InvalidDataError(
            f"Expected {where} within 0..{classes.count - 1}, since classes={classes.count}, and a "
            "label is not; correct the labels, or state another number: --classes, or the key "
            "'classes'."
        )
    return labels


@dataclass(frozen=True)
class DrawnFrom:
    """What synthetic images were drawn from.

    Attributes:
        run: of `synthesize`.
        data_id: of the records that its generator was trained on; None where nobody says.
    """

    run: str
    data_id: str | None


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled square images of one shape, checked on construction.

    Attributes:
        name: the name that a user typed, for tables and messages.
        data_id: what the ledger is bound to. It is a name, never a hash of the content: an
            edited record must stay under the same budget.
        pixels: the images, uint8 [n, channels, size, size]; in memory, or in a file that is read
            some images at a time.
        labels: int64 [n], each in [0, classes); or [n, classes] of 0 and 1, where an image may
            have several of them.
        classes: how many classes there are; public.
        record_ids: one persistent id per record, or None where only the row position is known.
            Ids may repeat (a patient with several images): such records stay together.
        folder: where the data lie, links followed, and so where their ledger belongs; None for
            packaged sets.
        class_names: what the classes are called, as the holder stated; public.
        drawn_from: the run that synthetic images come from, whose training was charged for some
            records; None for all other images.
        ids_made: how `record_ids` were made, as `privacy.record_note` has it.

    Raises:
        InvalidDataError: types, shapes, labels or ids do not fit together.
    """

    name: str
    data_id: str
    pixels: Tensor | StoredPixels
    labels: Tensor
    classes: int
    record_ids: Sequence[str] | None = None
    folder: Path | None = None
    class_names: tuple[str, ...] | None = None
    drawn_from: DrawnFrom | None = None
    ids_made: str = OWN

    def __post_init__(self) -> None:
        """Refuse what no network could be trained on."""
        if not is_name(self.data_id):
            raise InvalidDataError(
                f"Expected the data id {self.data_id[:80]!r} to have 1 to {LONGEST_NAME} printable "
                "characters; correct the key 'data_id', or rename the file or folder."
            )
        shape = tuple(self.pixels.shape)
        if self.pixels.dtype != torch.uint8 or len(shape) != 4 or shape[0] == 0:
            raise InvalidDataError(
                f"Expected images of {self.name!r} as uint8 [n, channels, size, size] with n > 0, "
                f"got {self.pixels.dtype} {shape}."
            )
        if shape[1] not in (1, 3) or shape[2] != shape[3]:
            raise InvalidDataError(
                f"Expected square images of {self.name!r} with 1 or 3 channels, got {shape[1:]}."
            )
        each, several = (shape[0],), (shape[0], self.classes)
        if self.labels.dtype != torch.int64 or tuple(self.labels.shape) not in (each, several):
            raise InvalidDataError(
                f"Expected labels of {self.name!r} as int64 [{shape[0]}], one per image, or "
                f"{[*several]}, got {self.labels.dtype} {tuple(self.labels.shape)}."
            )
        classes = Classes(self.classes, self.class_names)
        below(self.labels, Classes(2) if self.multilabel else classes, f"labels of {self.name!r}")
        if self.record_ids is not None:
            _check_ids(self.name, self.record_ids, shape[0])

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def images(self) -> Tensor:
        """All images in memory, uint8 [n, channels, size, size].

        Raises:
            InvalidDataError: they are read from a file, and take more than `max_gib`.
        """
        return self.pixels if isinstance(self.pixels, Tensor) else self.pixels.whole()

    def blocks(self, size: int = 250) -> Iterator[Tensor]:
        """All images in order, some at a time: uint8 [b, channels, size, size]."""
        for first in range(0, len(self), size):
            yield self.pixels[first : first + size]

    @property
    def multilabel(self) -> bool:
        """Whether an image may have several classes, or none."""
        return self.labels.ndim == 2

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        return self.pixels.shape[1]

    @property
    def size(self) -> int:
        """Height and width in pixels."""
        return self.pixels.shape[2]

    @property
    def positional(self) -> bool:
        """Whether ids are mere row positions, so that add-remove guarantees do not hold."""
        return self.record_ids is None

    @property
    def ids(self) -> Sequence[str]:
        """The persistent ids, or `row-<i>` where there are none."""
        return RowNames(len(self)) if self.record_ids is None else self.record_ids

    @property
    def ids_by(self) -> str:
        """How ids are made, positions included."""
        return POSITION if self.record_ids is None else self.ids_made

    def subset(self, rows: Sequence[int] | Tensor) -> "ImageSet":
        """The records at `rows`, under the same name, data id and folder."""
        picked = torch.as_tensor(rows, dtype=torch.int64)
        pixels = self.pixels
        return ImageSet(
            self.name,
            self.data_id,
            pixels[picked] if isinstance(pixels, Tensor) else pixels.at(picked),
            self.labels[picked],
            self.classes,
            self._ids_at(picked),
            self.folder,
            self.class_names,
            self.drawn_from,
            self.ids_made,
        )

    def _ids_at(self, rows: Tensor) -> Sequence[str] | None:
        ids = self.record_ids
        if isinstance(ids, StoredIds):
            return ids.at(rows)
        return None if ids is None else tuple(ids[int(i)] for i in rows.tolist())

    @property
    def facts(self) -> Facts:
        """What is public about records of which there are no teachers, but not how many."""
        return Facts(
            classes=self.classes,
            channels=self.channels,
            size=self.size,
            shards=0,
            positional_ids=self.positional,
            multilabel=self.multilabel,
        )


@dataclass(frozen=True, eq=False)
class DataSplit:
    """Private records to train on, and the held-out ones that results are reported on.

    Attributes:
        notes: what was found and left out, for the holder's eyes: names and counts, no values.

    Raises:
        InvalidDataError: the two parts differ in class count or image shape.
    """

    train: ImageSet
    test: ImageSet
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Both parts must describe one task."""
        facts = [(part.classes, part.channels, part.size) for part in (self.train, self.test)]
        if self.train.multilabel != self.test.multilabel:
            raise InvalidDataError(
                f"Expected train and test of {self.train.name!r} to agree on whether an image may "
                "have several labels."
            )
        if facts[0] != facts[1]:
            fix = " --channels brings pictures to one kind." if facts[0][1] != facts[1][1] else ""
            raise InvalidDataError(
                f"Expected train and test of {self.train.name!r} to agree on "
                f"(classes, channels, size), got {facts[0]} and {facts[1]}.{fix}"
            )

    @property
    def words(self) -> tuple[str, ...]:
        """What was read and left out, a line each, for the holder alone: records are counted."""
        images, ids = len(self.train), len(set(self.train.ids))
        of_ids = "" if ids == images else f" of {counted(ids, 'id')}"
        parts = f"{counted(images, 'image')}{of_ids} to learn from, {len(self.test):,} held out"
        return parts, *self.notes


def _check_ids(name: str, ids: Sequence[str], n: int) -> None:
    if len(ids) != n:
        raise InvalidDataError(
            f"Expected one id per image of {name!r}, got {len(ids)} ids for {n} images."
        )
    try:
        if not all(record.encode() for record in ids):
            raise InvalidDataError(f"Expected every record id of {name!r} to be non-empty.")
    except UnicodeEncodeError:
        raise InvalidDataError(f"Expected every record id of {name!r} to be valid UTF-8.") from None


def split_by_id(whole: ImageSet) -> DataSplit:
    """Hold out one record in five by a fixed, public hash of its id.

    Raises:
        InvalidDataError: so few records that one of the two parts would be empty.
    """
    tested = held_out(whole.ids)
    if tested.all() or not tested.any():
        records = len(set(whole.ids))
        alone = f", since all {len(whole)} images share one id" if records == 1 < len(whole) else ""
        raise InvalidDataError(
            f"Expected more than {records} record{'s' * (records > 1)} in {whole.name!r} to hold "
            f"out one in five{alone}; pass a separate test part, or correct the ids."
        )
    rows = torch.arange(len(whole))
    mask = torch.from_numpy(tested)
    return DataSplit(whole.subset(rows[~mask]), whole.subset(rows[mask]))


def every_fifth_held_out(whole: ImageSet) -> DataSplit:
    """Rows 0, 5, 10, … to test on, the others to train on; for frozen, packaged files only."""
    rows = torch.arange(len(whole))
    return DataSplit(whole.subset(rows[rows % 5 != 0]), whole.subset(rows[rows % 5 == 0]))
