"""Settings of what is done with finished runs: `evaluate` and `audit`; all of them are public."""

import difflib
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from fedtranscribe.config.base import Mark, Metavar, Topic
from fedtranscribe.config.run import Place

# Ten parts of six for the Inception Score, and a sixth of it to choose networks by.
LEAST_SAMPLES = 60

NETS = ("mlp", "cnn")
SKLEARN = (
    "logistic-regression",
    "random-forest",
    "gaussian-nb",
    "bernoulli-nb",
    "linear-svc",
    "decision-tree",
    "lda",
    "adaboost",
    "sklearn-mlp",
    "bagging",
    "gradient-boosting",
)
XGBOOST = "xgboost"
CLASSIFIERS = (*NETS, *SKLEARN, XGBOOST)
# The others take longer than these together.
QUICK = (
    *NETS,
    "logistic-regression",
    "random-forest",
    "gaussian-nb",
    "bernoulli-nb",
    "decision-tree",
    "lda",
    "bagging",
)

_AT = re.compile(r"(sensitivity|specificity)=(0?\.\d*[1-9]\d*|1(\.0*)?)")

ATTACKS = ("game", "loss", "reference", "generator", "inversion", "canaries")
ON_RECORDS = ATTACKS[1:]
"""Those that rest on private records."""


class CanaryKind(StrEnum):
    """What a canary looks like."""

    PATTERN = "pattern"
    """Random pixels with a random label: nothing else teaches them."""
    MISLABELLED = "mislabelled"
    """A copy of a private record under a wrong label."""


# Typed as a user would: validators turn the words into names.
_QUICK: Any = "quick"
_ALL: Any = "all"


class EvaluationSettings(Place):
    """Settings of `fedtranscribe evaluate`; all of them are public."""

    samples: int | None = Field(
        default=None,
        ge=LEAST_SAMPLES,
        description="Synthetic images to draw; default: 20,000, for a diffusion model as many "
        "as its run drew.",
    )
    classifiers: Annotated[tuple[str, ...], Metavar("[all|quick|none|NAMES]")] = Field(
        default=_QUICK, description="all, quick, none, or names by commas."
    )
    max_train: int = Field(
        default=10_000,
        ge=2,
        description="Samples for scikit-learn and xgboost at most; 60,000 take some hours.",
    )
    epochs: Annotated[int, Mark.NO_OPTION] = Field(
        default=50, gt=0, description="Epochs of MLP and CNN at most."
    )
    patience: Annotated[int, Mark.NO_OPTION] = Field(
        default=5,
        gt=0,
        description="Epochs without a better score on synthetic validation data before training "
        "stops.",
    )
    at: Annotated[str | None, Metavar("sensitivity|specificity=SHARE")] = Field(
        default=None,
        description="Two classes, or several labels per image: the threshold of each with at least "
        "this sensitivity or specificity on real held-out images, and the other one there.",
    )
    inception: Path | None = Field(
        default=None, description="Inception weights of torch-fidelity, for FID and IS."
    )
    download: bool = Field(
        default=False, description="Let torch-fidelity fetch its Inception weights."
    )
    fidelity: bool = Field(default=True, description="Measure FID, IS, precision and recall.")
    seed: Annotated[int, Topic.RUN] = Field(
        default=0, ge=0, description="Seed of samples and classifiers."
    )

    @field_validator("classifiers", mode="before")
    @classmethod
    def _resolve(cls, value: Any) -> Any:
        return _classifiers(value if isinstance(value, str) else ",".join(value))

    @field_validator("at")
    @classmethod
    def _check_at(cls, value: str | None) -> str | None:
        if value is not None and not _AT.fullmatch(value):
            raise ValueError("expected sensitivity=SHARE or specificity=SHARE, above 0 and up to 1")
        return value

    @model_validator(mode="after")
    def _one_source(self) -> "EvaluationSettings":
        if self.inception is not None and self.download:
            raise ValueError("Expected --inception or --download, not both.")
        return self


class AuditSettings(Place):
    """Settings of `fedtranscribe audit`; all of them are public."""

    attacks: Annotated[tuple[str, ...], Metavar("[all|none|NAMES]")] = Field(
        default=_ALL, description=f"all, none, or some of {', '.join(ATTACKS)}."
    )
    confidence: float = Field(
        default=0.99, gt=0, lt=1, description="Confidence of all bounds of a run together."
    )
    records: int = Field(default=4_000, ge=10, description="Records to attack, at most.")
    trials: int = Field(
        default=1_000_000,
        ge=1_000,
        description="Answers that the attack `game` sees in each of its two worlds.",
    )
    references: int = Field(
        default=8, ge=2, multiple_of=2, description="Networks that the attack `reference` trains."
    )
    reference_steps: Annotated[int, Mark.NO_OPTION] = Field(
        default=150, gt=0, description="Training steps of each reference network."
    )
    samples: Annotated[int | None, Mark.NO_OPTION] = Field(
        default=None,
        gt=0,
        description="Synthetic images to draw; default: 5,000, fewer for a diffusion model.",
    )
    starts: Annotated[int, Mark.NO_OPTION] = Field(
        default=4, gt=0, description="Inversions per class."
    )
    inversion_steps: Annotated[int, Mark.NO_OPTION] = Field(
        default=150, gt=0, description="Steps of each inversion."
    )
    canaries: Path | None = Field(
        default=None, description="canaries.npz of `fedtranscribe plant`."
    )
    ledger: Path | None = Field(
        default=None, description="Ledger to check, if the run does not name it."
    )
    seed: Annotated[int, Topic.RUN] = Field(default=0, ge=0, description="Seed of the attacks.")

    @field_validator("attacks", mode="before")
    @classmethod
    def _resolve(cls, value: Any) -> Any:
        return _attacks(value if isinstance(value, str) else ",".join(value) or "none")


def _classifiers(words: str) -> tuple[str, ...]:
    groups = {"all": CLASSIFIERS, "quick": QUICK, "none": ()}
    return _chosen(words, CLASSIFIERS, groups, "classifier")


def _attacks(words: str) -> tuple[str, ...]:
    # Canaries have to be planted before the run.
    return _chosen(words, ATTACKS, {"all": ATTACKS[:-1], "none": ()}, "attack")


def _chosen(
    words: str, known: tuple[str, ...], groups: Mapping[str, tuple[str, ...]], what: str
) -> tuple[str, ...]:
    """What a user means, in the order of `known`."""
    if words in groups:
        return groups[words]
    names = [name.strip() for name in words.split(",") if name.strip()]
    for name in names:
        if name not in known:
            every = [*groups, *known]
            close = difflib.get_close_matches(name, every, n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(every)}"
            raise ValueError(f"no {what} {name!r}; {hint}")
    return tuple(name for name in known if name in names)
