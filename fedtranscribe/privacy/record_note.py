"""What counts as one record, noted beside a ledger, so that it does not change unnoticed.

ε hides the images of one id. If ids were made otherwise from some run on, say one for each image
where all images of a patient had one, one ledger would add up answers about different records, and
a patient would be behind many of them. The note is a JSON file `<ledger>.record`, a list of all
known ways to make the same ids. It guards against a mistake of the holder's own, not against
somebody who may write to the ledger's folder, and does not see ids that are edited within the data.
"""

import json
from pathlib import Path

from fedtranscribe.config import OwnData
from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.files import write_atomically
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.reading import read_json

POSITION, OWN, PATHS, LISTED = "position", "own", "paths", "ids"
_WORDS = {
    POSITION: "no ids: each image counts as a record",
    OWN: "ids that the data have",
    PATHS: "each image's path as its id",
    LISTED: "ids from the file that ids names",
}


def made_by(own: OwnData, *, positional: bool, paths: bool) -> str:
    """How ids are made, as the note has it.

    Args:
        own: how the data are read.
        positional: whether records are known by their position only.
        paths: whether ids look like paths of pictures.
    """
    if positional:
        return POSITION
    # What is stated comes first: a pattern may find texts that look like paths.
    if own.ids is not None:
        return LISTED
    if own.id_pattern is not None:
        return f"id_pattern {own.id_pattern}"
    if own.id_column is not None:
        return f"id_column {own.id_column}"
    return PATHS if paths else OWN


def words(ids: str) -> str:
    """The same for the holder's screen."""
    name, _, value = ids.partition(" ")
    return _WORDS.get(ids, f"ids by {name} = {value!r}")


def note_path(ledger: Path) -> Path:
    """Where the note of a ledger lies."""
    return ledger.with_name(f"{ledger.name}.record")


def expect_noted(ledger: Ledger, path: Path, ids: str | None) -> None:
    """Refuse ids that are made otherwise than those of what is booked.

    Args:
        ledger: of the data.
        path: its SQLite file.
        ids: of `made_by`; None where that is not known, and nothing is compared.

    Raises:
        ConfigError: they are; names both ways and the fix.
        StorageError: the note cannot be read.
    """
    noted = _read(note_path(path))
    if ids is None or not noted or ids in noted or not ledger.runs():
        return
    raise ConfigError(
        f"Expected records as the ledger {path} has booked them, with {words(noted[0])}; now they "
        f"come with {words(ids)}, and what was booked hides the former. Set ids, id_pattern or "
        "id_column as they were (in a policy file under [holder]; teachers bring those of their "
        "data). If every record of now lies within one of before, what was booked holds for it, "
        f"too: then remove {note_path(path)}."
    )


def settle(ledger: Ledger, path: Path, ids: str | None) -> None:
    """As `expect_noted`, and write the note, if there is none that counts.

    Raises:
        ConfigError, StorageError: as `expect_noted`; or the note cannot be written.
    """
    expect_noted(ledger, path, ids)
    if ids is not None and ids not in _read(note_path(path)):
        _write(note_path(path), [ids])


def add_packed(path: Path, ids: str) -> None:
    """Note that a copy of the data has the same ids in itself.

    Args:
        path: the ledger's SQLite file.
        ids: of `made_by`, for the data that were copied; where they are not noted, nothing is. Ids
            that are paths look like paths in the copy, too.

    Raises:
        StorageError: the note cannot be read or written.
    """
    noted = _read(note_path(path))
    if ids in noted and ids != PATHS and OWN not in noted:
        _write(note_path(path), [*noted, OWN])


def _read(path: Path) -> list[str]:
    try:
        noted = read_json(path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError):
        noted = None
    if not isinstance(noted, list) or not all(isinstance(one, str) for one in noted):
        raise StorageError(f"Cannot read {path}; restore it from a copy.")
    return noted


def _write(path: Path, noted: list[str]) -> None:
    write_atomically(path, json.dumps(noted).encode())
