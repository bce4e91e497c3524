"""The ids of an image folder: paths, or the patients that they belong to.

Guarantee: an id follows from the image's path and from what the holder stated, never from another
image or from pixels. So adding or removing an image changes no other one's id, and moves no other
record to another shard.
"""

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from fedtranscribe.config import OwnData
from fedtranscribe.errors import ConfigError, DataNotFoundError, InvalidDataError

_TITLES = ["path", "id"]


def image_ids(paths: Sequence[str], own: OwnData) -> tuple[str, ...]:
    """The id of each image.

    Args:
        paths: relative to the data's folder, with `/`.
        own: `ids` names a CSV file with rows `path,id`; `id_pattern` is searched in each path, and
            its one group is the id. Without either the path is the id.

    Raises:
        DataNotFoundError: no such CSV file.
        InvalidDataError: it is no such file, or an image has no id.
        ConfigError: both are given.
    """
    if own.ids is not None and own.id_pattern is not None:
        raise ConfigError(
            f"Expected ids={str(own.ids)!r} or id_pattern={own.id_pattern!r}, not both; leave one "
            "out."
        )
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
