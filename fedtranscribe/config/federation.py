"""Settings of federated runs; Flower's run-config and the command line build them alike."""

from typing import Annotated, Literal

from pydantic import Field

from fedtranscribe.config.base import CIRCUMSTANCE, Mark, Settings
from fedtranscribe.config.run import DATA
from fedtranscribe.config.student import StudentSettings, TeacherSettings
from fedtranscribe.config.training import TrainingOptions


class BaselineSettings(Settings):
    """FedAvg, FedDF and DENSE: federated learning WITHOUT privacy, to compare with."""

    rounds: int = Field(default=10, gt=0, description="Rounds of FedAvg.")
    local_steps: int = Field(
        default=100,
        gt=0,
        description="Steps per round at a holder; FedDF and DENSE take all rounds' steps in one.",
    )
    batch: int = Field(default=64, gt=1)
    lr: float = Field(default=1e-3, gt=0)
    augment: float = Field(default=0.5, ge=0, le=2)
    distil_steps: int = Field(default=2_000, gt=0, description="Student steps of FedDF and DENSE.")
    distil_lr: float = Field(default=1e-3, gt=0)
    generator_lr: float = Field(default=1e-3, gt=0)
    pool: int = Field(default=8_000, gt=0, description="Images that DENSE keeps to distil on.")


class RoundSettings(Settings):
    """How rounds go on when holders fail or are silent."""

    quorum: Annotated[int | None, Mark.RESUMABLE | Mark.INCIDENTAL] = Field(
        default=None, gt=0, description="Fewest answers per round; none: more than half."
    )
    retries: Annotated[int, CIRCUMSTANCE] = Field(
        default=2, ge=0, description="How often a silent holder is asked again."
    )
    retry_after: Annotated[float, CIRCUMSTANCE] = Field(
        default=2.0, ge=0, description="Seconds before a silent holder is asked again; doubles."
    )
    on_exhausted: Literal["continue", "stop"] = Field(
        default="continue", description="Whether the run goes on when a holder's budget is spent."
    )
    abandon: Annotated[bool, Mark.RESUMABLE] = Field(
        default=False,
        description="secagg, with resume: repeat the query of a stuck round; it costs again.",
    )


class FederationSettings(StudentSettings, RoundSettings):
    """Settings of a federated run; Flower's run-config and the command line build them alike.

    The last block describes a simulation, where one machine plays all holders.
    """

    method: Literal["feddpsd", "fedavg", "feddf", "dense", "dp-promise", "dp-sad"] = Field(
        default="feddpsd",
        description="dp-promise and dp-sad train at one holder; the others have no privacy.",
    )
    trainer: str | None = Field(
        default=None,
        description="Holder that trains; none: the first that can; all: each, its own network.",
    )
    slice_seconds: Annotated[float, Mark.RESUMABLE] = Field(
        default=60.0,
        gt=0,
        description="Seconds of training per message; then the holder reports its progress.",
    )
    training: TrainingOptions = TrainingOptions()
    noise: Literal["local", "secagg", "central"] = Field(
        default="local", description="Who adds the noise; a holder may insist on more protection."
    )
    dropouts: int | None = Field(
        default=None,
        ge=0,
        description="secagg: holders that may be missing from a sum; none: as many as all "
        "policies allow.",
    )
    timeout: Annotated[float, CIRCUMSTANCE] = Field(
        default=600.0, gt=0, description="Seconds to wait for a round's answers."
    )
    first_timeout: Annotated[float, CIRCUMSTANCE] = Field(
        default=3_600.0, gt=0, description="Seconds to wait until the holders are ready."
    )
    resume: Annotated[bool, CIRCUMSTANCE] = Field(
        default=False, description="Continue the run in --out."
    )
    force: Annotated[bool, CIRCUMSTANCE] = Field(
        default=False, description="Run even if the forecast says that nothing can be learned."
    )

    data: Annotated[str, Mark.UNTOLD] = Field(default="digits", description=DATA)
    holders: int = Field(default=5, gt=0, description="Data holders, a Flower node each.")
    alpha: float = Field(
        default=0.5,
        gt=0,
        description="α of the Dirichlet partition by label; smaller is more skewed.",
    )
    shards: int = Field(default=50, gt=0, description="Disjoint teachers per holder.")
    colluders: int | None = Field(
        default=None, ge=0, description="secagg: holders that may collude with the server; none: 1."
    )
    teacher: str = "cnn"
    teacher_mode: Literal["auto", "full", "heads"] = "auto"
    teachers: TeacherSettings = TeacherSettings()
    baseline: BaselineSettings = BaselineSettings()
