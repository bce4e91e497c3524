"""One finished run attacked and its books checked, and what of the result may be told.

audit.json            what may be published
inversion.png         images that the student is surest of, by class
private/audit.json    all of it: NOT private

Nobody was charged for comparing a student with private records. So what an attack on those found,
and even whether it found anything, stays under `private/`, on benchmarks too.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedtranscribe.config.catalogue import MANIFEST
from fedtranscribe.config.evaluation import ATTACKS, ON_RECORDS, AuditSettings
from fedtranscribe.data import DataSplit
from fedtranscribe.errors import ConfigError, LedgerError, StorageError
from fedtranscribe.evaluation.audit_bounds import shared
from fedtranscribe.evaluation.audit_checks import (
    EXCHANGED,
    HolderEvents,
    check_events,
    check_ledger,
    check_teachers,
    claim_of,
    event_lists,
    read_events,
)
from fedtranscribe.evaluation.canaries import Canaries, by_canaries, check_planted
from fedtranscribe.evaluation.findings import Check, Claim, Finding, risk_of
from fedtranscribe.evaluation.game import play_run
from fedtranscribe.evaluation.inversion import by_inversion, draw_columns, invert
from fedtranscribe.evaluation.membership import Suspects, by_loss, by_references, by_samples
from fedtranscribe.evaluation.sums_game import check_noise
from fedtranscribe.files import write_atomically
from fedtranscribe.models import Classifier, Generator, is_small, pick_device
from fedtranscribe.models.diffusion import Synthesizer
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.noise.sources import BitSource
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.results.allowed import expect_allowed
from fedtranscribe.results.figures import figures_available
from fedtranscribe.results.progress import Progress, silent
from fedtranscribe.runs.finished import FinishedRun

AUDIT = "audit.json"
INVERSION = "inversion.png"
_SAMPLES = 5_000
OWN_DATA = "a private set of the holder"
STAMP = "found on private records: NOT PRIVATE, do not release"


class Audit:
    """All findings and checks of one run, before anything is written.

    Attributes:
        run: that was audited.
        claim: what a record that comes or goes is held against: game and canaries.
        exchanged: what one record in place of another is held against: attacks on suspects.
        findings: of every attack.
        checks: of the books.
        risk: what ε means; None without a claim.
    """

    def __init__(self, run: FinishedRun, settings: AuditSettings) -> None:
        self.run = run
        self.settings = settings
        self.holder_events: HolderEvents = read_events(run.path)
        self.claim: Claim = claim_of(run.result, self.holder_events)
        self.exchanged: Claim = claim_of(run.result, self.holder_events, EXCHANGED)
        self.findings: list[Finding] = []
        self.checks: list[Check] = []
        self.risk = risk_of(self.claim, *event_lists(self.holder_events, self.claim.adjacency))

    def to_json(self, public: bool) -> dict[str, Any]:
        """As a file holds it.

        Args:
            public: leave out what rests on records.
        """
        found = [finding for finding in self.findings if not (public and finding.private)]
        checks = [check for check in self.checks if not (public and check.private)]
        withheld = [finding.attack for finding in self.findings if finding not in found]
        withheld += [check.name for check in self.checks if check not in checks]
        result = self.run.result
        return {
            "run": result.run,
            "data": result.data if self.run.declared_public else OWN_DATA,
            "epsilon": self.claim.epsilon,
            "delta": self.claim.delta,
            "unit": self.claim.unit.value,
            "adjacency": self.claim.adjacency.value,
            "confidence": self.settings.confidence,
            "risk": self.risk.to_json() if self.risk else None,
            "findings": [finding.to_json() for finding in found],
            "checks": [check.to_json() for check in checks],
            "sound": not any(finding.contradicts for finding in found)
            and not any(check.ok is False for check in checks),
            "withheld": withheld,
            "seed": self.settings.seed,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def audit(
    run: FinishedRun,
    settings: AuditSettings,
    progress: Progress = silent,
    coins: BitSource | None = None,
) -> Audit:
    """Attack a run, check its books, and write what was found into its folder.

    Contradictions are written like everything else; `expect_sound` raises them.

    Args:
        run: a finished one.
        settings: attacks, budgets, confidence, seed.
        progress: shows long work.
        coins: pick the suspects; OS entropy unless a test seeds it.

    Guarantee
        If the run is as private as it says, all bounds stay below the ε that they are held against
        with probability `settings.confidence` at least, so that a sound run is contradicted with
        probability 1 − confidence at most: every attack that was asked for gets its share of the
        error, before any is tried. Events, ledger and teachers are checked without chance.

    Raises:
        ConfigError: canaries without their file, or of other data; the device is missing.
        DataError: the records are not where the run found them.
        StorageError: the folder cannot be written, or the run's events are damaged.
    """
    if "canaries" in settings.attacks and settings.canaries is None:
        raise ConfigError("Expected --canaries FILE with --attacks canaries; plant them first.")
    attacks = set(settings.attacks) | ({"canaries"} if settings.canaries else set())
    confidence = shared(settings.confidence, len(attacks))
    done = Audit(run, settings)
    split = run.data(settings.data_root)
    done.checks += _checks(run, done.holder_events, split, settings)
    if "game" in attacks:
        progress("distinguishing game", 0, 1)
        adjacency = done.claim.adjacency
        played = play_run(run.result, done.holder_events, adjacency, settings.trials, confidence)
        done.findings += [played] if played is not None else []
        progress("distinguishing game", 1, 1)
    if attacks & set(ON_RECORDS):
        rng = np.random.default_rng(settings.seed)
        suspects = Suspects.of(split, settings.records, rng, coins)
        done.findings += _on_records(done, split, suspects, attacks, confidence, progress)
    facts = done.to_json(public=True)
    expect_allowed(AUDIT, facts)
    _write(facts, run.path / AUDIT)
    _write({"stamp": STAMP, **done.to_json(public=False)}, run.private / AUDIT)
    return done


def _on_records(
    done: Audit,
    split: DataSplit,
    suspects: Suspects,
    attacks: set[str],
    confidence: float,
    progress: Progress,
) -> list[Finding]:
    run, settings, terms = done.run, done.settings, (done.exchanged, confidence)
    device = pick_device(settings.device)
    for network in (run.student, run.generator):
        if network is not None and not isinstance(network, GaussianMixture):
            network.to(device)
    # A diffusion trainer has no student: its model is attacked by its own loss.
    model = run.student if run.student is not None else run.generator  # a mixture has a student
    assert isinstance(model, Classifier | Synthesizer)
    found: list[Finding] = []
    if "loss" in attacks:
        found.append(by_loss(model, suspects, *terms))
    if run.student is not None:
        found += _on_student(done, run.student, suspects, attacks, confidence, progress)
    if "generator" in attacks and run.generator is not None:
        synthetic, _ = run.synthesise(
            settings.samples or run.usual_samples(_SAMPLES), settings.seed, progress
        )
        found.append(by_samples(synthetic, suspects, *terms))
    if settings.canaries is not None:
        canaries = Canaries.load(settings.canaries)
        check_planted(canaries, split.train)
        found.append(by_canaries(model, canaries, done.claim, confidence))
    return sorted(found, key=lambda finding: ATTACKS.index(finding.attack))


def _on_student(
    done: Audit,
    student: Classifier,
    suspects: Suspects,
    attacks: set[str],
    confidence: float,
    progress: Progress,
) -> list[Finding]:
    run, settings, found = done.run, done.settings, []
    terms = done.exchanged, confidence
    if "reference" in attacks and is_small(student.architecture):
        found.append(
            by_references(
                student,
                suspects,
                *terms,
                references=settings.references,
                steps=settings.reference_steps,
                seed=settings.seed,
                progress=lambda n, total: progress("reference networks", n, total),
            )
        )
    if "inversion" in attacks:
        progress("inversion", 0, 1)
        inverted = invert(
            student,
            run.generator if isinstance(run.generator, Generator) else None,
            starts=settings.starts,
            steps=settings.inversion_steps,
            seed=settings.seed,
        )
        found.append(by_inversion(inverted, suspects, *terms))
        if figures_available():
            draw_columns(inverted.images, settings.starts, run.path / INVERSION)
        progress("inversion", 1, 1)
    return found


def _checks(
    run: FinishedRun, holder_events: HolderEvents, split: DataSplit, settings: AuditSettings
) -> list[Check]:
    checks = [check_events(run.result, holder_events)]
    checks += _noise(run, holder_events)
    path = settings.ledger or run.result.asked.ledger
    if path is not None and not run.result.shards:
        checks.append(_ledger(run, holder_events, path))
    folder = run.private / "teachers"
    if (folder / MANIFEST).exists() and run.result.teachers is not None:
        checks.append(check_teachers(folder, split.train, run.result.teachers))
    return checks


def _noise(run: FinishedRun, holder_events: HolderEvents) -> list[Check]:
    claim = claim_of(run.result, holder_events)
    found = (
        None if claim.epsilon is None else check_noise(run.result, holder_events, claim.adjacency)
    )
    return [] if found is None else [found]


def _ledger(run: FinishedRun, holder_events: HolderEvents, path: Path) -> Check:
    try:
        with Ledger.open_read_only(path) as ledger:
            return check_ledger(ledger, run.result.run, run.result.rows, holder_events)
    except StorageError as error:
        return Check("ledger", None, str(error))
    except LedgerError as error:
        return Check("ledger", False, str(error))


def _write(result: dict[str, Any], path: Path) -> None:
    text = json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, text.encode())
