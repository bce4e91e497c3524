"""What a page says about a run, read from its folder; whatever is absent is left out.

The page may be passed on, so the rules of a release hold: no figure that rests on a user's own
held-out records, no name or path of their data, nothing about teachers beyond their number, of a
ledger its head and totals and never an answer. Nothing under `private/` is read, ledgers excepted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtranscribe.config import OF_RUNS, Mark, marked
from fedtranscribe.data import is_published
from fedtranscribe.errors import LedgerError, StorageError
from fedtranscribe.evaluation.audit.audit import AUDIT, INVERSION, OWN_DATA
from fedtranscribe.evaluation.audit.claims import Given, events_of, read_events
from fedtranscribe.evaluation.audit.findings import Claim
from fedtranscribe.evaluation.audit.risk import Risk, risk_of
from fedtranscribe.evaluation.evaluate import EVALUATION
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.reading import json_objects, read_object
from fedtranscribe.tracking import PROGRESS
from fedtranscribe.transcribe.rundir import read_result

_TOLD_SCORES = {
    "student": "student",
    "public_set_alone": "student, public images alone",
    "downstream": "CNN that learned from synthetic images alone",
}


@dataclass(frozen=True)
class LedgerDigest:
    """What a ledger shows of itself: never an answer.

    Attributes:
        holder: whose it is.
        sequence: number of its last entry.
        hash: of that entry; it fixes all that were before.
        queries: answered or reserved, over all runs.
        runs: that were charged.
    """

    holder: str
    sequence: int
    hash: str
    queries: int
    runs: int


@dataclass(frozen=True)
class RunFacts:
    """One run, as far as it may be told.

    Attributes:
        path: its folder; the page shows no path.
        result: what `metrics.json` holds; for figures by name.
        given: what holders gave away.
        scores: name -> accuracy; empty where it may not be told.
        curve: answered rows and accuracies.
        evaluation: what `evaluation.json` holds.
        audit: what `audit.json` holds.
        inversion: the audit's picture; None where there is none.
        progress: lines of rounds.
        risk: ε in words; None without a guarantee.
        ledgers: their digests.
    """

    path: Path
    result: Mapping[str, Any]
    given: Given
    scores: dict[str, float]
    curve: tuple[list[int], list[float]]
    evaluation: Mapping[str, Any]
    audit: Mapping[str, Any]
    inversion: bytes | None
    progress: list[dict[str, Any]]
    risk: Risk | None
    ledgers: tuple[LedgerDigest, ...]

    @property
    def method(self) -> str:
        """dpsd, feddpsd, …"""
        return str(self.result.get("method") or "dpsd")

    @property
    def told(self) -> bool:
        """Whether data and accuracy may be named: a published benchmark's."""
        return is_published(str(self.result["settings"].get("data")))

    @property
    def data(self) -> str:
        """Name of the data, where it may be told."""
        return str(self.result["settings"].get("data")) if self.told else OWN_DATA

    @property
    def diffusion(self) -> bool:
        """Whether one network was trained on the records, and no rows were answered."""
        return "sampling" in self.result

    @property
    def taught(self) -> float | None:
        """Accuracy of a CNN that learned from synthetic images alone, where it may be told."""
        measured = (self.evaluation.get("downstream") or {}).get("cnn") if self.told else None
        return self.scores.get(_TOLD_SCORES["downstream"], measured)

    @property
    def epsilon(self) -> float | None:
        """The headline; None where there is no guarantee, whatever was printed."""
        return self.result.get("epsilon") if self.result.get("private") else None

    @property
    def delta(self) -> float:
        """δ."""
        return float(self.result.get("delta") or 1e-5)

    @property
    def unit(self) -> Unit:
        """Whose presence the headline hides."""
        return Unit(self.result.get("unit") or Unit.RECORD)

    @property
    def adjacency(self) -> Adjacency:
        """Under which change."""
        return Adjacency(self.result.get("adjacency") or Adjacency.ZERO_OUT)

    @property
    def settings(self) -> dict[str, str]:
        """Resolved settings, flat, without paths and machines."""
        untold = marked(Mark.UNTOLD, *OF_RUNS)
        settings = self.result["settings"]
        return dict(_flat({name: settings[name] for name in settings if name not in untold}))


def read_facts(path: Path, ledger: Path | None = None) -> RunFacts:
    """Read a finished run.

    Args:
        path: its folder.
        ledger: of its data, where the run does not name it.

    Raises:
        StorageError: no finished run, or damaged events.
    """
    result, given = read_result(path), read_events(path)
    told = is_published(str(result["settings"].get("data")))
    scores = (result.get("accuracy") or {}) if told else {}
    curve = (result.get("curve") or {}) if told else {}
    evaluation = read_object(path / EVALUATION) or {}
    known = {_TOLD_SCORES[name]: scores[name] for name in _TOLD_SCORES if name in scores}
    return RunFacts(
        path=path,
        result=result,
        given=given,
        scores=known,
        curve=(list(curve.get("rows") or []), list(curve.get("accuracy") or [])),
        evaluation=evaluation,
        audit=read_object(path / AUDIT) or {},
        inversion=_bytes(path / INVERSION),
        progress=_lines(path / PROGRESS),
        risk=_risk(result, given),
        ledgers=tuple(_digests(path, result, ledger)),
    )


def _risk(result: Mapping[str, Any], given: Given) -> Risk | None:
    """For the headline's adjacency; a holder-level run says it by ε and δ alone."""
    epsilon = result.get("epsilon") if result.get("private") else None
    unit = Unit(result.get("unit") or Unit.RECORD)
    adjacency = Adjacency(result.get("adjacency") or Adjacency.ZERO_OUT)
    claim = Claim(epsilon, float(result.get("delta") or 1e-5), unit, adjacency)
    events = events_of(given, adjacency) if unit is Unit.RECORD else ()
    return risk_of(claim, events)


def _digests(path: Path, result: Mapping[str, Any], given: Path | None) -> list[LedgerDigest]:
    named = given or result["settings"].get("ledger")
    files = {"the holder": Path(named)} if named else {}
    holders = path / "private" / "holders"
    if holders.is_dir():
        files |= {folder.name: folder / "ledger.sqlite" for folder in sorted(holders.iterdir())}
    found = []
    for holder, file in files.items():
        try:
            with Ledger.open_read_only(file) as ledger:
                head, runs = ledger.head, len(ledger.runs())
                queries = len(ledger.releases())
        except (StorageError, LedgerError):
            # Not to be read here, be it absent or damaged: `audit` tells which.
            continue
        found.append(LedgerDigest(holder, head.sequence, head.hash, queries, runs))
    return found


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            lines += _flat(value, f"{prefix}{name}.")
        elif isinstance(value, str) and ("/" in value or "\\" in value):
            lines.append((f"{prefix}{name}", "a file of the holder"))
        else:
            lines.append(
                (f"{prefix}{name}", f"{value:g}" if isinstance(value, float) else str(value))
            )
    return lines


def _lines(path: Path) -> list[dict[str, Any]]:
    """JSON lines; those that are none are left out."""
    return list(json_objects((_bytes(path) or b"").decode("utf-8", "replace").splitlines()))


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
