"""Whether the files of a release are those that it lists."""

import hashlib
from pathlib import Path

from fedtranscribe.errors import StorageError
from fedtranscribe.releases.statement import CARD, STATEMENT, PrivacyStatement

HUB_CARD = "README.md"
"""The card's second name: model hubs show a file that is called so."""

HUB_FILES = frozenset({".gitattributes"})
"""What the Hugging Face hub puts into every repository; nothing here ever reads it."""

# What a download leaves beside the files.
_OF_DOWNLOADS = HUB_FILES | {".cache", ".git"}


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
    """What lies in the folder besides; links count, since what they show can change.

    A release from a hub may have its card a second time, as `README.md`, and what the hub and its
    client keep there for themselves.
    """
    listed = {STATEMENT, *statement.files, *_OF_DOWNLOADS}
    if _is_card(folder / HUB_CARD, statement):
        listed.add(HUB_CARD)
    return sorted(
        entry.name for entry in folder.iterdir() if entry.name not in listed or entry.is_symlink()
    )


def _is_card(path: Path, statement: PrivacyStatement) -> bool:
    return path.is_file() and sha256(path) == statement.files.get(CARD)
