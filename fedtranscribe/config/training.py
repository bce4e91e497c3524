"""Settings of private trainings, dp-promise and DP-SAD: `synthesize`, and the same at a holder."""

from typing import Annotated, Literal

from pydantic import Field

from fedtranscribe.config.base import Mark, Metavar, Settings, Topic
from fedtranscribe.config.run import DATA, PUBLIC_IMAGES, LedgerOptions, RunOptions

# No training needs more; a server that asks a data holder for absurd ones is refused by them.
_MOST_EPOCHS, _MOST_PUBLIC_EPOCHS = 1_000, 10_000
_MOST_COPIES = 1_000
_MOST_PUBLIC_IMAGES = 100_000
_MOST_TIME_STEPS = 10_000
_MOST_CLUSTERS = 1_000

_EXPECTED, _PASSES = "Expected records.", "Passes."

FileNumber = Annotated[float | None, Mark.NO_OPTION]
FileFlag = Annotated[bool | None, Mark.NO_OPTION]


class RecordOptions(Settings):
    """What both methods do with one record; what is left out is the profile's."""

    copies: int | None = Field(
        default=None,
        gt=0,
        le=_MOST_COPIES,
        description="K, time steps and noises per record.",
    )
    clip: float | None = Field(default=None, gt=0, description="C, norm of a record's gradient.")
    label_drop: FileNumber = Field(default=None, ge=0, lt=1)


class DpPromiseOptions(RecordOptions):
    """dp-promise alone, table [dp_promise]; what is left out is the profile's."""

    boundary: int | None = Field(
        default=None, gt=0, description="S, first time step of Phase I; T + 1 leaves Phase I out."
    )
    phase1: bool | None = Field(
        default=None,
        description="Phase I; on unless there is a private start. Phase II covers the rest.",
    )
    noisy_images: Literal["fresh", "cached"] = Field(
        default="fresh", description="fresh, or cached: one per record, reused in all epochs."
    )
    phase1_batch: int | None = Field(default=None, gt=0, description=_EXPECTED)
    phase1_epochs: float | None = Field(default=None, gt=0, le=_MOST_EPOCHS, description=_PASSES)
    phase1_lr: FileNumber = Field(default=None, gt=0)
    phase2_batch: int | None = Field(default=None, gt=0, description=_EXPECTED)
    phase2_epochs: float | None = Field(default=None, gt=0, le=_MOST_EPOCHS, description=_PASSES)
    phase2_lr: FileNumber = Field(default=None, gt=0)
    freeze_time_embedding: FileFlag = None


class DpSadOptions(RecordOptions):
    """DP-SAD alone, table [dp_sad]; what is left out is the profile's."""

    teacher: Literal["public", "dp"] | None = Field(
        default=None, description="Trained on public images, or dp: on the records, by DP-SGD."
    )
    discriminator: Literal["outputs", "dp"] | None = Field(
        default=None, description="Trained on private outputs, or dp: on the records, by DP-SGD."
    )
    batch: int | None = Field(default=None, gt=0, description=_EXPECTED)
    epochs: float | None = Field(default=None, gt=0, le=_MOST_EPOCHS, description=_PASSES)
    lr: FileNumber = Field(default=None, gt=0)
    teacher_lr: FileNumber = Field(default=None, gt=0)
    discriminator_lr: FileNumber = Field(default=None, gt=0)
    time_steps: Annotated[int | None, Mark.NO_OPTION] = Field(
        default=None, gt=0, le=_MOST_TIME_STEPS, description="T of the diffusion."
    )
    student_start: Annotated[Literal["xavier", "teacher"] | None, Mark.NO_OPTION] = None
    teacher_guidance: FileNumber = Field(default=None, ge=0, description="w of Eq. 5.")
    teacher_weight: FileNumber = Field(default=None, ge=0, description="MSE-T; 0 leaves it out.")
    data_weight: FileNumber = Field(default=None, ge=0, description="MSE; 0 leaves it out.")
    adversarial_weight: FileNumber = Field(
        default=None, ge=0, description="λ; 0 leaves the discriminator out."
    )
    weighting: Annotated[Literal["noise", "image"] | None, Mark.NO_OPTION] = None
    student_conditioning: FileFlag = None
    discriminator_conditioning: FileFlag = None
    concatenation: Annotated[Literal["batch", "channels"] | None, Mark.NO_OPTION] = None
    student_label_drop: FileNumber = Field(default=None, ge=0, lt=1)
    synthetic_images: Annotated[int | None, Mark.NO_OPTION] = Field(
        default=None, gt=0, le=_MOST_PUBLIC_IMAGES
    )


class TrainingOptions(Settings):
    """Settings of a private training that its caller may choose; `None` takes the profile's."""

    profile: Literal["quick", "paper"] = Field(
        default="quick", description="quick: minutes on two cores; paper: the paper's settings."
    )
    conditional: bool | None = Field(default=None, description="Whether the network learns labels.")
    labels: Literal["own", "kmeans"] = Field(
        default="own", description="own, or kmeans: clusters of the public images."
    )
    clusters: int = Field(
        default=10, ge=2, le=_MOST_CLUSTERS, description="Number of clusters, with --labels kmeans."
    )
    adjacency: Annotated[Literal["zero-out", "replace", "add-remove"], Topic.PRIVACY] = Field(
        default="zero-out", description="zero-out, replace or add-remove (without Phase I)."
    )
    size: Literal["tiny", "small", "medium", "large"] | None = Field(
        default=None, description="Size of the U-Net."
    )
    start: Literal["mixture", "none"] | None = Field(
        default=None,
        description="mixture: pre-train on samples of a private mixture; default where it helps.",
    )
    start_share: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Share of the budget (μ²) for the mixture; the rest is for training.",
    )
    pretrain_data: Annotated[str | None, Metavar("[shapes|none|NAME]")] = Field(
        default=None, description=PUBLIC_IMAGES
    )
    pretrain_epochs: float | None = Field(
        default=None,
        gt=0,
        le=_MOST_PUBLIC_EPOCHS,
        description="Passes over the public images or samples.",
    )
    pretrain_batch: Annotated[int | None, Mark.NO_OPTION] = Field(
        default=None, gt=0, le=_MOST_PUBLIC_IMAGES
    )
    pretrain_lr: FileNumber = Field(default=None, gt=0)
    ema_decay: FileNumber = Field(default=None, ge=0, lt=1)
    sampling_steps: int | None = Field(
        default=None, gt=0, le=_MOST_TIME_STEPS, description="T' of the sampler."
    )
    guidance: float | None = Field(default=None, ge=0, description="w of the sampler.")
    dp_promise: DpPromiseOptions = DpPromiseOptions()
    dp_sad: DpSadOptions = DpSadOptions()


class SynthesizeSettings(TrainingOptions, RunOptions, LedgerOptions):
    """All settings of `fedtranscribe synthesize`."""

    method: Literal["dp-promise", "dp-sad"] = Field(
        default="dp-promise", description="Training algorithm."
    )
    data: Annotated[str, Mark.UNTOLD, Topic.DATA, Metavar("NAME|PATH")] = Field(
        default="digits", description=DATA
    )
    noise: Annotated[bool, Topic.PRIVACY] = Field(
        default=True, description="Add noise; without it: a baseline that is NOT private."
    )
    evaluate: Annotated[bool, Mark.RESUMABLE, Topic.RUN] = Field(
        default=True, description="Test a CNN trained on samples."
    )
    samples: Annotated[int, Mark.RESUMABLE, Topic.RUN] = Field(
        default=3_000, ge=60, description="Samples that the CNN is trained on."
    )
    backend: Annotated[Literal["contracted", "functional", "opacus"], Mark.RESUMABLE, Topic.RUN] = (
        Field(default="contracted", description="How gradients per record are computed.")
    )
    physical_batch: Annotated[int | None, Mark.RESUMABLE, Topic.RUN] = Field(
        default=None, gt=0, description="Records at a time; measured if left out."
    )
    checkpoint_seconds: Annotated[float, Mark.RESUMABLE | Mark.NO_OPTION] = Field(
        default=60.0, ge=0, description="Seconds between two checkpoints."
    )
