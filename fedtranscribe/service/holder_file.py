"""`policy.toml`: everything that a data holder decides, in one file of its own.

The top level is the policy, default deny; the table `[holder]` says where things lie. Relative
paths are relative to the file.
"""

import os
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from fedtranscribe.config import MOST_RECORDS, SCRATCH, OwnData, build, read_toml
from fedtranscribe.data import ImageSet, folder_of, is_published, load
from fedtranscribe.errors import ConfigError
from fedtranscribe.holder.masking import Masking
from fedtranscribe.holder.policy import HolderPolicy
from fedtranscribe.holder.round_store import RoundStore
from fedtranscribe.holder.trainings import OpenLedger, Trainings
from fedtranscribe.models.backbones import Backbones
from fedtranscribe.names import expect_name
from fedtranscribe.privacy.ledger_place import LedgerPlace
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.secagg.key_files import Identity
from fedtranscribe.service.link import HEALTH_SUFFIX
from fedtranscribe.teachers import Manifest

# What a Unix socket's address may hold, on Linux, and the one for health beside it.
_LONGEST_SOCKET = 107 - len(HEALTH_SUFFIX)
# What may be relative to the file.
_PATHS = ("teachers", "records", "ledger", "socket", "log", "metrics", "key", "roster", "ids")
_METRICS_SUFFIX = ".prom"


def _named(value: str) -> str:
    try:
        return expect_name("name", value)
    except ConfigError as error:
        raise ValueError(str(error)) from None


Name = Annotated[str, AfterValidator(_named)]


class HolderPlace(OwnData):
    """Where a deployed holder keeps its things, and how it is called.

    How `records` are read is known from the teachers; what stands here wins.
    """

    name: Name = Field(description="the holder's name, which servers see")
    teachers: Path = Field(
        description="folder of `fedtranscribe teacher train` or `teacher import`"
    )
    records: Path | None = Field(
        default=None,
        description="the images that `teachers` learned from, .npz or a folder; sums and trainers "
        "need them",
    )
    declared: int = Field(
        default=0,
        ge=0,
        le=MOST_RECORDS,
        description="about how many records there are, which servers see; 0: not stated",
    )
    features: dict[str, Path] = Field(
        default_factory=dict,
        description="public networks that sums may be taken on, with the files of their weights",
    )
    scratch_gib: float = Field(default=4.0, ge=0, allow_inf_nan=False, description=SCRATCH)
    ledger: Path = Field(description="ledger of the data; it outlives runs and teachers")
    socket: Path = Field(
        description="socket that the SuperNode asks; all of yours that it may open"
    )
    log: Path | None = Field(default=None, description="JSON lines; none: standard error")
    metrics: Path | None = Field(
        default=None, description="Prometheus metrics, for node_exporter's textfile collector"
    )
    device: str = "auto"
    server: Name = Field(
        default="flower", description="name that the server's queries are bound to"
    )
    key: Path | None = Field(
        default=None, description="secagg: the holder's own key, not the SuperNode's"
    )
    roster: Path | None = Field(
        default=None, description="secagg: folder with NAME.pub of every holder, this one too"
    )


def _seen(data: str) -> Path | None:
    """Where the data lie, if they are a path and can be seen from here."""
    try:
        return folder_of(data)
    except OSError:
        return None  # in a folder that the service's user may not look into


class HolderFile(HolderPolicy):
    """A holder's policy and places."""

    holder: HolderPlace

    @classmethod
    def read(cls, path: Path) -> "HolderFile":
        """Read and check a file; paths in it become absolute.

        Raises:
            ConfigError: it is absent, no TOML, or a value is wrong; names every such value.
        """
        file = build(cls, read_toml(path))
        home = path.absolute().parent
        places = {
            name: home / value.expanduser()
            for name in _PATHS
            if (value := getattr(file.holder, name)) is not None
        }
        metrics = file.holder.metrics
        if metrics is not None and metrics.suffix != _METRICS_SUFFIX:
            raise ConfigError(
                f"Expected [holder] metrics={str(metrics)!r} to end in {_METRICS_SUFFIX}: "
                "node_exporter reads no other files."
            )
        features = {
            network: home / path.expanduser() for network, path in file.holder.features.items()
        }
        if len(str(places["socket"]).encode()) > _LONGEST_SOCKET:
            raise ConfigError(
                f"Expected [holder] socket={str(places['socket'])!r} to have at most "
                f"{_LONGEST_SOCKET} bytes; choose a shorter path."
            )
        if (file.holder.key is None) != (file.holder.roster is None):
            raise ConfigError("Expected [holder] key and roster together, for masked sums.")
        if file.noise is NoiseMode.SECAGG and file.holder.key is None:
            raise ConfigError(
                'Expected [holder] key and roster with noise="secagg"; make a key: fedtranscribe '
                "deploy keys create PATH."
            )
        if file.trainers and file.holder.records is None:
            raise ConfigError("Expected [holder] records with trainers: they train on the images.")
        update = {**places, "features": features}
        return file.model_copy(update={"holder": file.holder.model_copy(update=update)})

    @property
    def rounds(self) -> Path:
        """Where keys and rounds of masked sums are kept."""
        return self.holder.ledger.with_name(f"{self.holder.ledger.name}.rounds")

    @property
    def trained(self) -> Path:
        """The folder of private trainings."""
        return self.holder.ledger.with_name("trainings")

    @property
    def policy(self) -> HolderPolicy:
        """The limits alone."""
        return HolderPolicy.model_validate(self.model_dump(exclude={"holder"}))

    def ledger_place(self, manifest: Manifest) -> LedgerPlace:
        """Where the ledger lies, once it is known that there is no other of these data.

        What cannot be known is in `unseen`: whether there is one beside data that this machine
        does not have, or that the service's user may not see.

        Args:
            manifest: of the teachers, which names the data.

        Raises:
            ConfigError: nobody says where the data lie.
            SecondLedgerError, StorageError: as `LedgerPlace.find`.
        """
        data = self._data(manifest)
        return LedgerPlace.find(
            manifest.data_id, _seen(data), self.holder.ledger, published=is_published(data)
        )

    def unseen(self, manifest: Manifest) -> str | None:
        """What has to be said where the data are not to be seen; None where they are.

        Raises:
            ConfigError: nobody says where the data lie.
        """
        data = self._data(manifest)
        if is_published(data) or _seen(data) is not None:
            return None
        return (
            f"cannot look for another ledger next to the data: this user cannot see {data}. "
            "If the data were used before, put their first ledger in this one's place; [holder] "
            "records says where they lie"
        )

    def _data(self, manifest: Manifest) -> str:
        """Name or path of the data, as it leads there from any working directory."""
        if self.holder.records is not None:
            return str(self.holder.records)
        data = manifest.data
        by_name = is_published(data) or data.startswith("medmnist:")
        if not by_name and not Path(data).is_absolute():
            raise ConfigError(
                f"Expected [holder] records: the teachers in {self.holder.teachers} were trained "
                f"on {data!r} and do not say in which folder, so nothing can check whether "
                "these data have a ledger already. Write the path of the data, even if they are "
                "not on this machine."
            )
        return data

    def trainings(self, manifest: Manifest, open_ledger: OpenLedger) -> Trainings | None:
        """The holder's private trainings; None where it carries out none.

        Args:
            manifest: of the teachers, whose data the ledger is bound to.
            open_ledger: opens it.

        Raises:
            DataError: the records are absent or unusable.
            ConfigError: they are not those of the ledger.
        """
        place = self.holder
        if place.records is None or not self.trainers:
            return None
        train = self.records(manifest)
        return Trainings(lambda: train, place.ledger, open_ledger, self.trained, place.device)

    @property
    def sums_wanted(self) -> bool:
        """Whether the policy allows any sum over the records."""
        return any(kind.sums for kind in self.policy.answered)

    @property
    def summed(self) -> Path | None:
        """The records that sums are given over, where policy and file system allow that."""
        records = self.holder.records
        if records is None or not self.sums_wanted:
            return None
        return records if os.access(records, os.R_OK) else None

    def records(self, manifest: Manifest) -> ImageSet:
        """The holder's private records.

        Args:
            manifest: of the teachers, whose data the ledger is bound to.

        Raises:
            DataError: they are absent or unusable.
            ConfigError: they are not named, or not those of the ledger.
        """
        place = self.holder
        if place.records is None:
            raise ConfigError("Expected [holder] records: the images themselves are asked for.")
        said = place.own_data.model_dump(exclude_defaults=True)
        own = build(OwnData, {**manifest.own_data.model_dump(), **said})
        train = load(str(place.records), own=own).train
        if train.data_id != manifest.data_id:
            raise ConfigError(
                f"Expected [holder] records of {manifest.data_id!r}, the data of teachers and "
                f"ledger; {place.records} is {train.data_id!r}."
            )
        if train.classes != manifest.classes:
            raise ConfigError(
                f"Expected [holder] records of classes={manifest.classes}, as the teachers have; "
                f"{place.records} has {train.classes}."
            )
        return train

    def backbones(self) -> Backbones:
        """The public networks that the holder allows, known by the digests of their files.

        Raises:
            ModelError: a network or a file that is not there.
        """
        return Backbones.of(self.holder.features)

    def masking(self) -> Masking | None:
        """The holder's part in masked sums; None where it has no key.

        Raises:
            ConfigError: key or roster cannot be used.
        """
        place = self.holder
        if place.key is None or place.roster is None:
            return None
        identity = Identity.read(place.name, place.key, place.roster)
        return Masking(identity, RoundStore(self.rounds))
