"""What an audit can be told."""

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from fedtranscribe.config import Settings
from fedtranscribe.evaluation.choices import chosen_names

ATTACKS = ("game", "loss", "reference", "generator", "inversion", "canaries")
ON_RECORDS = ATTACKS[1:]
"""Those that rest on private records."""

_USUAL = ATTACKS[:-1]
_GROUPS = {"all": _USUAL, "none": ()}


def chosen(words: str) -> tuple[str, ...]:
    """The attacks that a user means, in the order of `ATTACKS`.

    Args:
        words: all (but canaries, which have to be planted), none, or names by commas.

    Raises:
        ValueError: a name is unknown; suggests close ones.
    """
    return chosen_names(words, ATTACKS, _GROUPS, "attack")


class AuditSettings(Settings):
    """Everything `fedtranscribe audit` can be told; all of it is public."""

    attacks: tuple[str, ...] = Field(default=_USUAL, description="all, none, or names by commas")
    confidence: float = Field(default=0.99, gt=0, lt=1, description="of all bounds together")
    trials: int = Field(default=1_000_000, ge=1_000, description="of the game, in each world")
    records: int = Field(default=4_000, ge=10, description="at most so many suspects")
    references: int = Field(default=8, ge=2, multiple_of=2, description="reference networks")
    reference_steps: int = Field(default=150, gt=0, description="training steps of each of them")
    samples: int | None = Field(
        default=None, gt=0, description="synthetic images; 5,000, but of a diffusion model fewer"
    )
    starts: int = Field(default=4, gt=0, description="inversions per class")
    inversion_steps: int = Field(default=150, gt=0, description="steps of each inversion")
    canaries: Path | None = Field(default=None, description="the secret of `fedtranscribe plant`")
    data_root: Path | None = Field(default=None, description="where data sets lie")
    ledger: Path | None = Field(default=None, description="the data's ledger, if it was moved")
    device: str = "auto"
    seed: int = Field(default=0, ge=0)

    @field_validator("attacks", mode="before")
    @classmethod
    def _resolve(cls, value: Any) -> Any:
        return chosen(value) if isinstance(value, str) else chosen(",".join(value) or "none")
