"""Whether the files of a release are those that it lists."""

import hashlib
from pathlib import Path

from fedtranscribe.errors import StorageError
from fedtranscribe.releases.statement import STATEMENT, PrivacyStatement


def sha256(path: Path) -> str:
    """Digest of a file.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise StorageError(f"Cannot read {path}: {error.strerror or error}.") from None


def first_difference(folder: Path, statement: PrivacyStatement) -> str | None:
    """The first listed file that is not the one that was released, in words; None if all are."""
    for name, digest in statement.files.items():
        if not (folder / name).is_file():
            return f"{name} is absent"
        if sha256(folder / name) != digest:
            return f"{name} was changed: its SHA-256 is not the one in {STATEMENT}"
    return None


def unlisted(folder: Path, statement: PrivacyStatement) -> list[str]:
    """What lies in the folder besides; links count, since what they show can change."""
    listed = {STATEMENT, *statement.files}
    return sorted(
        entry.name for entry in folder.iterdir() if entry.name not in listed or entry.is_symlink()
    )
