"""What the ledger's tests share: a small release, a budget, and raw access behind its back."""

import sqlite3
from pathlib import Path

from fedtranscribe.privacy.accountant import epsilon_filter
from fedtranscribe.privacy.budget import Budget
from fedtranscribe.privacy.events import Event, Gaussian
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, Unit

DATA = "digits"
DELTA = 1e-5
RECORD, ZERO_OUT = Unit.RECORD, Adjacency.ZERO_OUT
BUDGET = Budget(10.0, DELTA, RECORD, ZERO_OUT)
RACE = Budget(epsilon_filter([Gaussian(0.2, 24)], DELTA), DELTA, RECORD, ZERO_OUT)
"""Room for exactly 24 single rows of μ = 0.2."""


def release(mu: float = 0.1, rows: int = 1) -> MechanismRelease:
    """`rows` Gaussian rows of μ each, under zero-out and replace but not add-remove."""
    event: Event = Gaussian(mu, rows)
    costs: dict[Adjacency, Event] = {ZERO_OUT: event, Adjacency.REPLACE: event}
    return MechanismRelease("noisy-mean-rows", rows, {RECORD: costs})


def open_ledger(path: Path, budget: Budget | None = BUDGET) -> Ledger:
    return Ledger.open(path, DATA, budget)


def epsilon_of(ledger: Ledger) -> float:
    return ledger.total(DELTA, RECORD, ZERO_OUT).epsilon


def answered(ledger: Ledger, query_id: str, answer: bytes = b"answer") -> None:
    """One whole query, as a holder does it."""
    ledger.reserve(query_id, "hash-" + query_id, release(), "run")
    ledger.commit(query_id, answer)


def tamper(path: Path, *statements: str, keep_triggers: bool = True) -> None:
    """Edit the file as someone with a database shell would, triggers put back afterwards."""
    connection = sqlite3.connect(path, isolation_level=None)
    triggers = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY rowid"
    ).fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement)
    if keep_triggers:
        for _, sql in triggers:
            connection.execute(sql)
    connection.close()
