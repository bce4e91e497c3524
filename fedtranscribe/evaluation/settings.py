"""What an evaluation can be told."""

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from fedtranscribe.config import Settings
from fedtranscribe.evaluation.classifiers import QUICK, chosen

# Ten parts of six for the Inception Score, and a sixth of it to choose networks by.
LEAST_SAMPLES = 60


class EvaluationSettings(Settings):
    """Everything `fedtranscribe evaluate` can be told; all of it is public."""

    samples: int | None = Field(
        default=None,
        ge=LEAST_SAMPLES,
        description="synthetic images to draw; 10,000, but of a diffusion model what its run drew",
    )
    classifiers: tuple[str, ...] = Field(
        default=QUICK,
        description="all, quick, none, or names by commas",
    )
    max_train: int = Field(
        default=10_000,
        ge=2,
        description="most samples that scikit-learn and xgboost train on; 60,000 take some hours",
    )
    epochs: int = Field(default=50, gt=0, description="most passes of MLP and CNN")
    patience: int = Field(
        default=5,
        gt=0,
        description="passes without a better score on synthetic validation data, then it ends",
    )
    fidelity: bool = Field(default=True, description="measure FID, IS, precision and recall")
    inception: Path | None = Field(default=None, description="Inception weights for fidelity")
    download: bool = Field(default=False, description="let torch-fidelity fetch Inception weights")
    data_root: Path | None = Field(default=None, description="where data sets lie")
    device: str = "auto"
    seed: int = Field(default=0, ge=0)

    @field_validator("classifiers", mode="before")
    @classmethod
    def _resolve(cls, value: Any) -> Any:
        return chosen(value) if isinstance(value, str) else chosen(",".join(value))

    @model_validator(mode="after")
    def _one_source(self) -> "EvaluationSettings":
        if self.inception is not None and self.download:
            raise ValueError("Expected --inception or --download, not both.")
        return self
