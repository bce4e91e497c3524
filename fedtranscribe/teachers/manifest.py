"""The manifest beside a folder of teachers: what they are, never how well they do.

Accuracy and shard sizes depend on private records, so they are not written down: whoever copies a
manifest into a card or an answer then leaks nothing by it.
"""

import json
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from fedtranscribe.config import Settings, TeacherSettings
from fedtranscribe.errors import ModelError, StorageError
from fedtranscribe.files import write_atomically

FILE = "manifest.json"


class Manifest(Settings):
    """Public description of an ensemble of teachers.

    `key` decides which record belongs to which shard; it is public randomness.
    """

    version: Literal[1] = 1
    architecture: str
    mode: Literal["full", "heads"]
    classes: int
    channels: int
    size: int
    shards: int
    data: str
    data_root: str | None
    data_id: str
    record_ids: Literal["persistent", "positional"]
    key: str
    seed: int
    weights: str | None
    settings: TeacherSettings
    complete: bool = False

    def save(self, folder: Path) -> None:
        """Write to `folder/manifest.json`, atomically."""
        write_atomically(folder / FILE, self.model_dump_json(indent=2).encode())


def load_manifest(folder: Path) -> Manifest:
    """Read `folder/manifest.json`.

    Raises:
        StorageError: there is none.
        ModelError: it is not a manifest of ours.
    """
    path = folder / FILE
    try:
        return Manifest.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError:
        raise StorageError(
            f"No {FILE} in {folder}; make teachers with `fedtranscribe teacher train`."
        ) from None
    except (ValueError, ValidationError):
        raise ModelError(
            f"{path} is not a manifest of fedtranscribe 1; train the teachers again."
        ) from None
