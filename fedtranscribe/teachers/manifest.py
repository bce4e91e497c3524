"""The manifest beside a folder of teachers: what they are, never how well they do.

Accuracy and shard sizes depend on private records, so they are not written down: whoever copies a
manifest into a card or an answer then leaks nothing by it.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator

from fedtranscribe.capabilities import MOST_SHARDS
from fedtranscribe.config import OwnData, Settings, TeacherSettings
from fedtranscribe.errors import ModelError, StorageError
from fedtranscribe.files import write_atomically
from fedtranscribe.models.backbones import Backbone
from fedtranscribe.models.headers import MOST_CHANNELS, MOST_CLASSES, MOST_SIDE
from fedtranscribe.reading import read_json

FILE = "manifest.json"
"""Every shard is a file, and is looked for whenever teachers are opened."""


class Manifest(Settings):
    """Public description of an ensemble of teachers.

    `key` decides which record belongs to which shard; it is public randomness.
    """

    version: Literal[1] = 1
    architecture: str
    mode: Literal["full", "heads"]
    classes: int = Field(ge=2, le=MOST_CLASSES)
    channels: int = Field(ge=1, le=MOST_CHANNELS)
    size: int = Field(ge=8, le=MOST_SIDE)
    shards: int = Field(ge=1, le=MOST_SHARDS)
    data: str
    data_root: str | None
    data_id: str
    record_ids: Literal["persistent", "positional"]
    key: str
    seed: int
    weights: str | None
    own_data: OwnData = OwnData()
    settings: TeacherSettings
    complete: bool = False

    @field_validator("architecture")
    @classmethod
    def _learns(cls, architecture: str) -> str:
        """Refuse what names weights of its own: only a student is linear in public features."""
        if Backbone.parse(architecture):
            raise ValueError("expected a network that teachers learn, not a student's features")
        return architecture

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
        return Manifest.model_validate(read_json(path))
    except OSError:
        raise StorageError(
            f"No {FILE} in {folder}; make teachers with `fedtranscribe teacher train`."
        ) from None
    except (ValueError, ValidationError):
        raise ModelError(
            f"{path} is not a manifest of fedtranscribe 1; train the teachers again."
        ) from None
