"""Frozen, typed settings, built alike from the command line, TOML, and later Flower's run-config.

`build` reports every error at once, in one line, each with the value and what was expected.
"""

import re
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from fedtranscribe.errors import ConfigError
from fedtranscribe.reading import parse_toml, read_bounded

PUBLIC_SHAPES = "shapes"
STUDENT = "cnn-wide"
MOST_CLASSES = 65_536
LONGEST_NAME = 200


def is_name(text: str) -> bool:
    """Whether a text can name data or a class: 1 to 200 printable characters, not all blank."""
    return 0 < len(text) <= LONGEST_NAME and text.isprintable() and not text.isspace()


# No training needs more; a server that asks a data holder for absurd ones is refused by them.
_MOST_EPOCHS, _MOST_PUBLIC_EPOCHS = 1_000, 10_000
_MOST_COPIES = 1_000
_MOST_PUBLIC_IMAGES = 100_000
_MOST_TIME_STEPS = 10_000
_MOST_CLUSTERS = 1_000


class Settings(BaseModel):
    """Base of all settings: immutable, and unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class OwnData(Settings):
    """How a holder's own images are read: public facts that are stated, never counted from records.

    Data sets known by name state their classes themselves.
    """

    image_size: int | None = Field(default=None, ge=8, description="pixels a side, for a folder")
    classes: int | tuple[str, ...] | None = Field(
        default=None, description="how many classes there are, or their names"
    )
    ids: Path | None = Field(
        default=None, description="CSV file for a folder: a row with path and id for each image"
    )
    id_pattern: str | None = Field(
        default=None, description="regular expression for a folder: its one group is a path's id"
    )
    bit_depth: int | None = Field(
        default=None, ge=9, le=16, description="bits that 16-bit grey values really use"
    )
    max_gib: float = Field(
        default=8.0, gt=0, allow_inf_nan=False, description="most memory that the images may take"
    )

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
        return OwnData(image_size=self.image_size, bit_depth=self.bit_depth, max_gib=self.max_gib)


UNSTATED = OwnData()


class TeacherSettings(Settings):
    """How one shard's teacher is trained; public, and the same for every shard."""

    steps: int = Field(
        default=150, gt=0, description="optimiser steps per shard, whatever its size"
    )
    batch: int = Field(default=32, gt=0, description="images per step, drawn with replacement")
    lr: float = Field(default=2e-3, gt=0)
    weight_decay: float = Field(default=1e-2, ge=0)
    label_smoothing: float = Field(default=0.05, ge=0, lt=1)
    augment: float = Field(
        default=1.0, ge=0, le=2, description="strength of the augmentation; 0 is none"
    )
    copies: int = Field(
        default=8, gt=0, description="augmented views per record (frozen backbone only)"
    )


class DpsdSettings(Settings):
    """Hyper-parameters of Algorithm 1; all public."""

    rows: int = Field(default=4_000, gt=0, description="synthetic rows asked in the whole run")
    round_rows: int = Field(default=500, gt=0, description="rows per round and per message")
    top_k: int | None = Field(
        default=None, gt=0, description="student's top-k mask; none means all classes"
    )
    batch: int = Field(default=128, gt=1)
    student_steps: int = Field(default=60, ge=0, description="student updates per round")
    finish_steps: int = Field(
        default=600, ge=0, description="student updates after the last answer"
    )
    public_share: float = Field(
        default=0.5, ge=0, le=1, description="share of the rows that are public images as they are"
    )
    generator_steps: int = Field(default=5, ge=0, description="generator and z updates per round")
    moments_steps: int = Field(
        default=100, ge=0, description="generator updates of a run that learns from moments"
    )
    augment: float = Field(
        default=0.5, ge=0, le=2, description="strength of views of answered rows"
    )
    student_lr: float = Field(default=1e-3, gt=0)
    generator_lr: float = Field(default=1e-4, gt=0)
    z_lr: float = Field(default=1e-2, gt=0)
    redraw: float = Field(default=0.8, ge=0, le=1, description="share of z drawn afresh each round")
    prior_weight: float = Field(
        default=0.9, ge=0, description="a in softmax(a log p_s + b evidence)"
    )
    evidence_weight: float = Field(
        default=0.6, gt=0, description="b in softmax(a log p_s + b evidence)"
    )
    one_hot_weight: float = Field(default=0.1, ge=0, description="first term of Eq. 8")
    balance_weight: float = Field(default=1.0, ge=0, description="second term of Eq. 8")
    activation_weight: float = Field(default=0.1, ge=0, description="third term of Eq. 8")
    imitation_weight: float = Field(
        default=1.0, description="the generator's share of L_s; negative makes it adversarial"
    )
    latent_dim: int = Field(default=64, gt=0)
    generator_width: int = Field(default=32, gt=0)
    pretrain_steps: int = Field(
        default=600, ge=0, description="generator steps on the public images"
    )


class BaselineSettings(Settings):
    """FedAvg, FedDF and DENSE: federated learning WITHOUT privacy, to compare with."""

    rounds: int = Field(default=10, gt=0, description="rounds of FedAvg")
    local_steps: int = Field(
        default=100,
        gt=0,
        description="steps per round at a holder; FedDF and DENSE take all rounds' steps in one",
    )
    batch: int = Field(default=64, gt=1)
    lr: float = Field(default=1e-3, gt=0)
    augment: float = Field(default=0.5, ge=0, le=2)
    distil_steps: int = Field(default=2_000, gt=0, description="student steps of FedDF and DENSE")
    distil_lr: float = Field(default=1e-3, gt=0)
    generator_lr: float = Field(default=1e-3, gt=0)
    pool: int = Field(default=8_000, gt=0, description="images that DENSE keeps to distil on")


class TrackingOptions(Settings):
    """Who else is told of a run's progress; see `fedtranscribe.tracking`."""

    tensorboard: bool = Field(default=False, description="write TensorBoard event files as well")
    tracker: str | None = Field(
        default=None, description="an installed tracker, by name of its entry point"
    )


class StudentSettings(TrackingOptions, OwnData):
    """What the student side of every run is told; `None` means: picked from public facts."""

    student: str | None = Field(default=None, description="architecture; none: picked")
    public_data: str | None = Field(default=PUBLIC_SHAPES, description="public images, or 'none'")
    data_root: Path | None = None
    download: bool = False
    privacy: Literal["data", "label", "vote"] = "vote"
    epsilon: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    unit: Literal["record", "holder"] = "record"
    rows: int | None = Field(default=None, gt=0)
    top_k: int | None = Field(default=None, gt=0)
    device: str = "auto"
    seed: int = Field(default=0, ge=0)
    out: Path | None = None
    dpsd: DpsdSettings = DpsdSettings()

    @property
    def student_architecture(self) -> str:
        """The student's architecture, where nothing else speaks for another."""
        return self.student or STUDENT


class TranscribeSettings(StudentSettings):
    """Everything `fedtranscribe transcribe` can be told."""

    teacher: str | None = Field(
        default=None, description="an architecture, or a folder made by `teacher train`"
    )
    teacher_weights: str | None = None
    data: str | None = Field(
        default=None, description="none: the teachers' own, or the packaged digits"
    )
    shards: int | None = Field(default=None, gt=0)
    budget: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="limit of the data's ledger over all runs; a new one has 20",
    )
    calibrate_by: Literal["sound", "published"] = "sound"
    generator: Path | None = Field(
        default=None, description="run of `synthesize` whose samples are asked"
    )
    source: Literal["moments", "teachers"] | None = Field(
        default=None, description="what the student learns from; none: picked from the rest"
    )
    ledger: Path | None = None
    teachers: TeacherSettings = TeacherSettings()


class DpPromiseOptions(Settings):
    """dp-promise alone, table [dp_promise]; what is left out is the profile's."""

    boundary: int | None = Field(
        default=None, description="S, first time step of Phase I; T + 1 leaves Phase I out"
    )
    phase1: bool = Field(default=True, description="false trains Phase II over all time steps")
    noisy_images: Literal["fresh", "cached"] = "fresh"
    phase1_batch: int | None = Field(default=None, gt=0)
    phase1_epochs: float | None = Field(default=None, gt=0, le=_MOST_EPOCHS)
    phase1_lr: float | None = Field(default=None, gt=0)
    phase2_batch: int | None = Field(default=None, gt=0)
    phase2_epochs: float | None = Field(default=None, gt=0, le=_MOST_EPOCHS)
    phase2_lr: float | None = Field(default=None, gt=0)
    copies: int | None = Field(
        default=None,
        gt=0,
        le=_MOST_COPIES,
        description="K: time steps and noises per record, averaged first",
    )
    clip: float | None = Field(default=None, gt=0)
    label_drop: float | None = Field(default=None, ge=0, lt=1)
    freeze_time_embedding: bool | None = None


class DpSadOptions(Settings):
    """DP-SAD alone, table [dp_sad]; what is left out is the profile's."""

    teacher: Literal["public", "dp"] | None = Field(
        default=None, description="from public images, or by DP-SGD on the private ones"
    )
    discriminator: Literal["outputs", "dp"] | None = None
    batch: int | None = Field(default=None, gt=0)
    epochs: float | None = Field(default=None, gt=0, le=_MOST_EPOCHS)
    lr: float | None = Field(default=None, gt=0)
    teacher_lr: float | None = Field(default=None, gt=0)
    discriminator_lr: float | None = Field(default=None, gt=0)
    clip: float | None = Field(default=None, gt=0)
    copies: int | None = Field(default=None, gt=0, le=_MOST_COPIES)
    time_steps: int | None = Field(
        default=None, gt=0, le=_MOST_TIME_STEPS, description="T of the diffusion"
    )
    start: Literal["xavier", "teacher"] | None = None
    teacher_guidance: float | None = Field(default=None, ge=0, description="w of Eq. 5")
    teacher_weight: float | None = Field(default=None, ge=0, description="MSE-T; 0 leaves it out")
    data_weight: float | None = Field(default=None, ge=0, description="MSE; 0 leaves it out")
    adversarial_weight: float | None = Field(
        default=None, ge=0, description="λ; 0 leaves the discriminator out"
    )
    weighting: Literal["noise", "image"] | None = None
    student_conditioning: bool | None = None
    discriminator_conditioning: bool | None = None
    concatenation: Literal["batch", "channels"] | None = None
    label_drop: float | None = Field(default=None, ge=0, lt=1)
    student_label_drop: float | None = Field(default=None, ge=0, lt=1)
    synthetic_images: int | None = Field(default=None, gt=0, le=_MOST_PUBLIC_IMAGES)


class TrainingOptions(Settings):
    """What a private training can be told by whoever asks for it; `None` means: the profile's."""

    profile: Literal["quick", "paper"] = Field(
        default="quick", description="quick: minutes on two cores; paper: the paper's settings"
    )
    conditional: bool | None = Field(default=None, description="whether the network learns labels")
    labels: Literal["own", "kmeans"] = Field(
        default="own", description="kmeans: clusters of the public images, each record by itself"
    )
    clusters: int = Field(default=10, ge=2, le=_MOST_CLUSTERS, description="k, for labels=kmeans")
    adjacency: Literal["zero-out", "replace", "add-remove"] = "zero-out"
    size: Literal["tiny", "small", "medium", "large"] | None = Field(
        default=None, description="of the U-Net"
    )
    pretrain_data: str | None = Field(default=None, description="public images, or 'none'")
    pretrain_epochs: float | None = Field(default=None, gt=0, le=_MOST_PUBLIC_EPOCHS)
    pretrain_batch: int | None = Field(default=None, gt=0, le=_MOST_PUBLIC_IMAGES)
    pretrain_lr: float | None = Field(default=None, gt=0)
    ema_decay: float | None = Field(default=None, ge=0, lt=1)
    sampling_steps: int | None = Field(
        default=None, gt=0, le=_MOST_TIME_STEPS, description="T' of the sampler"
    )
    guidance: float | None = Field(default=None, ge=0, description="w of the sampler")
    dp_promise: DpPromiseOptions = DpPromiseOptions()
    dp_sad: DpSadOptions = DpSadOptions()


class RoundSettings(Settings):
    """How rounds with holders go on, whatever some of them do."""

    quorum: int | None = Field(
        default=None, gt=0, description="fewest answers per round; none: more than half"
    )
    retries: int = Field(default=2, ge=0, description="times a silent holder is asked again")
    retry_after: float = Field(
        default=2.0, ge=0, description="seconds before a silent holder is asked again; doubles"
    )
    on_exhausted: Literal["continue", "stop"] = Field(
        default="continue", description="what a holder's spent budget does to the run"
    )
    abandon: bool = Field(
        default=False,
        description="secagg, with resume: ask the rows of a stuck round anew; they cost again",
    )


class FederationSettings(StudentSettings, RoundSettings):
    """Everything that a federated run can be told; Flower's run-config and the CLI build it alike.

    The last block describes a simulation, where one machine plays all holders.
    """

    method: Literal["feddpsd", "fedavg", "feddf", "dense", "dp-promise", "dp-sad"] = Field(
        default="feddpsd",
        description="dp-promise and dp-sad train at one holder; the others have no privacy",
    )
    trainer: str | None = Field(
        default=None, description="holder that trains; none: the first that can"
    )
    slice_seconds: float = Field(
        default=60.0,
        gt=0,
        description="training per message, before the holder tells how far it is",
    )
    training: TrainingOptions = TrainingOptions()
    noise: Literal["local", "secagg", "central"] = Field(
        default="local", description="who adds the noise; a holder may insist on more protection"
    )
    dropouts: int | None = Field(
        default=None,
        ge=0,
        description="secagg: holders that may be missing from a sum; none: what all of them bear",
    )
    timeout: float = Field(default=600.0, gt=0, description="seconds to wait for a round's answers")
    first_timeout: float = Field(
        default=3_600.0, gt=0, description="seconds to wait until the holders are ready"
    )
    resume: bool = False
    force: bool = False

    data: str = Field(
        default="digits", description="the first of these names, by commas, that can be had"
    )
    holders: int = Field(default=5, gt=0)
    alpha: float = Field(default=0.5, gt=0, description="of the Dirichlet partition by label")
    shards: int = Field(default=50, gt=0, description="disjoint teachers per holder")
    colluders: int | None = Field(
        default=None, ge=0, description="secagg: holders that may side with the server; none: 1"
    )
    teacher: str = "cnn"
    teacher_mode: Literal["auto", "full", "heads"] = "auto"
    teachers: TeacherSettings = TeacherSettings()
    baseline: BaselineSettings = BaselineSettings()


class SynthesizeSettings(TrainingOptions, TrackingOptions, OwnData):
    """Everything `fedtranscribe synthesize` can be told."""

    method: Literal["dp-promise", "dp-sad"] = "dp-promise"
    data: str = "digits"
    data_root: Path | None = None
    download: bool = False
    noise: bool = Field(
        default=True, description="false: no clipping and no noise; a baseline, NOT private"
    )
    epsilon: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    calibrate_by: Literal["sound", "published"] = "sound"
    budget: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="limit of the data's ledger over all runs; a new one has 20",
    )
    ledger: Path | None = None
    evaluate: bool = Field(
        default=True, description="train a CNN on samples, test it on the held-out images"
    )
    samples: int = Field(default=3_000, ge=60, description="synthetic images that the CNN sees")
    backend: Literal["contracted", "functional", "opacus"] = "contracted"
    physical_batch: int | None = Field(
        default=None, gt=0, description="records at a time; none: measured"
    )
    checkpoint_seconds: float = Field(default=60.0, ge=0, description="between two checkpoints")
    device: str = "auto"
    seed: int = Field(default=0, ge=0)


S = TypeVar("S", bound=Settings)


def build(kind: type[S], values: dict[str, Any]) -> S:
    """Validate values into settings.

    Raises:
        ConfigError: one line that names every wrong value.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(_one_line(e) for e in error.errors())) from None


def _one_line(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    if not where:
        return message
    if error["type"] == "extra_forbidden":
        return f"Unknown setting {where}; remove it or check its spelling"
    return f"{where}={error['input']!r}: {message[0].lower()}{message[1:]}"


def read_toml(path: Path) -> dict[str, Any]:
    """Read a settings file.

    Raises:
        ConfigError: the file is absent or is not TOML.
    """
    try:
        return parse_toml(read_bounded(path).decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"Cannot read the settings file {path}: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from None
