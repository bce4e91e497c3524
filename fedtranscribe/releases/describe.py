"""A finished run -> what its release says about privacy, and when that has to be a stamp."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtranscribe import __version__
from fedtranscribe.config import PUBLIC_SHAPES
from fedtranscribe.data import is_benchmark
from fedtranscribe.errors import AuditError, ConfigError, PrivacyError, StorageError
from fedtranscribe.files import read_json, read_json_lines
from fedtranscribe.releases.loading import classes_of, unfit_threshold, unvouched
from fedtranscribe.releases.recomputed import agree, by_adjacency, by_holder, by_unit, recompute
from fedtranscribe.releases.statement import (
    COMPOSITION,
    SCHEMA,
    Choice,
    HolderRelease,
    LedgerTotal,
    PrivacyStatement,
    PublicWeights,
    ReleaseRecord,
    StatedPublished,
    StatedTeachers,
    StatedThreshold,
    stamp_of,
)
from fedtranscribe.results.parts import Answers, Federation, LedgerFacts
from fedtranscribe.results.result import SCORES, Result
from fedtranscribe.results.run_directory import DAMAGED
from fedtranscribe.runs.finished import FinishedRun

THE_HOLDER = "the holder"
"""How events of a local run, which has one holder without a name, call it."""

_ALONE = Federation(holders=1)
_NOBODY = "nobody: everything ran at the holder, which added the noise"
_OWN_DATA = "a private set of the holder"
_OWN_PUBLIC_DATA = "a set that the holder calls public"
_LISTED = (
    "whether to release this run at all, or this one of several: its accuracy on the holder's own "
    "held-out records was shown to the holder"
)


def describe(
    run: FinishedRun, choices: Sequence[str] = (), threshold: StatedThreshold | None = None
) -> PrivacyStatement:
    """What a release of a run has to say; its `files` are still to come."""
    if threshold is not None and (wrong := unfit_threshold(run.student, threshold)) is not None:
        raise ConfigError(
            f"Expected a threshold for two classes, or of several labels one for each: {wrong}."
        )
    try:
        return _describe(run, choices).model_copy(update={"threshold": threshold})
    except DAMAGED:
        raise StorageError(
            f"The result of the run in {run.path} is damaged, or of another version; "
            "nothing can be released from it."
        ) from None


def _describe(run: FinishedRun, choices: Sequence[str]) -> PrivacyStatement:
    result, stated = run.result, run.result.guarantee
    answers, federation = result.answers or Answers(), result.federation or _ALONE
    events = _events(run)
    unit, adjacency, delta = stated.unit, stated.adjacency, stated.delta
    holder_events = by_holder(events)
    headline = recompute(holder_events, unit, adjacency, delta)
    _expect_agreement(run, stated.epsilon, headline.epsilon if headline else None)
    statement = PrivacyStatement(
        schema=SCHEMA,
        fedtranscribe=__version__,
        run=result.run,
        method=result.method,
        epsilon=headline.epsilon if headline else None,
        delta=delta,
        unit=unit,
        adjacency=adjacency,
        accountant=headline.accountant if headline else None,
        composition=COMPOSITION,
        sound=by_adjacency(holder_events, unit, delta),
        units=by_unit(holder_events, adjacency, delta),
        published=_published(run),
        answers=answers.privacy,
        noise_std=answers.noise_std,
        noise_mode=_noise_mode(result, answers),
        trust=federation.trust or _NOBODY,
        private=_private(result),
        stamp=None,
        events=events,
        data_dependent_choices=_choices(run, choices),
        audits=_audits(run),
        ledger=_ledger(result.ledger),
        rows=result.rows,
        teachers=result.teachers or None,
        holders=federation.holders,
        shards=_shards(result),
        data=str(result.data) if is_public(run) else _OWN_DATA,
        public_data=_public_data(result.public_data),
        public_weights=_public_weights(result),
        declared_teachers=_declared_teachers(result),
        class_names=_class_names(run),
        files={},
    )
    if (wrong := unvouched(run.student, statement)) is not None:
        raise PrivacyError(
            f"Of the run in {run.path}, {wrong}; a file was changed, so nothing can be released "
            "from it."
        )
    return statement.model_copy(update={"stamp": stamp_of(statement)})


def _public_weights(result: Result) -> PublicWeights | None:
    used = result.features
    return None if used is None else PublicWeights.model_validate(used.model_dump())


def _declared_teachers(result: Result) -> StatedTeachers | None:
    declared = result.declared_teachers
    if declared is None:
        return None

    shards, weights = declared.shards, declared.weights
    if result.federation is None:  # one holder, without a name
        shards, weights = (
            dict(zip([THE_HOLDER], by.values(), strict=False)) for by in (shards, weights)
        )
    return StatedTeachers(shards=shards, weights=weights)


def is_public(run: FinishedRun) -> bool:
    """Whether the name of the data and accuracy on their held-out part may be told.

    Only for benchmarks known by name, and only where the run itself found them published. That a
    path does not exist, here and now, makes nothing public.
    """
    accuracy = run.result.accuracy
    return is_benchmark(str(run.result.data)) and accuracy is not None and bool(accuracy.to_json())


# ---------------------------------------------------------------- parts of the result


def _events(run: FinishedRun) -> tuple[HolderRelease, ...]:
    path = run.path / "events.jsonl"
    if not path.exists() and run.result.guarantee.epsilon is None:
        return ()
    try:
        return tuple(_event(line) for line in read_json_lines(path))
    except (OSError, *DAMAGED):
        raise StorageError(
            f"{path} is absent or damaged; a release has to say what the run gave away."
        ) from None


def _event(line: Mapping[str, Any]) -> HolderRelease:
    """A line of a federated run names its holder; one of a local run is the release itself."""
    federated = "holder" in line
    release = line["release"] if federated else line
    record = ReleaseRecord.model_validate_json(json.dumps(release))
    return HolderRelease(holder=line["holder"] if federated else THE_HOLDER, release=record)


def _expect_agreement(run: FinishedRun, stated: float | None, found: float | None) -> None:
    if not agree(stated, found):
        raise PrivacyError(
            f"The events of the run in {run.path} cost ε = {found}, its result says {stated}; "
            "one of the two files was changed, so nothing can be released from it."
        )


def _shards(result: Result) -> dict[str, int]:
    alone = {} if result.teachers is None else {THE_HOLDER: result.teachers}
    return result.shards or alone


def _noise_mode(result: Result, answers: Answers) -> Any:
    if result.guarantee.epsilon is None and answers.noise is None:
        return "none"
    return answers.noise or "local"


def _private(result: Result) -> bool:
    """A result that does not say where its noise came from cannot be released."""
    if result.guarantee.private is None:
        raise ValueError("private")
    return result.guarantee.private


def _audits(run: FinishedRun) -> tuple[dict[str, Any], ...]:
    """What attacks found that may be shown; a contradiction that may not be shown counts, too."""
    is_public = _audit(run, run.path / "audit.json")
    _audit(run, run.private / "audit.json")
    return tuple(is_public["findings"]) if is_public else ()


def _audit(run: FinishedRun, path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    audit = read_json(path)
    if audit["run"] != run.result.run:
        raise PrivacyError(f"{path} is of another run; repeat `fedtranscribe audit` on this one.")
    if not audit["sound"]:
        raise AuditError(
            f"{path} contradicts the guarantee of the run; nothing can be released from it."
        )
    return audit


def _published(run: FinishedRun) -> StatedPublished | None:
    figure = run.result.guarantee.published
    if figure is None:
        return None
    return StatedPublished(
        epsilon=figure.epsilon,
        reason=figure.reason,
        used_for_calibration=run.result.asked.calibrate_by == "published",
    )


def _ledger(facts: LedgerFacts | None) -> LedgerTotal | None:
    # Through JSON, because the parts take exact types only.
    return None if facts is None else LedgerTotal.model_validate_json(facts.model_dump_json())


def _choices(run: FinishedRun, chosen: Sequence[str]) -> tuple[Choice, ...]:
    for text in chosen:
        if not (0 < len(text.strip()) <= 300 and text.isprintable()):
            raise ConfigError(f"Expected --choice {text!r} as one printable line of 1 to 300.")
    found = [Choice(choice=text.strip(), charged=False, stated=True) for text in chosen]
    if not is_public(run) and (run.path / SCORES).exists():
        found.append(Choice(choice=_LISTED, charged=False, stated=False))
    return tuple(found)


# ---------------------------------------------------------------- names of data and classes


def _class_names(run: FinishedRun) -> tuple[str, ...] | None:
    """What the holder stated; a result that names more or fewer classes is damaged."""
    names = run.result.class_names
    if names is not None and len(names) != classes_of(run.student, run.generator):
        raise ValueError("class_names")
    return names


def _public_data(name: str | None) -> str | None:
    if name is None or name == "none":
        return None
    return name if name == PUBLIC_SHAPES or is_benchmark(name) else _OWN_PUBLIC_DATA
