"""What a family of teachers must offer, its manifest, and what is public about a holder."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, Protocol

import torch
from pydantic import Field, ValidationError, field_validator
from torch import Tensor

from fedtranscribe.config import LONGEST_NAME, OwnData, Settings, TeacherSettings
from fedtranscribe.config.catalogue import MANIFEST, no_teachers
from fedtranscribe.config.facts import MOST_CHANNELS, MOST_SHARDS, MOST_SIDE, Facts
from fedtranscribe.config.run import MOST_CLASSES
from fedtranscribe.errors import ModelError, ModelMismatchError
from fedtranscribe.files import read_json, write_atomically
from fedtranscribe.models.backbones import Backbone
from fedtranscribe.privacy.budget import POSITION, UNSTATED, alike, stated, words


class Teachers(Protocol):
    """Classifiers trained on disjoint shards of a holder's records.

    Guarantee:
        All bounds of answers rest on this: every record is in one shard, and a teacher is a
        function of the records of its own shard, public values and randomness of its own.
    """

    @property
    def facts(self) -> Facts:
        """What may be stated about them: shape of the images, classes, count of shards."""
        ...

    def logits(self, images: Tensor) -> Iterator[Tensor]:
        """Logits of every shard in turn, the empty ones included.

        Args:
            images: uint8 [n, ch, s, s].

        Returns:
            float32 [1, n, classes] each, on the device of the mechanism; NaN for an empty shard.
            Whether teachers give logits or log-probabilities makes no difference.
        """
        ...


def ensemble_accuracy(
    ensembles: Sequence[Teachers], images: Tensor, labels: Tensor
) -> dict[str, float]:
    """Mean accuracy of single teachers, and that of their summed votes, on declared-public images.

    Args:
        ensembles: of one holder or of several; their teachers count alike.
        images: uint8 [n, ch, s, s].
        labels: int64 [n].

    Returns:
        {"single_teacher": …, "ensemble": …}; empty shards do not count.
    """
    votes, single, there = torch.zeros(()), 0.0, 0
    for logits in chain.from_iterable(teachers.logits(images) for teachers in ensembles):
        for teacher in logits:
            if not bool(torch.isfinite(teacher).all()):
                continue
            votes = votes + teacher.softmax(-1)
            single += float((teacher.argmax(-1) == labels).float().mean())
            there += 1
    ensemble = float((votes.argmax(-1) == labels).float().mean()) if there else 0.0
    return {"single_teacher": single / max(there, 1), "ensemble": ensemble}


class Imported(Settings):
    """What was declared of networks that were trained elsewhere; see `teachers.importing`.

    Attributes:
        declared_by: who declares that they learned from disjoint shards; None for one network, of
            which nothing has to be declared.
        assigned_by: what decided which network a record trained: its id alone, or its row number.
        ids_compared: whether all of them came with lists of ids, and no id was in two of them.
    """

    declared_by: str | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    assigned_by: Literal["id", "index"] = "id"
    ids_compared: bool = False


class Manifest(Settings):
    """Public description of an ensemble of teachers.

    `key` decides which record belongs to which shard; it is public randomness, and empty for
    imported networks, whose shards were made elsewhere. `ids_made` is how the data's ids were made
    (`privacy.record_note`); manifests of earlier versions do not say it. `weights_declared_by` says
    who declares that the public weights never saw the private records.
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
    weights_declared_by: str | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    imported: Imported | None = None
    ids_made: str | None = None
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

    @property
    def ids_by(self) -> str | None:
        """How the ids were made that shards were assigned by; None where nothing says so."""
        if self.record_ids == "positional":
            return POSITION
        found = self.ids_made or stated(self.own_data)
        if found is None and not self._imported_alone:
            return UNSTATED
        return found

    @property
    def _imported_alone(self) -> bool:
        """Whether the networks were imported without their data, so that only an id names these."""
        return self.imported is not None and self.data == self.data_id

    def expect_ids(self, ids: str, folder: Path) -> None:
        """Refuse records with ids of another kind: one of them would be behind several teachers.

        With teachers of row positions a plan counts by position, too: they are for any ids.

        Args:
            ids: `ImageSet.ids_by` of the records.
            folder: of the teachers, for the message.

        Raises:
            ModelMismatchError: names both ways.
        """
        if self.record_ids == "positional" or self.ids_by is None:
            return
        if not alike(self.ids_by, ids):
            raise ModelMismatchError(
                f"The teachers in {folder} learned from records with {words(self.ids_by)}, these "
                f"come with {words(ids)}: state no ids, id_pattern or id_column, which come with "
                "the teachers, or train others."
            )

    @property
    def declarations(self) -> dict[str, str]:
        """Who vouches for what, as `Facts` has it."""
        imported = self.imported or Imported()
        return {
            "shards_declared_by": imported.declared_by or "",
            "weights_declared_by": self.weights_declared_by or "",
        }

    def save(self, folder: Path) -> None:
        """Write to `folder/manifest.json`, atomically."""
        write_atomically(folder / MANIFEST, self.model_dump_json(indent=2).encode())


def load_manifest(folder: Path) -> Manifest:
    """Read `folder/manifest.json`.

    Raises:
        StorageError: there is none.
        ModelError: it is not a manifest of ours.
    """
    path = folder / MANIFEST
    try:
        return Manifest.model_validate(read_json(path))
    except OSError:
        raise no_teachers(folder) from None
    except (ValueError, ValidationError):
        raise ModelError(
            f"{path} is not a manifest of fedtranscribe 1; train the teachers again."
        ) from None
