"""Folders of image files, one subfolder per class, and the ids of their images."""

import csv
import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedtranscribe.config import UNSTATED, OwnData
from fedtranscribe.data.dicom import DICOM_SUFFIXES, dicom_field
from fedtranscribe.data.imageset import (
    Classes,
    DataSplit,
    ImageSet,
    agreed_classes,
    expect_single_labels,
    split_by_id,
)
from fedtranscribe.data.pictures import IMAGE_SUFFIXES, as_grey, read_picture, stacked
from fedtranscribe.data.tables import read_table
from fedtranscribe.errors import ConfigError, DataNotFoundError, InvalidDataError
from fedtranscribe.privacy.budget import PATHS, stated
from fedtranscribe.privacy.ledger_place import LEDGER, MARKER

_TITLES = ["path", "id"]


def image_ids(paths: Sequence[str], own: OwnData) -> tuple[str, ...]:
    """The id of each image.

    Args:
        paths: relative to the data's folder, with `/`.
        own: `ids` names a CSV file with rows `path,id`; `id_pattern` is searched in each path, and
            its one group is the id. Without either the path is the id.
    """
    if own.ids is not None and own.id_pattern is not None:
        raise _two_ids(own)
    if own.ids is not None:
        stated = _read_ids(own.ids)
        found = [stated.get(path, "") for path in paths]
        source, fix = f"in {str(own.ids)!r}", f"add a row {','.join(_TITLES)}"
    elif own.id_pattern is not None:
        matches = [re.search(own.id_pattern, path) for path in paths]
        found = [(match[1] or "") if match else "" for match in matches]
        source, fix = f"by id_pattern={own.id_pattern!r}", "correct the pattern"
    else:
        return tuple(paths)
    missing = [path for path, name in zip(paths, found, strict=True) if not name]
    if missing:
        raise InvalidDataError(
            f"Expected an id {source} for each of {len(paths)} images, {len(missing)} have none, "
            f"such as {missing[0]!r}; {fix}."
        )
    return tuple(found)


def _two_ids(own: OwnData) -> ConfigError:
    return ConfigError(
        f"Expected ids={str(own.ids)!r} or id_pattern={own.id_pattern!r}, not both; leave one out."
    )


def _read_ids(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise DataNotFoundError(f"No file {str(path)!r} with ids; check --ids.")
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = [row for row in csv.reader(stream, strict=True) if row]
    except (OSError, ValueError, csv.Error) as error:
        raise InvalidDataError(
            f"Cannot read {str(path)!r} as CSV in UTF-8 ({type(error).__name__})."
        ) from error
    if rows and rows[0] == _TITLES:
        rows = rows[1:]
    stated: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        if len(row) != 2 or not row[1].strip():
            raise InvalidDataError(
                f"Expected row {number} of {str(path)!r} as {','.join(_TITLES)}: the path of an "
                "image inside the data's folder, and its id."
            )
        name = row[1].strip()
        if stated.setdefault(row[0], name) != name:
            raise InvalidDataError(f"Expected one id for {row[0]!r} in {str(path)!r}, found two.")
    return stated


_SUFFIXES = ", ".join(sorted(IMAGE_SUFFIXES))
_PARTS = {
    "train", "training", "test", "testing", "val", "valid", "validation", "dev", "holdout"
}  # fmt: skip
# What the program's own folders hold: a run, packed arrays, a release.
_OWN_FILES = ("config.toml", "images.npy", "privacy.json")
_HIDDEN = "hidden"
# Of a folder's files, before a run stops.
_MOST_LOST = 0.01


def load_folder(path: Path, own: OwnData = UNSTATED) -> DataSplit:
    """`<path>/<class>/…/<image>`, or the same below `<path>/train` and `<path>/test`.

    Images may lie in deeper folders, such as one per patient; links to other folders are followed.
    Files that are no images are counted in the split's notes, by suffix.

    Classes are the subfolders in alphabetical order, or those that `own.classes` names; a class
    without images is fine. A record's id is its path inside the folder, unless `own` says which
    images belong to one patient. Without a test part one record in five is held out by a fixed hash
    of its id.

    Or `own.table` says which files there are, with their labels, ids and parts (`tables`).

    Args:
        path: the folder.
        own: `image_size` brings every image to so many pixels a side (scaled, then cut in the
            middle); without it all images must already be square and of one size.
    """
    train, test, notes = find_pictures(path, own)
    if test is None:
        return replace(split_by_id(_read(train, own)), notes=notes)
    return DataSplit(*of_one_kind(_read(train, own), _read(test, own)), notes)


@dataclass(frozen=True)
class Pictures:
    """The files of an image folder, or of one part of it."""

    folder: Path  # the whole
    files: tuple[Path, ...]  # in the order of their records
    labels: Tensor  # int64 [n], or [n, classes]; see `ImageSet`
    ids: tuple[str, ...]  # of the records
    class_names: tuple[str, ...]  # by label
    ids_made: str | None = None  # how ids were made, where the settings alone do not say it

    @property
    def data_id(self) -> str:
        """What the ledger is bound to."""
        return f"folder:{self.folder.resolve().name}"


def find_pictures(path: Path, own: OwnData) -> tuple[Pictures, Pictures | None, tuple[str, ...]]:
    """The files of a folder, or of its training and its test part, and what is left out, in words.

    No picture is read. Raises as `load_folder`.
    """
    if not path.is_dir():
        raise DataNotFoundError(f"No folder {str(path)!r}; check the path.")
    if own.table is not None:
        return _in_table(path, own)
    expect_single_labels(own.multilabel, "images in class subfolders (a --table may give several)")
    if not ((path / "train").is_dir() and (path / "test").is_dir()):
        train, test = _find(path, path, own, _stated(path, own)), None
    else:
        classes = _stated(path / "train", own)
        train, test = (_find(path / part, path, own, classes) for part in ("train", "test"))
    used = (*train.files, *(test.files if test else ()))
    notes = _left_out(path, set(used), own)
    _expect_once(used)
    return train, test, notes


def _in_table(path: Path, own: OwnData) -> tuple[Pictures, Pictures | None, tuple[str, ...]]:
    """As `find_pictures`, where a table says which files there are."""
    table = read_table(path, own)
    odd = next((r for r in table.rows if Path(r.path).suffix.lower() not in IMAGE_SUFFIXES), None)
    if odd is not None:
        raise InvalidDataError(
            f"Expected images ({_SUFFIXES}) in {str(own.table)!r}, found {odd.path!r} in line "
            f"{odd.line}; convert it, or remove the line."
        )
    if table.id_column is not None and (own.ids is not None or own.id_pattern is not None):
        raise ConfigError(
            f"Expected ids from the column {table.id_column!r} of {str(own.table)!r}, or from "
            "--ids or --id-pattern, not from both; leave one out."
        )

    def part(test: bool) -> Pictures:
        rows = [row for row in table.rows if bool(row.test) is test]
        files = [path / row.path for row in rows]
        ids = tuple(row.id for row in rows)
        if table.id_column is None:
            ids = _ids_of(files, path, own)
        labels = torch.tensor([row.label for row in rows], dtype=torch.int64)
        names = table.class_names or tuple(map(str, range(table.classes)))
        made = None if table.id_column is None else f"id_column {table.id_column}"
        return Pictures(path, tuple(files), labels, ids, names, made)

    tested = {row.test for row in table.rows}
    if tested in ({True}, {False}):
        kept = "train" if False in tested else "test"
        raise InvalidDataError(
            f"Expected images of both parts in {str(own.table)!r}, found {kept} alone; correct the "
            "column, or leave it out of the table: then one record in five is held out."
        )
    train, test = part(False), part(True) if True in tested else None
    used = [path / row.path for row in table.rows]
    _expect_once(used)
    unlisted = sum(_kind(file) in IMAGE_SUFFIXES for file in {*_files(path)} - {*used})
    unread = [f"{count:,} rows {_of_part(name)}" for name, count in table.unread.items()]
    unread += [f"{unlisted:,} images that the table does not name"] if unlisted else []
    notes = (f"left out of {str(path)!r}: {', '.join(unread)}",) if unread else ()
    return train, test, notes


def _of_part(name: str) -> str:
    return name if name == "without a part" else f"of the part {name!r}"


def _expect_once(files: Iterable[Path]) -> None:
    """Refuse a picture that two links, or a link and its target, make two records of."""
    seen: dict[tuple[int, int], Path] = {}
    for file in filter(Path.exists, files):
        facts = file.stat()
        first = seen.setdefault((facts.st_dev, facts.st_ino), file)
        if first is not file:
            raise InvalidDataError(
                f"Expected no image in two places, but {str(file)!r} and {str(first)!r} are links "
                "to one file; remove one of them."
            )


def _left_out(path: Path, used: set[Path], own: OwnData) -> tuple[str, ...]:
    """What a folder holds besides the images that are used, in words; counts are for the holder."""
    others = [file for file in _files(path) if file not in used and not _belongs(file, own)]
    if not others:
        return ()
    kinds = Counter(map(_kind, others))
    counted = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    lost = len(others) - kinds[_HIDDEN]
    if lost > _MOST_LOST * (lost + len(used)) and not own.allow_skipped:
        example = next(file for file in others if _kind(file) != _HIDDEN)
        raise InvalidDataError(
            f"Expected images ({_SUFFIXES}) in class subfolders of {str(path)!r}, found {lost:,} "
            f"of {lost + len(used):,} files that are none ({counted}; such as "
            f"{str(example.relative_to(path))!r}). Convert or remove them, or pass --allow-skipped "
            "to leave them out."
        )
    return (f"left out of {str(path)!r}: {counted}",)


def _files(folder: Path) -> Iterator[Path]:
    """All files below a folder, also behind links to folders; a hidden folder counts as a file."""
    real = folder.resolve()
    read, above = {real}, {*real.parents}
    waiting = [folder]
    while waiting:
        entry = waiting.pop()
        if not entry.is_dir() or (entry != folder and entry.name.startswith(".")):
            yield entry
            continue
        if entry != folder and entry.is_symlink():
            real = entry.resolve()
            if real in above or not read.isdisjoint((real, *real.parents)):
                raise InvalidDataError(
                    f"Expected no image in two places, but {str(entry)!r} is a link to "
                    f"{str(real)!r}, which is read already or contains what is; remove the link."
                )
            read.add(real)
            above.update(real.parents)
        if entry != folder and any((entry / name).is_file() for name in _OWN_FILES):
            raise InvalidDataError(
                f"Expected nothing but images in {str(folder)!r}, found {str(entry)!r}, which "
                "looks like the output of fedtranscribe; move it out of the data."
            )
        waiting += sorted(entry.iterdir(), reverse=True)


def _kind(file: Path) -> str:
    if file.name.startswith(".") or file.name in ("Thumbs.db", "desktop.ini"):
        return _HIDDEN
    return file.suffix.lower() or "without a suffix"


def _belongs(file: Path, own: OwnData) -> bool:
    """Whether a file is no data: the ledger, its marker, or the table of ids."""
    return (
        LEDGER in file.name
        or MARKER in file.name
        or (own.ids is not None and own.ids.exists() and file.exists() and file.samefile(own.ids))
    )


def _stated(path: Path, own: OwnData) -> tuple[str, ...]:
    """The class names: those of the settings, or the subfolders."""
    if isinstance(own.classes, tuple):
        return own.classes
    names = _subfolders(path)
    if _are_parts(path, names):
        raise InvalidDataError(
            f"Expected class subfolders in {str(path)!r}, or train and test with class subfolders "
            f"each, found {', '.join(map(repr, names))}; name the two parts train and test, pass "
            "the folder of one part, or state the classes by --classes."
        )
    agreed_classes(Classes(len(names), names), own, str(path))
    return names


def _are_parts(path: Path, names: tuple[str, ...]) -> bool:
    """Whether subfolders are parts of the data rather than classes, or some of them are."""
    called = [not _PARTS.isdisjoint(re.split(r"[^a-z]+", name.lower())) for name in names]
    return all(called) or any(map(operator.and_, called, (_is_part(path / n) for n in names)))


def _is_part(folder: Path) -> bool:
    """Whether a folder holds folders and no images itself."""
    inside = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    images = any(_kind(entry) in IMAGE_SUFFIXES for entry in inside)
    return not images and any(entry.is_dir() for entry in inside)


def _subfolders(path: Path) -> tuple[str, ...]:
    names = sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not names:
        raise DataNotFoundError(
            f"No class subfolders in {str(path)!r}; expected {str(path / '<class>' / '<image>')!r}."
        )
    return tuple(names)


def _find(path: Path, whole: Path, own: OwnData, names: tuple[str, ...]) -> Pictures:
    strangers = set(_subfolders(path)) - set(names)
    if strangers:
        raise InvalidDataError(
            f"Expected the classes {', '.join(map(repr, names))} in {str(path)!r}, found also "
            f"{', '.join(map(repr, sorted(strangers)))}; rename or remove it, or state all classes "
            "by --classes."
        )
    files = [
        (label, file)
        for label, name in enumerate(names)
        if (path / name).is_dir()
        for file in _files(path / name)
        if _kind(file) in IMAGE_SUFFIXES
    ]
    if not files:
        raise DataNotFoundError(f"No images ({_SUFFIXES}) in the subfolders of {str(path)!r}.")
    ids = _ids_of([file for _, file in files], whole, own)
    labels = torch.tensor([label for label, _ in files], dtype=torch.int64)
    return Pictures(whole, tuple(file for _, file in files), labels, ids, names)


def _ids_of(files: Sequence[Path], whole: Path, own: OwnData) -> tuple[str, ...]:
    """By path, table or pattern; or from the headers of DICOM files, where `ids` names a field."""
    paths = [_relative(file, whole) for file in files]
    field = own.id_field
    if field is None:
        return image_ids(paths, own)
    if own.id_pattern is not None:
        raise _two_ids(own)
    others = [path for path in paths if Path(path).suffix.lower() not in DICOM_SUFFIXES]
    found = tuple(dicom_field(field, file) for file in files) if not others else ()
    if others:
        raise InvalidDataError(
            f"Expected DICOM files alone with ids={field!r}, found {others[0]!r}; convert it, or "
            "give a CSV file with path and id of each image."
        )
    missing = [path for path, name in zip(paths, found, strict=True) if not name]
    if missing:
        raise InvalidDataError(
            f"Expected a {field} in each of {len(paths)} files, {len(missing)} have none, such as "
            f"{missing[0]!r}; add it, or name another field."
        )
    return found


def _read(found: Pictures, own: OwnData) -> ImageSet:
    return ImageSet(
        name=found.folder.name,
        data_id=found.data_id,
        pixels=stacked(
            ((repr(str(file)), read_picture(file, own)) for file in found.files),
            repr(str(found.folder)),
            own,
        ),
        labels=found.labels,
        classes=len(found.class_names),
        record_ids=found.ids,
        folder=found.folder,
        class_names=found.class_names,
        ids_made=found.ids_made or stated(own) or PATHS,
    )


def _relative(file: Path, whole: Path) -> str:
    name = file.relative_to(whole).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidDataError(
            f"Expected the name of {str(file)!r} in UTF-8; rename the file."
        ) from None
    return name


def of_one_kind(train: ImageSet, test: ImageSet) -> tuple[ImageSet, ImageSet]:
    """Two parts of pictures: grey ones make one of colour grey if all of its channels are equal."""
    if train.channels < test.channels:
        return train, _as_grey(test, train.ids[0])
    if train.channels > test.channels:
        return _as_grey(train, test.ids[0]), test
    return train, test


def _as_grey(part: ImageSet, other: str) -> ImageSet:
    images = part.images.permute(0, 2, 3, 1).numpy()
    grey = [
        as_grey(image, repr(name), repr(other))
        for name, image in zip(part.ids, images, strict=True)
    ]
    return replace(part, pixels=torch.from_numpy(np.stack(grey)[:, None]))
