"""What counts as one record, noted beside a ledger, so that it does not change unnoticed.

ε hides the images of one id. If ids were made otherwise from some run on, say one for each image
where all images of a patient had one, one ledger would add up answers about different records, and
a patient would be behind many of them. Data say how their ids were made (`ImageSet.ids_by`), and so
do teachers that learned from them. The first that opens a ledger writes it into a JSON file
`<ledger>.record`, a list; whatever is not in it is refused, before anything is booked.

It guards against a mistake of the holder's own, not against somebody who may write to the ledger's
folder. It does not see other ids within the same data, in the file that `ids` names, passed by
Python code, or behind networks that were imported without data.
"""

import json
from pathlib import Path

from fedtranscribe.config import OwnData
from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.files import write_atomically
from fedtranscribe.reading import read_json

POSITION, OWN, PATHS, LISTED = "position", "own", "paths", "ids"
UNSTATED = "unstated"
"""Of teachers of an earlier version, which kept only what was stated: ids of the data, or paths."""

TRAIN_IDS = "key train_ids"
"""Of an archive in MedMNIST's layout: earlier versions noted its row numbers as `OWN` instead."""

_WORDS = {
    POSITION: "no ids: each image counts as a record",
    OWN: "ids that the data have",
    PATHS: "each image's path as its id",
    LISTED: "ids from the file that ids names",
    TRAIN_IDS: "ids under the key 'train_ids'",
    UNSTATED: "ids that the data have, or each image's path as its id",
}
_ALIKE = {UNSTATED: {OWN, PATHS}, OWN: {UNSTATED}, PATHS: {UNSTATED}}


def stated(own: OwnData) -> str | None:
    """How ids are made where the holder states it; None where the data decide."""
    if own.ids is not None:
        return LISTED
    if own.id_pattern is not None:
        return f"id_pattern {own.id_pattern}"
    return None if own.id_column is None else f"id_column {own.id_column}"


def alike(ids: str, others: str) -> bool:
    """Whether two ways to make ids are one, as far as is known."""
    return ids == others or others in _ALIKE.get(ids, ())


def words(ids: str) -> str:
    """A way to make ids, for the holder's screen."""
    name, _, value = ids.partition(" ")
    return _WORDS.get(ids, f"ids by {name} = {value!r}")


def note_path(ledger: Path) -> Path:
    """Where the note of a ledger lies."""
    return ledger.with_name(f"{ledger.name}.record")


def expect_noted(ledger: Path, ids: str) -> None:
    """Refuse ids that are made otherwise than the note says; without a note there is none.

    Args:
        ledger: the SQLite file.
        ids: how they are made, such as `ImageSet.ids_by`.

    Raises:
        ConfigError: they are; names both ways and the fix.
        StorageError: the note cannot be read.
    """
    noted = _read(note_path(ledger))
    if noted is None or any(alike(one, ids) for one in noted):
        return
    note = note_path(ledger)
    by_row = OWN in noted and ids in (POSITION, TRAIN_IDS)
    rows = " (in MedMNIST's layout, earlier versions noted row numbers so)" if by_row else ""
    raise ConfigError(
        f"Expected records as for the ledger {ledger} before, with {words(noted[0])}{rows}; "
        f"now they come with {words(ids)}, and what was booked hides the former. State ids as "
        "before, and take teachers that learned with them. If ids are the same, or every record of "
        f"now lies within one of before, add {json.dumps(ids)} to the list in {note}; from then on "
        "ε and limit of the ledger hold for the smaller records only. If nothing was booked, and "
        "no run is under way, remove that file."
    )


def settle(ledger: Path, ids: str) -> None:
    """As `expect_noted`, and write the note, if there is none or it says less.

    Two processes must not settle at once: `Ledger.note_ids` sees to that.

    Raises:
        ConfigError, StorageError: as `expect_noted`; or the note cannot be written.
    """
    expect_noted(ledger, ids)
    if _read(note_path(ledger)) in (None, [UNSTATED]):
        write_atomically(note_path(ledger), json.dumps([ids]).encode())


def _read(path: Path) -> list[str] | None:
    try:
        noted = read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        noted = None
    if not isinstance(noted, list) or not noted or not all(isinstance(one, str) for one in noted):
        raise StorageError(
            f"Cannot read {path}, which says how ids are made; restore it from a copy."
        )
    return noted
