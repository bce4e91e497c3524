"""Settings that several kinds of runs share: own data, place, privacy, ledger, tracking."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from fedtranscribe.config.base import CIRCUMSTANCE, Mark, Metavar, Settings, Topic

PUBLIC_SHAPES = "shapes"
MOST_CLASSES = 65_536
MOST_RECORDS = 10**12
"""That may be declared."""
LONGEST_NAME = 200

DATA = (
    "Private data: a name, an .npz file, a folder of .npy files, an image folder, or one that "
    "datasets saved."
)
SCRATCH = "Disk that features of records may take at most, in GiB; they save time."
PUBLIC_IMAGES = "Public images to start from: shapes, uci-digits, …, none."


def is_name(text: str) -> bool:
    """Whether a text can name data or a class: 1 to 200 printable characters, not all blank."""
    return 0 < len(text) <= LONGEST_NAME and text.isprintable() and not text.isspace()


class OwnData(Settings):
    """How a holder's own images are read: public facts that are stated, never counted from records.

    Data sets known by name state their classes themselves.
    """

    classes: Annotated[int | tuple[str, ...] | None, Topic.DATA, Metavar("N|NAMES")] = Field(
        default=None, description="Own data: number of classes, or their names with commas."
    )
    task: Annotated[Literal["classification", "ordinal", "multilabel"], Topic.DATA] = Field(
        default="classification",
        description="ordinal: classes are grades in their order, and kappa and mean error are "
        "measured. multilabel: an image has several classes, one or none.",
    )
    ids: Annotated[Path | None, Mark.UNTOLD, Topic.DATA] = Field(
        default=None,
        description="Image folder: CSV file with path and id of each image, or a DICOM field such "
        "as PatientID.",
    )
    id_pattern: Annotated[str | None, Topic.DATA, Metavar("REGEX")] = Field(
        default=None,
        description="Image folder: regular expression for paths; its group is the id.",
    )
    table: Annotated[Path | None, Mark.UNTOLD, Topic.DATA] = Field(
        default=None,
        description="Image folder: CSV file with path, label, id and part of each image, instead "
        "of subfolders.",
    )
    image_column: Annotated[str | None, Mark.UNTOLD, Topic.DATA, Metavar("NAME")] = Field(
        default=None,
        description="Table, or folder saved by datasets: column of images, if not clear.",
    )
    label_column: Annotated[str | None, Mark.UNTOLD, Topic.DATA, Metavar("NAME")] = Field(
        default=None,
        description="Table, or folder saved by datasets: column of labels, if not clear; with "
        "task=multilabel a table may have several, separated by commas.",
    )
    id_column: Annotated[str | None, Mark.UNTOLD, Topic.DATA, Metavar("NAME")] = Field(
        default=None,
        description="Table, or folder saved by datasets: column of lasting ids, or patients.",
    )
    split_column: Annotated[str | None, Mark.UNTOLD, Topic.DATA, Metavar("NAME")] = Field(
        default=None, description="Table: column that says train, test or val, if not clear."
    )
    image_size: Annotated[int | None, Topic.DATA] = Field(
        default=None, ge=8, description="Image folder: scale images to this many pixels a side."
    )
    fit: Annotated[Literal["cut", "pad"], Topic.DATA] = Field(
        default="cut",
        description="Image files that are not square, with image-size: cut their ends off, or pad "
        "them with black.",
    )
    bit_depth: Annotated[int | None, Topic.DATA] = Field(
        default=None,
        ge=9,
        le=16,
        description="Bits that 16-bit grey values use: 12 for many DICOM exports.",
    )
    channels: Annotated[int | None, Topic.DATA, Metavar("1|3")] = Field(
        default=None,
        ge=1,
        le=3,
        description="Image files: bring every image to grey (1) or to colour (3).",
    )
    allow_skipped: Annotated[bool, Mark.RESUMABLE, Topic.DATA] = Field(
        default=False,
        description="Image folder: run although more than 1 % of its files cannot be read.",
    )
    max_gib: Annotated[float, Mark.RESUMABLE, Topic.DATA] = Field(
        default=8.0,
        gt=0,
        allow_inf_nan=False,
        description="Memory that the images may take at most, in GiB.",
    )

    @property
    def multilabel(self) -> bool:
        """Whether an image may have several classes, or none."""
        return self.task == "multilabel"

    @property
    def id_field(self) -> str | None:
        """The DICOM field that `ids` names; None where it is a file."""
        if self.ids is None or self.ids.exists() or not str(self.ids).isalnum():
            return None
        return str(self.ids)

    @field_validator("classes", mode="before")
    @classmethod
    def _read_classes(cls, value: Any) -> Any:
        """A text is a number, or names separated by commas."""
        if not isinstance(value, str):
            return value
        if value.strip().isdecimal() and len(value) <= LONGEST_NAME:
            return int(value)
        return tuple(name.strip() for name in value.split(","))

    @field_validator("classes")
    @classmethod
    def _check_classes(cls, value: int | tuple[str, ...] | None) -> int | tuple[str, ...] | None:
        if isinstance(value, tuple):
            if not all(map(is_name, value)) or len(set(value)) != len(value):
                raise ValueError(
                    f"expected different names of 1 to {LONGEST_NAME} printable characters"
                )
            value_count = len(value)
        else:
            value_count = value
        if value_count is not None and not 2 <= value_count <= MOST_CLASSES:
            raise ValueError(f"expected 2 to {MOST_CLASSES} classes")
        return value

    @field_validator("channels")
    @classmethod
    def _check_channels(cls, value: int | None) -> int | None:
        if value == 2:
            raise ValueError("expected 1 for grey or 3 for colour")
        return value

    @field_validator("id_pattern")
    @classmethod
    def _check_pattern(cls, value: str | None) -> str | None:
        try:
            groups = re.compile(value or "()").groups
        except re.error as error:
            raise ValueError(f"expected a regular expression: {error}") from None
        if groups != 1:
            raise ValueError(f"expected one group, the id, found {groups}")
        return value

    @property
    def own_data(self) -> "OwnData":
        """These facts alone, without whatever other settings this object holds."""
        return OwnData.model_validate({n: getattr(self, n) for n in OwnData.model_fields})

    @property
    def as_public(self) -> "OwnData":
        """What also holds for a public set that is used beside the private one."""
        return OwnData(
            image_size=self.image_size,
            bit_depth=self.bit_depth,
            channels=self.channels,
            allow_skipped=self.allow_skipped,
            max_gib=self.max_gib,
        )


UNSTATED = OwnData()


class Place(Settings):
    """Where data sets are, and the device to compute on."""

    data_root: Annotated[Path | None, CIRCUMSTANCE, Topic.DATA] = Field(
        default=None, description="Folder of the data sets that have a name."
    )
    device: Annotated[str, CIRCUMSTANCE, Topic.RUN, Metavar("[auto|cpu|cuda|…]")] = Field(
        default="auto", description="Device to compute on; auto takes a GPU if there is one."
    )


class TrackingOptions(Settings):
    """Where else a run's progress is reported; see `fedtranscribe.results.progress`."""

    tensorboard: Annotated[bool, CIRCUMSTANCE, Topic.RUN] = Field(
        default=False, description="Write TensorBoard event files too."
    )
    tracker: Annotated[str | None, CIRCUMSTANCE, Topic.RUN, Metavar("[mlflow|wandb|NAME]")] = Field(
        default=None, description="Report progress to mlflow, wandb, or another installed tracker."
    )


class RunOptions(Place, TrackingOptions, OwnData):
    """Settings of every run on private data."""

    download: Annotated[bool, CIRCUMSTANCE, Topic.DATA] = Field(
        default=False, description="Download the data set if it is missing."
    )
    epsilon: Annotated[float, Topic.PRIVACY] = Field(
        default=10.0, gt=0, allow_inf_nan=False, description="ε of this run."
    )
    delta: Annotated[float, Topic.PRIVACY] = Field(
        default=1e-5, gt=0, lt=1, description="δ at which ε is stated."
    )
    seed: Annotated[int, Mark.INCIDENTAL, Topic.RUN] = Field(
        default=0, ge=0, description="Seed of public randomness; noise never depends on it."
    )


class LedgerOptions(Settings):
    """How a run at the machine that has the data is charged to their ledger."""

    budget: Annotated[float | None, Mark.INCIDENTAL, Topic.PRIVACY] = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Limit on the ε of all runs on these data together; 20 in a new ledger.",
    )
    calibrate_by: Annotated[Literal["sound", "published"], Topic.PRIVACY] = Field(
        default="sound", description="sound; or published, the paper's formula: NO guarantee."
    )
    ledger: Annotated[Path | None, Mark.INCIDENTAL | Mark.UNTOLD, Topic.PRIVACY] = Field(
        default=None, description="Ledger of the data; default: next to them."
    )
