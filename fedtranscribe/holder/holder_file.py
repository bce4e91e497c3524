"""`policy.toml`: everything that a data holder decides, in one file of its own.

The top level is the policy, default deny; the table `[holder]` says where things lie. Relative
paths are relative to the file.
"""

import os
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from fedtranscribe.config import MOST_RECORDS, SCRATCH, OwnData, build, read_toml
from fedtranscribe.errors import ConfigError
from fedtranscribe.holder.link import HEALTH_SUFFIX
from fedtranscribe.holder.masking import Masking, RoundStore
from fedtranscribe.holder.policy import HolderPolicy
from fedtranscribe.models.backbones import Backbones
from fedtranscribe.noise.key_files import Identity
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.questions.question import is_sum
from fedtranscribe.text import expect_name

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

    It names teachers, records or both. With teachers, `records` are read as the teachers' were,
    except for what is set here.
    """

    name: Name = Field(description="the holder's name, which servers see")
    teachers: Path | None = Field(
        default=None,
        description="folder of `fedtranscribe teacher train` or `teacher import`; none: no votes, "
        "gradients or labels",
    )
    records: Path | None = Field(
        default=None,
        description="the images, .npz or a folder, which `teachers` learned from if there are any; "
        "sums and trainers need them",
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
        _expect_complete(file)
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

    @property
    def needs_records(self) -> bool:
        """Whether nothing can be served without the images: teachers can give votes without."""
        return self.holder.teachers is None or bool(self.trainings)

    @property
    def sums_wanted(self) -> bool:
        """Whether the policy allows any sum over the records."""
        return any(is_sum(kind) for kind in self.policy.answered)

    @property
    def summed(self) -> Path | None:
        """The records that sums are given over, where policy and file system allow that."""
        records = self.holder.records
        if records is None or not self.sums_wanted:
            return None
        return records if os.access(records, os.R_OK) else None

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


def _expect_complete(file: HolderFile) -> None:
    """Refuse a file whose policy needs what its table `[holder]` does not name."""
    place = file.holder
    if (place.key is None) != (place.roster is None):
        raise ConfigError("Expected [holder] key and roster together, for masked sums.")
    if file.noise is NoiseMode.SECAGG and place.key is None:
        raise ConfigError(
            'Expected [holder] key and roster with noise="secagg"; make a key: fedtranscribe '
            "deploy keys create PATH."
        )
    if place.records is None:
        if file.trainers:
            raise ConfigError("Expected [holder] records with trainers: they train on the images.")
        if place.teachers is None:
            raise ConfigError("Expected [holder] records or [holder] teachers, or both.")
    if place.teachers is None and not (file.sums_wanted or file.trainings):
        kinds = ", ".join(file.kinds) or "none"
        raise ConfigError(
            f"Expected [holder] teachers with unit={file.unit} and kinds={kinds}: no sum over the "
            "records and no training is allowed, and only teachers give other answers."
        )
