"""What counts as one record, noted beside the ledger, so that it does not change unnoticed.

ε hides the images of one id. If ids were made otherwise from some start on, say one for each image
where all images of a patient had one, one ledger would add up answers about different records, and
a patient would be behind many of them. The note is a file `<ledger>.record`. It guards against a
mistake of the holder's own, not against somebody who may write to the ledger's folder.
"""

from pathlib import Path

from fedtranscribe.config import OwnData
from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.files import write_atomically

POSITION, OWN, LISTED = "position", "own", "ids"
_PATTERN, _COLUMN = "id_pattern ", "id_column "
_WORDS = {
    POSITION: "no ids: each image counts as a record",
    OWN: "ids of the archive, or paths of a folder's images",
    LISTED: "ids from the file that ids names",
}


def made_by(own: OwnData, positional: bool) -> str:
    """How ids are made, as the note has it.

    Args:
        own: how the data are read.
        positional: whether records are known by their position only.
    """
    if positional:
        return POSITION
    if own.ids is not None:
        return LISTED
    if own.id_pattern is not None:
        return f"{_PATTERN}{own.id_pattern}"
    return OWN if own.id_column is None else f"{_COLUMN}{own.id_column}"


def words(ids: str) -> str:
    """The same for the holder's screen."""
    name, _, value = ids.partition(" ")
    return _WORDS.get(ids, f"ids by {name} = {value!r}")


def note_path(ledger: Path) -> Path:
    """Where the note of a ledger lies."""
    return ledger.with_name(f"{ledger.name}.record")


def expect_noted(ledger: Path, ids: str) -> None:
    """Refuse ids that are made otherwise than when the ledger was first served.

    Args:
        ledger: the SQLite file.
        ids: of `made_by`.

    Raises:
        ConfigError: they are; names both ways and the fix.
        StorageError: the note cannot be read.
    """
    path = note_path(ledger)
    try:
        noted = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return
    except (OSError, UnicodeError):
        raise StorageError(f"Cannot read {path}; restore it from a copy.") from None
    if noted != ids:
        raise ConfigError(
            f"Expected records as the ledger {ledger} has booked them, with {words(noted)}; now "
            f"they come with {words(ids)}, and what was booked hides the former. Set ids, "
            "id_pattern or id_column in [holder] as they were; with teachers they came from the "
            "teachers' data. If every record of now lies within one of before, what was booked "
            f"holds for it, too: then remove {path}."
        )


def note(ledger: Path, ids: str) -> None:
    """Write the note, if there is none.

    Raises:
        StorageError: it cannot be written.
    """
    if not note_path(ledger).exists():
        write_atomically(note_path(ledger), f"{ids}\n".encode())
