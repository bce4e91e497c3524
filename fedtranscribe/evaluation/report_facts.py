"""What a page says about a run, read from its folder; whatever is absent is left out.

The page may be passed on, so the rules of a release hold: no figure that rests on a user's own
held-out records, no name or path of their data, nothing about teachers beyond their number, of a
ledger its head and totals and never an answer. Nothing under `private/` is read, ledgers excepted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtranscribe.data import ImageSet, is_published
from fedtranscribe.errors import FedtranscribeError, LedgerError, StorageError
from fedtranscribe.evaluation.audit import AUDIT, INVERSION, OWN_DATA
from fedtranscribe.evaluation.audit_checks import HolderEvents, event_lists, read_events
from fedtranscribe.evaluation.evaluate import EVALUATION
from fedtranscribe.evaluation.findings import Claim, Risk, risk_of
from fedtranscribe.files import json_objects, read_object
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.results.allowed import public_settings
from fedtranscribe.results.decisions import Confusion, Findings
from fedtranscribe.results.parts import Accuracy, AccuracyCurve
from fedtranscribe.results.progress import PROGRESS
from fedtranscribe.results.result import Result
from fedtranscribe.runs.finished import FinishedRun

MAJORITY = "always the most frequent class"
_PUBLIC_SCORES = {
    "student": "student",
    "public_set_alone": "student, public images alone",
    "downstream": "CNN that learned from synthetic images alone",
}


@dataclass(frozen=True)
class LedgerDigest:
    """What a ledger shows of itself: never an answer."""

    holder: str  # whose it is
    sequence: int  # number of its last entry
    hash: str  # of that entry; it fixes all that were before
    queries: int  # answered or reserved, over all runs
    runs: int  # that were charged


@dataclass(frozen=True)
class RunFacts:
    """One run, as far as it may be told."""

    path: Path  # its folder; the page shows no path
    result: Result  # for figures by name
    holder_events: HolderEvents  # what holders gave away
    scores: dict[str, float]  # name -> accuracy; empty where it may not be told
    confusion: Confusion | None  # of the student; None where it may not be told
    findings: Findings | None  # the same, of several labels per image
    # held-out images of a public benchmark; None for all other data, and where the benchmark is not
    # at hand
    public: ImageSet | None
    curve: tuple[list[int], list[float]]  # answered rows and accuracies
    evaluation: Mapping[str, Any]  # what `evaluation.json` holds
    audit: Mapping[str, Any]  # what `audit.json` holds
    inversion: bytes | None  # the audit's picture; None where there is none
    progress: list[dict[str, Any]]  # lines of rounds
    risk: Risk | None  # ε in words; None without a guarantee
    ledgers: tuple[LedgerDigest, ...]  # their digests

    @property
    def method(self) -> str:
        """dpsd, feddpsd, …"""
        return self.result.method

    @property
    def is_public(self) -> bool:
        """Whether data and accuracy may be named: a public benchmark's."""
        return is_published(self.result.asked.data)

    @property
    def data(self) -> str:
        """Name of the data, where it may be told."""
        return self.result.asked.data if self.is_public else OWN_DATA

    @property
    def diffusion(self) -> bool:
        """Whether one network was trained on the records, and no rows were answered."""
        return self.result.diffusion is not None

    @property
    def taught(self) -> float | None:
        """Accuracy of a CNN that learned from synthetic images alone, where it may be told."""
        measured = (self.evaluation.get("downstream") or {}).get("cnn") if self.is_public else None
        return self.scores.get(_PUBLIC_SCORES["downstream"], measured)

    @property
    def class_names(self) -> list[str] | None:
        """What the classes are called, or their numbers; None where nobody knows how many."""
        if self.result.class_names is not None:
            return [*self.result.class_names]
        if (found := self.decisions) is not None:
            return [str(label) for label in range(found.classes)]
        return None

    @property
    def decisions(self) -> Confusion | Findings | None:
        """What the student makes of held-out images; None where it may not be told."""
        return self.confusion or self.findings

    @property
    def majority(self) -> float | None:
        """What naming the most frequent class always gets right, where it may be told."""
        if (found := self.decisions) is not None:
            return found.majority
        if self.public is None or self.public.multilabel:
            return None
        return float(self.public.labels.bincount().max()) / len(self.public)

    @property
    def baselines(self) -> dict[str, float]:
        """What accuracies are held against, by name."""
        alone = self.scores.get(_PUBLIC_SCORES["public_set_alone"])
        found = {MAJORITY: self.majority, "public images alone": alone}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def epsilon(self) -> float | None:
        """The headline; None where there is no guarantee, whatever was printed."""
        return self.result.guarantee.held

    @property
    def delta(self) -> float:
        """δ."""
        return self.result.guarantee.delta

    @property
    def unit(self) -> Unit:
        """Whose presence the headline hides."""
        return self.result.guarantee.unit

    @property
    def adjacency(self) -> Adjacency:
        """Under which change."""
        return self.result.guarantee.adjacency

    @property
    def settings(self) -> dict[str, str]:
        """Resolved settings, flat, without paths and machines."""
        return public_settings(self.result.settings)


def read_facts(path: Path, ledger: Path | None = None) -> RunFacts:
    """Read a finished run."""
    result, holder_events = Result.read(path), read_events(path)
    public = is_published(result.asked.data)
    scores = ((result.accuracy if public else None) or Accuracy()).to_json()
    curve = (result.curve if public else None) or AccuracyCurve()
    evaluation = read_object(path / EVALUATION) or {}
    known = {_PUBLIC_SCORES[name]: scores[name] for name in _PUBLIC_SCORES if name in scores}
    return RunFacts(
        path=path,
        result=result,
        holder_events=holder_events,
        scores=known,
        confusion=result.confusion if public else None,
        findings=result.findings if public else None,
        public=_public_images(path, result) if public else None,
        curve=([*curve.rows], [*curve.accuracy]),
        evaluation=evaluation,
        audit=read_object(path / AUDIT) or {},
        inversion=_bytes(path / INVERSION),
        progress=_lines(path / PROGRESS),
        risk=_risk(result, holder_events),
        ledgers=tuple(_digests(path, result, ledger)),
    )


def _public_images(path: Path, result: Result) -> ImageSet | None:
    try:
        return FinishedRun(path, result, None, None).data().test
    except FedtranscribeError:
        return None


def _risk(result: Result, holder_events: HolderEvents) -> Risk | None:
    """For the headline's adjacency; a holder-level run says it by ε and δ alone."""
    stated = result.guarantee
    claim = Claim(stated.held, stated.delta, stated.unit, stated.adjacency)
    events = event_lists(holder_events, stated.adjacency) if stated.unit is Unit.RECORD else ()
    return risk_of(claim, *events)


def _digests(path: Path, result: Result, holder_events: Path | None) -> list[LedgerDigest]:
    named = holder_events or result.asked.ledger
    files = {"the holder": named} if named else {}
    holders = path / "private" / "holders"
    if holders.is_dir():
        files |= {folder.name: folder / "ledger.sqlite" for folder in sorted(holders.iterdir())}
    found = []
    for holder, file in files.items():
        try:
            with Ledger.open_read_only(file) as ledger:
                head, runs = ledger.head, ledger.runs()
                queries = sum(run.queries for run in runs)
        except (StorageError, LedgerError):
            # Not to be read here, be it absent or damaged: `audit` tells which.
            continue
        found.append(LedgerDigest(holder, head.sequence, head.hash, queries, len(runs)))
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    """JSON lines; those that are none are left out."""
    return list(json_objects((_bytes(path) or b"").decode("utf-8", "replace").splitlines()))


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
