"""What a holder answers from: teachers, records or both, all of one data set."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedtranscribe.config import OwnData, build
from fedtranscribe.config.facts import Facts
from fedtranscribe.data import ImageSet, folder_of, has_own_ids, is_published, load
from fedtranscribe.data.imageset import expect_single_labels
from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.holder.holder_file import HolderFile
from fedtranscribe.holder.trainings import OpenLedger, Trainings
from fedtranscribe.models import pick_device
from fedtranscribe.models.backbones import Backbones
from fedtranscribe.models.ensemble import Ensemble
from fedtranscribe.models.teachers import Manifest
from fedtranscribe.privacy.budget import POSITION, expect_noted
from fedtranscribe.privacy.ledger_place import LedgerPlace
from fedtranscribe.questions.kinds import of_records, of_teachers
from fedtranscribe.questions.statistic import Statistic

log = logging.getLogger(__name__)


def open_teachers(file: HolderFile) -> Ensemble | None:
    """The holder's teachers, every shard checked; None where it names none."""
    device = pick_device(file.holder.device)
    if file.holder.teachers is None:
        return None
    teachers = Ensemble(file.holder.teachers, device)
    teachers.verify()
    return teachers


def open_records(file: HolderFile, teachers: Ensemble | None) -> ImageSet | None:
    """The holder's PRIVATE records; None where only its teachers answer."""
    path = file.holder.records
    if path is None or (file.summed is None and not file.needs_records):
        return None
    try:
        split = load(str(path), own=_own(file, teachers))
    except OSError as error:
        where = error.filename or path
        raise StorageError(
            f"Cannot read [holder] records: {where}: {error.strerror or error}. Give the files to "
            "the service's user."
        ) from None
    for note in split.notes:
        log.warning("%s", note)
    train = split.train
    if teachers is not None:
        _expect_same(train, teachers.manifest, path)
        teachers.manifest.expect_ids(train.ids_by, teachers.folder)
    return train


def _own(file: HolderFile, teachers: Ensemble | None) -> OwnData:
    """How the records are read: as the teachers' were, unless file or records say otherwise."""
    place = file.holder
    if teachers is None:
        return place.own_data
    as_before = teachers.manifest.own_data.model_dump()
    if place.records is not None and has_own_ids(place.records):  # a packed copy, say
        as_before |= {"ids": None, "id_pattern": None, "channels": None}
    declared = place.own_data.model_dump(exclude_defaults=True)
    return build(OwnData, {**as_before, **declared})


def _expect_same(train: ImageSet, manifest: Manifest, path: Path) -> None:
    if train.data_id != manifest.data_id:
        raise ConfigError(
            f"Expected [holder] records of {manifest.data_id!r}, the data of teachers and "
            f"ledger; {path} is {train.data_id!r}."
        )
    expect_single_labels(train.multilabel, "a holder with teachers, who vote for one class")
    if train.classes != manifest.classes:
        raise ConfigError(
            f"Expected [holder] records of classes={manifest.classes}, as the teachers have; "
            f"{path} has {train.classes}."
        )


@dataclass(frozen=True)
class Holding:
    """A holder's private side, opened."""

    file: HolderFile  # the holder's decisions
    teachers: Ensemble | None  # its ensemble; None where it serves none
    # Its images; None where teachers alone answer. At least one of the two is there.
    records: ImageSet | None

    @classmethod
    def open(cls, file: HolderFile) -> "Holding":
        """Open all that the file names."""
        teachers = open_teachers(file)
        return cls(file, teachers, open_records(file, teachers))

    @property
    def data_id(self) -> str:
        """Of the data, which the ledger is bound to."""
        if self.teachers is not None:
            return self.teachers.manifest.data_id
        assert self.records is not None
        return self.records.data_id

    def facts(self, backbones: Backbones) -> Facts:
        """What is public about it."""
        try:
            return self._facts(backbones)
        except ValueError as error:
            raise ConfigError(
                f"Expected [holder] records that a server accepts: {error}."
            ) from None

    def _facts(self, backbones: Backbones) -> Facts:
        seen = None if self.records is None else self.records.facts
        known = seen if self.teachers is None else self.teachers.facts
        assert known is not None
        return replace(
            known,
            positional_ids=self._positional,
            records=self.file.holder.declared,
            features=backbones.names,
        )

    @property
    def _positional(self) -> bool:
        """Whether ids do not last; they have to in the records and in the teachers' data."""
        records, teachers = self.records, self.teachers
        return (records is not None and records.positional) or (
            teachers is not None and teachers.facts.positional_ids
        )

    @property
    def ids(self) -> str | None:
        """How ids are made, see `privacy.record_note`; None where nothing says so."""
        if self._positional:
            return POSITION
        if self.records is not None:
            return self.records.ids_by
        assert self.teachers is not None
        return self.teachers.manifest.ids_by

    def statistics(self, backbones: Backbones) -> Mapping[str, Statistic[Any]]:
        """All that can be asked: of the teachers, and where the policy allows it of the records."""
        of_both: dict[str, Statistic[Any]] = {}
        if self.teachers is not None:
            of_both.update(of_teachers(self.teachers))
        if self.records is not None and self.file.sums_wanted:
            place = self.file.holder
            scratch = place.ledger.with_name("scratch")
            of_both.update(
                of_records(
                    self.records,
                    pick_device(place.device),
                    scratch,
                    backbones=backbones,
                    scratch_gib=place.scratch_gib,
                )
            )
        return of_both

    def trainings(self, open_ledger: OpenLedger) -> Trainings | None:
        """The holder's private trainings; None where it carries out none."""
        records, file = self.records, self.file
        if records is None or not file.trainings:
            return None
        return Trainings(
            lambda: records, file.holder.ledger, open_ledger, file.trained, file.holder.device
        )

    # ---------------------------------------------------------------- where its ledger lies

    def ledger_place(self) -> LedgerPlace:
        """Where the ledger lies, once these data have no other and ids are made as it notes.

        What cannot be known is in `unseen`: whether there is one beside data that this machine
        does not have, or that the service's user may not see.
        """
        data = self._data()
        if self.ids is not None:
            expect_noted(self.file.holder.ledger, self.ids)
        return LedgerPlace.find(
            self.data_id, _seen(data), self.file.holder.ledger, published=is_published(data)
        )

    def unseen(self) -> str | None:
        """What has to be said where the data are not to be seen; None where they are."""
        data = self._data()
        if is_published(data) or _seen(data) is not None:
            return None
        return (
            f"cannot look for another ledger next to the data: this user cannot see {data}. "
            "If the data were used before, put their first ledger in this one's place; [holder] "
            "records says where they lie"
        )

    def _data(self) -> str:
        """Name or path of the data, as it leads there from any working directory."""
        place = self.file.holder
        if place.records is not None:
            return str(place.records)
        assert self.teachers is not None
        data = self.teachers.manifest.data
        by_name = is_published(data) or data.startswith("medmnist:")
        if not by_name and not Path(data).is_absolute():
            raise ConfigError(
                f"Expected [holder] records: the teachers in {place.teachers} were trained "
                f"on {data!r} and do not say in which folder, so nothing can check whether "
                "these data have a ledger already. Write the path of the data, even if they are "
                "not on this machine."
            )
        return data


def _seen(data: str) -> Path | None:
    """Where the data lie, if they are a path and can be seen from here."""
    try:
        return folder_of(data)
    except OSError:
        return None  # in a folder that the service's user may not look into
