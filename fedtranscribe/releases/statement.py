"""What `privacy.json` says, as types; `privacy.schema.json` is generated from them."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    model_validator,
)

from fedtranscribe.config import LONGEST_NAME, is_name
from fedtranscribe.config.catalogue import STATEMENT, no_release
from fedtranscribe.errors import FedtranscribeError, PrivacyError
from fedtranscribe.files import read_bounded
from fedtranscribe.privacy.events import MOST_COUNT
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.text import printable

CARD = "card.md"
SCHEMA = "fedtranscribe-privacy-1"
SCHEMA_FILE = Path(__file__).with_name("privacy.schema.json")

COMPOSITION = "answers of one holder add up; of several holders the worst one counts"
"""Why no sum over holders: a record or a holder is touched by one holder's answers only."""

_Epsilon = Annotated[float, Field(ge=0)]
_Count = Annotated[int, Field(ge=0, le=MOST_COUNT)]


LOUD = "NOT PRIVATE. DO NOT RELY ON ANY FIGURE OF PRIVACY IN THIS RELEASE:"
"""How every stamp begins."""


def _expect_printable(text: str) -> str:
    if printable(text, len(text)) != text:
        raise ValueError("expected one line of printable characters")
    return text


def _expect_name(name: str) -> str:
    if not is_name(name):
        raise ValueError("expected printable characters")
    return name


_Text = Annotated[str, Field(max_length=100_000), AfterValidator(_expect_printable)]
_Line = Annotated[_Text, Field(max_length=2_000)]
_Name = Annotated[_Text, Field(min_length=1, max_length=500)]
_ClassName = Annotated[
    str, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(_expect_name)
]
# What cards show as code: no character that ends it.
_Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+-]{0,99}$")]
# Letters that make no path: what a statement lists can only lie in its own folder.
_FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
_Network = Annotated[str, Field(pattern=r"^(timm/)?[A-Za-z0-9_.-]{1,80}$")]
_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Part(BaseModel):
    """Base of all parts: immutable, of exact types, without unknown names."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class ReleaseRecord(_Part):
    """One line of `events.jsonl` in the accountant's words; see `privacy.MechanismRelease`."""

    mechanism: _Name
    rows: Annotated[int, Field(ge=1, le=MOST_COUNT)]
    costs: dict[Unit, dict[Adjacency, dict[str, JsonValue]]]

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        """Refuse what the accountant would not read: a count of 1.5, a μ of 1e300, other fields."""
        try:
            self.release()
        except FedtranscribeError as error:
            raise ValueError(str(error)) from None
        return self

    def release(self) -> MechanismRelease:
        """The same for the accountant."""
        return MechanismRelease.from_json(self.model_dump(mode="json"))


class HolderRelease(_Part):
    """What one holder gave away."""

    holder: _Name
    release: ReleaseRecord


class StatedPublished(_Part):
    """The paper's own figure, which is no guarantee."""

    epsilon: float | None = Field(description="null where the formula has no finite value")
    reason: _Line = Field(description="why it is no guarantee")
    used_for_calibration: bool = Field(description="whether the noise was chosen by it")


class Choice(_Part):
    """Something that was, or may have been, chosen by looking at private data."""

    choice: _Name
    charged: bool = Field(description="whether its cost is part of ε")
    stated: bool = Field(
        description="true: the publisher says that it was made; false: the run made it possible, "
        "and by leaving it out the publisher says that it was not made"
    )


class PublicWeights(_Part):
    """The network whose features the student is linear in; the guarantee takes it as public."""

    network: _Network
    side: _Count = Field(description="pixels a side that images are brought to")
    sha256: _Sha256 = Field(description="of the file of its weights")
    declared_by: _Name = Field(
        description="who declares that these weights never saw the private records"
    )

    @property
    def student(self) -> str:
        """The architecture of a student that is linear in these features."""
        return f"{self.network}/{self.side}@{self.sha256}"


class StatedTeachers(_Part):
    """On whose word teachers rest, by holder; the guarantee of their answers needs it."""

    shards: dict[_Name, _Name] = Field(
        description="who declares that networks trained elsewhere learned from disjoint shards"
    )
    weights: dict[_Name, _Name] = Field(
        description="who declares that the weights teachers began with never saw private records"
    )


_Probability = Annotated[float, Field(gt=0, le=1)]


class StatedThreshold(_Part):
    """From which probability of the second class on a student of two classes names it.

    Of a student of several labels per image: from which one of each class, in their order.
    """

    probability: _Probability | tuple[_Probability, ...]
    chosen_on: _Name = Field(
        description="the images that it was chosen on, which the publisher declares to be public"
    )


class StatedLimit(_Part):
    """The ε of all runs on the same data together, whatever was chosen by what was seen."""

    epsilon: _Epsilon = Field(description="the highest limit that the ledger ever had")
    delta: float = Field(gt=0, lt=1)
    unit: Unit
    adjacency: Adjacency


class LedgerTotal(_Part):
    """What the ledger of the data said when this run ended."""

    booked: _Epsilon | None = Field(
        description="what all runs on the same data had booked; no ε, because when to stop could "
        "be chosen; null where an earlier run has no cost in this unit and adjacency"
    )
    accountant: _Name
    limit: StatedLimit | None = Field(description="null: the ledger answered without a limit")


class PrivacyStatement(_Part):
    """The privacy of one release, for programs; `card.md` says the same to people."""

    model_config = ConfigDict(title=SCHEMA, serialize_by_alias=True)

    schema_: Literal["fedtranscribe-privacy-1"] = Field(alias="schema")
    fedtranscribe: _Word = Field(description="version that made the release")
    run: _Name
    method: _Word
    epsilon: _Epsilon | None = Field(description="the headline; null: no guarantee at all")
    delta: float = Field(gt=0, lt=1)
    unit: Unit
    adjacency: Adjacency
    accountant: _Name | None
    composition: Literal["answers of one holder add up; of several holders the worst one counts"]
    sound: dict[Adjacency, _Epsilon] = Field(description="ε for `unit`, by adjacency")
    units: dict[Unit, _Epsilon] = Field(description="ε under `adjacency`, by unit")
    published: StatedPublished | None
    answers: _Word | None = Field(description="what holders answered: vote, data or label")
    noise_std: Annotated[float, Field(gt=0)] | None
    noise_mode: Literal["local", "central", "secagg", "none"]
    trust: _Line = Field(description="whom the holders had to trust")
    private: bool = Field(description="false for seeded noise and for methods without privacy")
    stamp: _Text | None = Field(description="why this must not be taken for private; else null")
    events: tuple[HolderRelease, ...]
    data_dependent_choices: tuple[Choice, ...]
    audits: tuple[dict[str, JsonValue], ...]
    ledger: LedgerTotal | None
    rows: _Count
    teachers: _Count | None
    holders: Annotated[int, Field(ge=1, le=MOST_COUNT)]
    shards: dict[_Name, _Count] = Field(description="disjoint teachers, by holder")
    data: _Name
    public_data: _Name | None
    public_weights: PublicWeights | None = Field(
        default=None, description="null: no network was used that had learned from data"
    )
    declared_teachers: StatedTeachers | None = Field(
        default=None, description="null: of the teachers that were asked nothing was declared"
    )
    class_names: tuple[_ClassName, ...] | None = Field(
        default=None, description="what the classes are called, in order; null: nobody named them"
    )
    threshold: StatedThreshold | None = Field(
        default=None, description="null: the likelier class is named"
    )
    files: dict[_FileName, _Sha256] = Field(description="SHA-256 of every other file")

    def to_bytes(self) -> bytes:
        """As it stands in `privacy.json`."""
        values = self.model_dump(mode="json", by_alias=True)
        return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()


def schema() -> dict[str, Any]:
    """The JSON schema of `privacy.json`; `SCHEMA_FILE` holds the same."""
    generated = PrivacyStatement.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **generated}


def read_statement(folder: Path) -> PrivacyStatement:
    """What the release in a folder says of itself.

    Raises:
        StorageError: the folder holds no release.
        PrivacyError: `privacy.json` is damaged or of another version; names what is wrong first.
    """
    path = folder / STATEMENT
    try:
        content = read_bounded(path)
    except OSError as error:
        raise no_release(folder, error.strerror) from None
    except ValueError as error:
        raise PrivacyError(f"{path} is no {SCHEMA}: {error}; fetch the release again.") from None
    try:
        return PrivacyStatement.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = printable(".".join(map(str, first["loc"])) or "the file", 200)
        raise PrivacyError(
            f"{path} is no {SCHEMA}: {where}: {first['msg']}; fetch the release again."
        ) from None


def reasons(statement: PrivacyStatement) -> list[str]:
    """Why the guarantee of a release does not hold; empty where it does."""
    found = []
    if statement.epsilon is None:
        found.append(
            f"method {statement.method} gives no guarantee at all for unit={statement.unit.value} "
            f"under adjacency={statement.adjacency.value}"
        )
    elif not statement.private:
        found.append("its noise came from a seed; anyone who knows the seed can remove it")
    found += [
        f"chosen by looking at private data, and not charged: {choice.choice}"
        for choice in statement.data_dependent_choices
        if choice.stated and not choice.charged
    ]
    return found


def stamp_of(statement: PrivacyStatement) -> str | None:
    """The stamp that a release must carry; None where it needs none."""
    found = reasons(statement)
    return f"{LOUD} {'; '.join(found)}." if found else None


def refuse_unstamped(statement: PrivacyStatement) -> None:
    """Stop what nobody agreed to stamp.

    Raises:
        PrivacyError: says why it would need a stamp, and how to give it one.
    """
    found = reasons(statement)
    if found:
        raise PrivacyError(
            f"This run cannot be released as private: {'; '.join(found)}. "
            "Make a run without that, or add --stamp-not-private to release it with a stamp that "
            "says so."
        )
