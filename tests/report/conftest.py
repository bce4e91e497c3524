"""Finished runs to report on, from the folders that `transcribe` leaves."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedtranscribe.privacy.accountant import guarantee
from fedtranscribe.privacy.calibrate import EnsembleLayout
from fedtranscribe.privacy.release_plan import PrivacyPlan
from fedtranscribe.privacy.units import Adjacency, RowAnswer, Unit
from fedtranscribe.runs.finished import FinishedRun
from tests.evaluation.conftest import make_run
from tests.mechanisms_for import noisy_mean_rows

ROUNDS, ROWS = 4, 25


def reported(path: Path, *, generator: bool = True, **changes: Any) -> FinishedRun:
    """A run on the packaged digits with events, a curve and progress."""
    mechanism = noisy_mean_rows(EnsembleLayout(50), 0.3, RowAnswer.VOTE)
    release = mechanism.release(ROWS, positional_ids=True)
    plan = PrivacyPlan((release,) * ROUNDS, Unit.RECORD, Adjacency.ZERO_OUT, 1e-5)
    rows = [ROWS * (n + 1) for n in range(ROUNDS)]
    result = {
        "epsilon": guarantee(plan).epsilon,
        "adjacency": "zero-out",
        "accountant": "PLD, closed form",
        "noise_std": 0.3,
        "rows": ROUNDS * ROWS,
        "teachers": 50,
        "sound": {"zero-out": guarantee(plan).epsilon, "replace": 7.25},
        "published": {"epsilon": 0.046, "reason": "Theorem 1 forgets a factor."},
        "curve": {"rows": rows, "accuracy": [0.3, 0.5, 0.6, 0.65]},
        "accuracy": {"student": 0.654, "public_set_alone": 0.1},
        **changes,
    }
    run = make_run(path, generator=generator, run=result)
    # As runs of older versions left it: a page must not tell of the ensemble all the same.
    stored = json.loads((path / "metrics.json").read_text())
    stored["accuracy"]["ensemble"] = 0.912345
    (path / "metrics.json").write_text(json.dumps(stored))
    line = json.dumps(release.to_json())
    (path / "events.jsonl").write_text(f"{line}\n" * ROUNDS)
    return run


@pytest.fixture
def told(tmp_path: Path) -> FinishedRun:
    """On a public benchmark."""
    return reported(tmp_path / "told")


def add_audit(path: Path, lower: float = 0.8) -> None:
    """As `audit` leaves it; with a bound above the claim it contradicts it."""
    finding = {
        "attack": "game",
        "lower_bound": lower,
        "confidence": 0.99,
        "epsilon": 2.0,
        "contradicts": lower > 2,
        "words": "An adversary watched <many> answers.",
    }
    check = {"check": "ledger", "ok": lower <= 2, "words": "100 rows, each charged once"}
    audit = {
        "sound": lower <= 2,
        "findings": [finding],
        "checks": [check],
        "withheld": ["loss"],
    }
    (path / "audit.json").write_text(json.dumps(audit))
