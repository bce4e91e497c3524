"""A table of image files: where each lies, its label, its id, and the part that it belongs to.

Collections of images are often published as one folder of files and a CSV file that says the rest.
The table is checked as a whole: all mistakes are reported at once, with their lines.
"""

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtranscribe.config import OwnData
from fedtranscribe.data.imageset import Classes, agreed_classes
from fedtranscribe.errors import ConfigError, DataNotFoundError, InvalidDataError

_FILE = ("path", "file", "filename", "file_name", "image", "image_path", "image_index")
_LABEL = ("label", "class", "target", "diagnosis", "finding_labels", "finding")
_ID = ("id", "patient", "patient_id", "patientid", "subject", "subject_id", "person")
_SPLIT = ("split", "set", "part", "partition", "subset")
_TRAIN, _TEST = ("train", "training"), ("test", "testing")
_UNREAD = ("val", "valid", "validate", "validation", "dev", "")
# Of several labels: what stands between two names, for none of them, and in a column for each.
_BETWEEN, _NO_LABEL = "|", ("", "none", "no finding")
_FLAGS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}
# Mistakes that one message lists.
_MOST_SHOWN = 20


@dataclass(frozen=True)
class TableRow:
    """One image of a table."""

    line: int  # in the file, from 1
    path: str  # inside the data's folder, with `/`
    label: int | tuple[int, ...]  # its class; 0 or 1 for each, where there may be several
    id: str  # whose record it belongs to
    test: bool | None  # whether it is held out; None where the table has no parts


@dataclass(frozen=True)
class ImageTable:
    """What a table says, once it has been checked."""

    rows: tuple[TableRow, ...]  # in the order of the file, without those of a validation part
    class_names: tuple[str, ...] | None  # by label; None where labels are numbers
    classes: int  # how many
    id_column: str | None  # that ids are from; None where paths are the ids
    unread: Mapping[str, int]  # how many rows parts have that are not used


def read_table(folder: Path, own: OwnData) -> ImageTable:
    """A table of the images in a folder.

    Args:
        folder: that paths begin in.
        own: `table` is the file, CSV or, with the suffix .tsv, separated by tabs; `image_column`,
            `label_column`, `id_column` and `split_column` name columns of unusual names; `classes`
            says what labels there are, by name or how many. Where an image may have several, a
            column of 0 and 1 for each class, called as it is or named by `label_column` in their
            order; or one column of class names with `|` between them.

    Raises:
        DataNotFoundError: there is no such file.
        ConfigError: columns or classes are missing.
        InvalidDataError: lines are wrong; all of them are named.
    """
    assert own.table is not None
    titles, lines = _lines(own.table)
    where = f"the table {str(own.table)!r}"

    def column(named: str | None, usual: Sequence[str], option: str) -> int | None:
        return _column(titles, named, usual, option, where)

    file = column(own.image_column, _FILE, "--image-column")
    classes = _classes(own, where)
    labels = _label_columns(titles, own, classes, where)
    part = column(own.split_column, _SPLIT, "--split-column")
    person = column(own.id_column, _ID, "--id-column")
    if file is None:
        raise _no_column("paths", "image", titles, where)
    label = _Labels(labels, classes, several=own.multilabel)
    reader = _Reader(folder, label, len(titles), file, person, part)
    rows = [row for number, line in lines if (row := reader.row(number, line)) is not None]
    reader.expect_apart(rows)
    if reader.mistakes:
        shown = "".join(
            f"\n  line {n}: {words}" for n, words in sorted(reader.mistakes)[:_MOST_SHOWN]
        )
        more = len(reader.mistakes) - _MOST_SHOWN
        rest = f"\n  and {more:,} more" if more > 0 else ""
        raise InvalidDataError(
            f"Expected {where} to fit the images in {str(folder)!r}, found "
            f"{len(reader.mistakes):,} mistakes; correct these lines, or remove them:{shown}{rest}"
        )
    if not rows:
        raise InvalidDataError(f"Expected images in {where}, found none.")
    column_of_ids = None if person is None else titles[person]
    return ImageTable(tuple(rows), classes.names, classes.count, column_of_ids, reader.unread)


def _lines(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The titles, and every other line that is not empty with its number."""
    if not path.is_file():
        raise DataNotFoundError(f"No file {str(path)!r} with a table of images; check --table.")
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, delimiter=delimiter, strict=True)
            lines = [(reader.line_num, line) for line in reader if any(map(str.strip, line))]
    except (OSError, ValueError, csv.Error) as error:
        raise InvalidDataError(
            f"Cannot read {str(path)!r} as CSV in UTF-8 ({type(error).__name__})."
        ) from error
    if not lines:
        raise InvalidDataError(f"Expected a line of titles in {str(path)!r}, which is empty.")
    titles = [title.strip() for title in lines[0][1]]
    if len(set(titles)) < len(titles):
        twice = next(title for title, count in Counter(titles).items() if count > 1)
        raise InvalidDataError(
            f"Expected different titles in {str(path)!r}, found {twice!r} twice."
        )
    return titles, lines[1:]


def _column(
    titles: list[str], named: str | None, usual: Sequence[str], option: str, where: str
) -> int | None:
    """Where a column stands: the one that is named, or the only one with a usual name."""
    if named is not None:
        if named not in titles:
            raise ConfigError(
                f"Expected {option} {named!r} among the columns of {where}: "
                f"{', '.join(map(repr, titles))}."
            )
        return titles.index(named)
    plain = [title.lower().replace(" ", "_") for title in titles]
    found = [i for i, title in enumerate(plain) if title in usual]
    if len(found) > 1:
        raise ConfigError(
            f"Expected one column for {option} in {where}, found "
            f"{' and '.join(repr(titles[i]) for i in found)}; name the one to use: {option} NAME."
        )
    return found[0] if found else None


def _no_column(what: str, option: str, titles: list[str], where: str) -> ConfigError:
    return ConfigError(
        f"Expected a column of {what} in {where}, found {', '.join(map(repr, titles))}; "
        f"name it: --{option}-column NAME."
    )


def _label_columns(titles: list[str], own: OwnData, classes: Classes, where: str) -> list[int]:
    """Where labels stand: in one column, or in one for each class."""
    named = own.label_column
    if own.multilabel:
        several = named.split(",") if named else [*(classes.names or ())]
        found = [title.strip() for title in several if title.strip() in titles]
        if len(found) == len(several) == classes.count:
            return [titles.index(title) for title in found]
        if found and (len(several) > 1 or named is None):
            missing = [title for title in several if title.strip() not in titles]
            what = f"no {missing[0]!r}" if missing else f"{len(found)} for {classes.count} classes"
            raise ConfigError(
                f"Expected a column for each class in {where}, found {what}; name them in the "
                "order of --classes: --label-column A,B,C."
            )
    found = _column(titles, named, _LABEL, "--label-column", where)
    if found is None:
        raise _no_column("labels", "label", titles, where)
    return [found]


def _classes(own: OwnData, where: str) -> Classes:
    """What the settings state; labels themselves state nothing, for they are private."""
    stated = agreed_classes(None, own, where)
    if stated is not None:
        return stated
    raise ConfigError(
        f"Expected classes for {where}: what labels there are is stated, not counted. Pass their "
        "names, --classes benign,malignant, or for numbers from 0 how many."
    )


class _Labels:
    """Reads the label, or labels, of a line; None where they are no classes."""

    def __init__(self, columns: list[int], classes: Classes, *, several: bool) -> None:
        names = classes.names or tuple(map(str, range(classes.count)))
        self._numbers = {name: i for i, name in enumerate(names)}
        self._columns, self._several = columns, several

    def read(self, values: list[str]) -> int | tuple[int, ...] | None:
        cells = [values[column] for column in self._columns]
        if not self._several:
            return self._numbers.get(cells[0])
        if len(cells) > 1:
            flags = tuple(_FLAGS.get(cell, -1) for cell in cells)
            return None if -1 in flags else flags
        named = [] if cells[0].lower() in _NO_LABEL else cells[0].split(_BETWEEN)
        found = {self._numbers.get(name.strip()) for name in named}
        return None if None in found else tuple(int(i in found) for i in range(len(self._numbers)))


class _Reader:
    """Turns lines into rows, and keeps what is wrong with the others."""

    def __init__(
        self,
        folder: Path,
        label: _Labels,
        columns: int,
        file: int,
        person: int | None,
        part: int | None,
    ) -> None:
        self.mistakes: list[tuple[int, str]] = []
        self.unread: Counter[str] = Counter()
        self._folder, self._columns = folder, columns
        self._file, self._label, self._person, self._part = file, label, person, part
        self._seen: dict[str, int] = {}

    def row(self, number: int, line: list[str]) -> TableRow | None:
        """The row of a line; None where it is wrong or not used."""
        if len(line) != self._columns:
            return self._wrong(number, f"{len(line)} columns instead of {self._columns}")
        values = [value.strip() for value in line]
        test = None
        if self._part is not None:
            part = values[self._part].lower()
            if part in _UNREAD:
                self.unread[part or "without a part"] += 1
                return None
            if part not in (*_TRAIN, *_TEST):
                return self._wrong(number, f"part {values[self._part]!r}, not train, test or val")
            test = part in _TEST
        path, label = values[self._file], self._label.read(values)
        checks: tuple[tuple[bool, Callable[[], str]], ...] = (
            (not path, lambda: "no path"),
            (not _is_inside(path), lambda: f"path {path!r} leads out of the folder"),
            (path in self._seen, lambda: f"path {path!r} is in line {self._seen[path]}, too"),
            (label is None, lambda: "a label that is none of the classes"),
            (self._person is not None and not values[self._person], lambda: "no id"),
            (not (self._folder / path).is_file(), lambda: f"no file {path!r}"),
        )
        for wrong, words in checks:
            if wrong:
                return self._wrong(number, words())
        assert label is not None
        self._seen[path] = number
        name = path if self._person is None else values[self._person]
        return TableRow(number, path, label, name, test)

    def expect_apart(self, rows: Sequence[TableRow]) -> None:
        """Nobody may be in both parts: what is learned of him would be tested on him."""
        parts: dict[str, TableRow] = {}
        for row in rows:
            first = parts.setdefault(row.id, row)
            if first.test != row.test:
                self._wrong(row.line, f"its id is in the other part in line {first.line}")

    def _wrong(self, number: int, words: str) -> None:
        self.mistakes.append((number, words))


def _is_inside(path: str) -> bool:
    parts = Path(path).parts
    return not Path(path).is_absolute() and ".." not in parts
