"""What a run came to: one type, written once and read by everything that looks at a finished run.

`metrics.json` holds it, and its presence says that the run is complete. `--json` prints it. Keys
stand there side by side; here they are grouped by what they are about, and a part that a kind of
run does not have is None: see `result_parts`.

Folders without a version number were written before there was one, and have the same keys.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import ValidationError, field_validator

from fedtranscribe.errors import StorageError
from fedtranscribe.files import read_json, read_object, write_atomically
from fedtranscribe.results.allowed import Listed, Why
from fedtranscribe.results.decisions import Confusion, Findings
from fedtranscribe.results.parts import (
    FLAT,
    Accuracy,
    AccuracyCurve,
    Answers,
    CountedGenerator,
    DeclaredTeachers,
    Diffusion,
    Federation,
    LedgerFacts,
    MixtureFacts,
    PublicFeatures,
    ResultPart,
    StatedGuarantee,
    Whole,
    listed,
)

METRICS = "metrics.json"
SCORES = "private/accuracy.json"
CONFUSION = "private/confusion.json"
"""All accuracies of a run, and of its teachers: for the holder alone."""

VERSION = 1
"""Of the keys and what they mean; larger where an older reader would misread them."""


class RunSettings(ResultPart):
    """Those settings of a run that its readers need by name; others differ from kind to kind."""

    data: str = "none"
    data_root: Path | None = None
    public_data: str | None = None
    ledger: Path | None = None
    calibrate_by: str = "sound"
    samples: int | None = None
    seed: int = 0


class _Head(Whole):
    """What every result says, and a holder tells a server of a training as well."""

    run: Annotated[str, Why.PROGRESS]
    method: Annotated[str, Why.SETTING] = "dpsd"
    public_data: Annotated[str | None, Why.SETTING] = None
    guarantee: Annotated[StatedGuarantee, FLAT]


class TrainedFacts(_Head):
    """What a server learns of a finished training, and all that it takes from such a message.

    No path, no settings, and no total of the ledger.
    """

    diffusion: Annotated[Diffusion, FLAT]

    @classmethod
    def of(cls, result: "Result") -> Self:
        """That part of a holder's own result."""
        facts = {name: getattr(result, name) for name in cls.model_fields}
        return cls.model_validate(facts)


class Result(_Head):
    """The result of a run."""

    version: Annotated[int, Why.PROGRESS] = VERSION  # of the file
    # that were learned from; answers where sums were asked for, 1 for a trained network
    rows: Annotated[int, Why.PROGRESS] = 0
    answers: Annotated[Answers | None, FLAT] = None
    federation: Annotated[Federation | None, FLAT] = None
    diffusion: Annotated[Diffusion | None, FLAT] = None
    data: Annotated[str | None, Why.SETTING] = None  # name of the records
    data_id: Annotated[str | None, Why.SETTING] = None  # of the records, where it may be known
    public_data_id: Annotated[str | None, Why.SETTING] = None
    # what labels are called; None where nobody said
    class_names: Annotated[tuple[str, ...] | None, Why.SETTING] = None
    generator: CountedGenerator | None = None
    mixture: MixtureFacts | None = None
    features: PublicFeatures | None = None
    declared_teachers: DeclaredTeachers | None = None
    # that a student's logits were given, so that it is as sure as it is right; None where no answer
    # said how sure it may be
    logit_scale: Annotated[float | None, Why.OUTPUT] = None
    ledger: LedgerFacts | None = None
    accuracy: Accuracy | None = None  # None, or empty, where it may not be told
    # which images it was measured on, in words
    accuracy_on: Annotated[str | None, Why.PROGRESS] = None
    # of the student; None where it may not be told, and where labels are of the other kind: one per
    # image, or several
    confusion: Confusion | None = None
    findings: Findings | None = None
    curve: AccuracyCurve | None = None
    settings: Annotated[dict[str, Any], Why.SETTING]  # of the run, resolved

    @field_validator("settings")
    @classmethod
    def _named(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Refuse settings that readers would stumble over."""
        RunSettings.model_validate(settings)
        return settings

    @property
    def asked(self) -> RunSettings:
        """The settings that readers need by name."""
        return RunSettings.model_validate(self.settings)

    @property
    def shards(self) -> dict[str, int]:
        """Teachers by holder; empty outside of a federation."""
        return {} if self.federation is None else self.federation.shards

    @property
    def teachers(self) -> int | None:
        """Disjoint teachers over all holders; None for a run without any."""
        alone = None if self.answers is None else self.answers.teachers
        return sum(self.shards.values()) or alone

    @property
    def says_data_id(self) -> bool:
        """Whether it names the data id, be it as unknown; early versions left that out."""
        return self.federation is not None or "data_id" in self.model_fields_set

    def to_json(self) -> dict[str, Any]:
        """As `metrics.json` and `--json` have it."""
        return {"version": self.version, **super().to_json()}

    def write(self, folder: Path) -> None:
        """Write it, last of all, into a run's folder."""
        write_atomically(folder / METRICS, json.dumps(self.to_json(), indent=2).encode())

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The result of the finished run in a folder."""
        path = folder / METRICS
        if not path.exists() and not (folder / "config.toml").exists():
            raise StorageError(f"No run in {folder}; give the folder of a finished one.")
        if not path.exists():
            raise StorageError(
                f"The run in {folder} is not finished; repeat the command that began it with "
                "--resume."
            )
        try:
            content = read_json(path)
            _expect_known(path, content)
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            why = f" ({where}: {first['msg']})" if where else ""
        except (OSError, ValueError):
            why = ""
        raise StorageError(f"{path} is damaged; a run's result cannot be read from it{why}.")


def _expect_known(path: Path, content: Any) -> None:
    version = content.get("version", VERSION) if isinstance(content, Mapping) else VERSION
    if isinstance(version, int) and version > VERSION:
        raise StorageError(
            f"{path} has version {version}, and this fedtranscribe reads up to {VERSION}; use the "
            "version of fedtranscribe that made the run, or a later one."
        )


REASONS: Listed = listed(Result)
"""Every key of `metrics.json`, with why it may stand there."""


# ---------------------------------------------------------------- for the person who runs it


@dataclass(frozen=True)
class ScoredResult:
    """A result with all accuracies, for the terminal of the person who runs it, and for no file."""

    result: Result  # as `metrics.json` has it
    accuracy: Mapping[str, float | None]  # all of them
    # Names of those that no file outside `private/` may hold. They are functions of private
    # records: do not publish them.
    not_private: tuple[str, ...]
    # of the student, see `Result`; private where `result` has none
    confusion: Confusion | None = None
    findings: Findings | None = None

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        facts = self.result.to_json()
        parts = {"confusion": self.confusion, "findings": self.findings}
        found = {name: part.to_json() for name, part in parts.items() if part is not None}
        scores = {"accuracy": dict(self.accuracy), "not_private": [*self.not_private]}
        return {**facts, **scores, **found}


def with_private_scores(folder: Path, result: Result) -> ScoredResult:
    """A result, and beside it what the run's folder keeps under `private/`."""
    public_scores = {} if result.accuracy is None else result.accuracy.to_json()
    scores = read_object(folder / SCORES) or {}
    hidden = [name for name in scores if name not in public_scores]
    confusion, findings = result.confusion, result.findings
    stored = read_object(folder / CONFUSION)
    if stored and confusion is None and findings is None:
        if "counts" in stored:
            confusion = Confusion.model_validate(stored)
        else:
            findings = Findings.model_validate(stored)
        hidden.append("findings" if confusion is None else "confusion")
    return ScoredResult(result, {**scores, **public_scores}, tuple(hidden), confusion, findings)
