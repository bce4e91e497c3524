"""Settings of runs that teach a student: `transcribe`, and what federated runs share with it."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedtranscribe.config.base import CIRCUMSTANCE, Mark, Metavar, Settings, Topic
from fedtranscribe.config.run import (
    DATA,
    LONGEST_NAME,
    MOST_RECORDS,
    PUBLIC_IMAGES,
    PUBLIC_SHAPES,
    SCRATCH,
    LedgerOptions,
    RunOptions,
)

STUDENT = "cnn-wide"


class TeacherSettings(Settings):
    """How one shard's teacher is trained; public, and the same for every shard."""

    steps: int = Field(
        default=150, gt=0, description="Optimiser steps per shard, whatever its size."
    )
    batch: int = Field(default=32, gt=0, description="Images per step, drawn with replacement.")
    lr: float = Field(default=2e-3, gt=0)
    weight_decay: float = Field(default=1e-2, ge=0)
    label_smoothing: float = Field(default=0.05, ge=0, lt=1)
    augment: float = Field(
        default=1.0, ge=0, le=2, description="Strength of the augmentation; 0 is none."
    )
    copies: int = Field(
        default=8, gt=0, description="Augmented views per record (frozen backbone only)."
    )


class DpsdSettings(Settings):
    """Hyper-parameters of Algorithm 1; all public."""

    rows: int = Field(default=4_000, gt=0, description="Synthetic rows asked in the whole run.")
    round_rows: int = Field(default=500, gt=0, description="Rows per round and per message.")
    top_k: int | None = Field(
        default=None, gt=0, description="Student's top-k mask; none means all classes."
    )
    batch: int = Field(default=128, gt=1)
    student_steps: int = Field(default=60, ge=0, description="Student updates per round.")
    finish_steps: int = Field(
        default=600, ge=0, description="Student updates after the last answer."
    )
    public_share: float = Field(
        default=0.5, ge=0, le=1, description="Share of the rows that are unchanged public images."
    )
    generator_steps: int = Field(default=5, ge=0, description="Generator and z updates per round.")
    moments_steps: int = Field(
        default=100, ge=0, description="Generator updates of a run that learns from moments."
    )
    sharpen_steps: int = Field(
        default=300, ge=0, description="Steps of what sharpens a mixture's images."
    )
    augment: float = Field(
        default=0.5, ge=0, le=2, description="Strength of views of answered rows."
    )
    student_lr: float = Field(default=1e-3, gt=0)
    generator_lr: float = Field(default=1e-4, gt=0)
    z_lr: float = Field(default=1e-2, gt=0)
    redraw: float = Field(
        default=0.8, ge=0, le=1, description="Share of z drawn afresh each round."
    )
    prior_weight: float = Field(
        default=0.9, ge=0, description="a in softmax(a log p_s + b evidence)."
    )
    evidence_weight: float = Field(
        default=0.6, gt=0, description="b in softmax(a log p_s + b evidence)."
    )
    one_hot_weight: float = Field(default=0.1, ge=0, description="First term of Eq. 8.")
    balance_weight: float = Field(default=1.0, ge=0, description="Second term of Eq. 8.")
    activation_weight: float = Field(default=0.1, ge=0, description="Third term of Eq. 8.")
    imitation_weight: float = Field(
        default=1.0, description="The generator's share of L_s; negative makes it adversarial."
    )
    latent_dim: int = Field(default=64, gt=0)
    generator_width: int = Field(default=32, gt=0)
    pretrain_steps: int = Field(
        default=600, ge=0, description="Generator steps on the public images."
    )


class StudentSettings(RunOptions):
    """Settings of the student side of every run; `None` means: chosen from public facts."""

    student: Annotated[str | None, Metavar("NAME")] = Field(
        default=None, description="Student architecture."
    )
    features: Annotated[str | None, Metavar("NAME")] = Field(
        default=None,
        description="Public network (resnet18, timm/…) whose features the student is linear in.",
    )
    features_weights: Annotated[str | None, CIRCUMSTANCE, Metavar("FILE|imagenet|hub:…")] = Field(
        default=None,
        description="Its weights: a file, imagenet (torchvision's), or hub:OWNER/NAME/FILE.",
    )
    features_side: int | None = Field(
        default=None, gt=0, description="Pixels a side that it sees; default: by image size."
    )
    features_declared_by: Annotated[str | None, Metavar("WHO")] = Field(
        default=None,
        min_length=1,
        max_length=LONGEST_NAME,
        description="Who declares that these weights never saw the private records; on the card.",
    )
    public_data: Annotated[str | None, Topic.DATA, Metavar("[shapes|none|NAME]")] = Field(
        default=PUBLIC_SHAPES, description=PUBLIC_IMAGES
    )
    privacy: Annotated[Literal["data", "label", "vote"], Topic.PRIVACY] = Field(
        default="vote", description="What teachers answer for each row."
    )
    unit: Annotated[Literal["record", "holder"], Topic.PRIVACY] = Field(
        default="record", description="What ε protects: a record, or a whole holder."
    )
    rows: int | None = Field(
        default=None, gt=0, description="Synthetic images to ask teachers about, in all."
    )
    top_k: int | None = Field(
        default=None, gt=0, description="Classes that the student's top-k mask keeps."
    )
    out: Annotated[Path | None, CIRCUMSTANCE, Topic.RUN] = Field(
        default=None, description="Run folder."
    )
    start: Annotated[Literal["moments", "none"] | None, Topic.PRIVACY] = Field(
        default=None,
        description="What the student starts from: noisy sums over the records, or none.",
    )
    teachers_share: Annotated[float | None, Topic.PRIVACY] = Field(
        default=None,
        ge=0,
        le=1,
        description="Share of the budget that a start leaves to teachers; default: by forecast.",
    )
    descent_rounds: Annotated[int | None, Topic.PRIVACY] = Field(
        default=None,
        ge=0,
        le=100,
        description="Rounds of gradients after the moments, for 70 % of the student's budget; "
        "default: 20, or 10 for few records, where holders allow them and no teacher is asked.",
    )
    mixture_share: Annotated[float | None, Topic.PRIVACY] = Field(
        default=None,
        ge=0,
        le=0.9,
        description="Share of the sums' budget for a mixture, the usual generator; default: by "
        "colour or grey, 0 without a generator.",
    )
    balanced: Annotated[bool, Topic.RUN] = Field(
        default=False,
        description="Let records of rare classes count more for the student, by noisy counts that "
        "are answered anyway. Sums over records only.",
    )
    sharpen: Annotated[bool, Topic.PRIVACY] = Field(
        default=True,
        description="Sharpen the mixture's images by second moments of features, class by class, "
        "for a part of its share; where records are too few for it, the plan leaves it out.",
    )
    ask: Annotated[str | None, Topic.PRIVACY, Metavar("NAMES")] = Field(
        default=None,
        description="Questions that other packages bring, by name, to ask as well; answers.json "
        "gets what comes back.",
    )
    ask_share: Annotated[float, Topic.PRIVACY] = Field(
        default=0.1, gt=0, lt=1, description="Share of the budget for all questions of --ask."
    )
    with_generator: Annotated[bool, Mark.RESUMABLE, Topic.RUN] = Field(
        default=True,
        description="Make a generator, too; later it is free, with --resume.",
    )
    dpsd: Annotated[DpsdSettings, Mark.NO_OPTION] = DpsdSettings()

    def as_stored(self) -> Self:
        """As a run stores it: what begins without a generator buys none later."""
        return self if self.with_generator else self.model_copy(update={"mixture_share": 0.0})

    @property
    def questions(self) -> tuple[str, ...]:
        """The names in `ask`, each once."""
        return tuple(dict.fromkeys(filter(None, map(str.strip, (self.ask or "").split(",")))))

    @property
    def student_architecture(self) -> str:
        """The student's architecture: the one asked for, or the default."""
        return self.student or STUDENT


class TranscribeSettings(StudentSettings, LedgerOptions):
    """Settings of `fedtranscribe transcribe`."""

    teacher: Annotated[str | None, Metavar("NAME|FOLDER")] = Field(
        default=None,
        description="Architecture (cnn, resnet50, …), or folder of `teacher train` or `import`.",
    )
    teacher_weights: Annotated[str | None, Mark.UNTOLD, Metavar("imagenet|FILE")] = Field(
        default=None, description="Public weights that teachers start from: imagenet, or a file."
    )
    teacher_weights_declared_by: Annotated[str | None, Metavar("WHO")] = Field(
        default=None,
        min_length=1,
        max_length=LONGEST_NAME,
        description="Who declares that these weights never saw the private records; on the card.",
    )
    source: Literal["moments", "teachers"] | None = Field(
        default=None, description="What the student learns from: noisy sums (moments), or teachers."
    )
    # None: the teachers' own, or the packaged digits.
    data: Annotated[str | None, Mark.UNTOLD, Topic.DATA, Metavar("NAME|PATH")] = Field(
        default=None, description=DATA
    )
    declared: Annotated[int | None, Topic.DATA] = Field(
        default=None,
        gt=0,
        le=MOST_RECORDS,
        description="Own data: about how many records there are, stated instead of counted.",
    )
    scratch_gib: Annotated[float, CIRCUMSTANCE, Topic.RUN] = Field(
        default=4.0, ge=0, allow_inf_nan=False, description=SCRATCH
    )
    generator: Annotated[Path | None, Mark.UNTOLD] = Field(
        default=None,
        description="Run of `synthesize`: teachers see its samples, its cost is added.",
    )
    shards: int | None = Field(
        default=None, gt=0, description="Number of teachers, each with records of its own."
    )
    teachers: Annotated[TeacherSettings, Mark.NO_OPTION] = TeacherSettings()

    @model_validator(mode="after")
    def _vouched_for(self) -> Self:
        """Refuse weights for which nobody vouches: every teacher would hold what they have seen."""
        if self.teacher_weights is not None and self.teacher_weights_declared_by is None:
            raise ValueError(
                f"Expected --teacher-weights-declared-by with --teacher-weights "
                f"{self.teacher_weights}: the name of the person who declares that these weights "
                "never saw the private records. The guarantee rests on it."
            )
        if self.teacher_weights is None and self.teacher_weights_declared_by is not None:
            raise ValueError(
                "Expected --teacher-weights with --teacher-weights-declared-by: imagenet or a file."
            )
        return self
