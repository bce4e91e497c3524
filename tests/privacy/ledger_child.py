"""A data holder in a process of its own, to be killed or raced; run by the ledger's tests.

    python ledger_child.py ROLE LEDGER [NAME]

Each line on standard output is a fact that must hold after the process is killed.
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

from ledger_cases import BUDGET, DATA, RACE, release

from fedtranscribe.errors import BudgetExhaustedError
from fedtranscribe.privacy import book
from fedtranscribe.privacy.chain import Head, canonical
from fedtranscribe.privacy.ledger import Ledger


def say(*facts: str) -> None:
    print(*facts, flush=True)


def reserve_and_hang(path: Path) -> None:
    ledger = Ledger.open(path, DATA, BUDGET)
    ledger.reserve("q0", "h", release(), "run")
    say("q0")
    time.sleep(60)


def stream(path: Path) -> None:
    """Whole queries without end; each announced when its answer might be released."""
    ledger = Ledger.open(path, DATA, BUDGET)
    for i in range(10_000):
        ledger.reserve(f"q{i}", "h", release(0.01), "run")
        answer = os.urandom(2_000)
        head = ledger.commit(f"q{i}", answer)
        say(f"q{i}", hashlib.sha256(answer).hexdigest(), str(head.sequence), head.hash)


def die_before_head(path: Path) -> None:
    """Killed after the database is durable and before the head file is."""
    ledger = Ledger.open(path, DATA, BUDGET)

    def die(_path: Path, _head: Head) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    book.write_head = die
    ledger.reserve("q0", "h", release(), "run")


def die_inside(path: Path) -> None:
    """Killed inside the transaction that books."""
    ledger = Ledger.open(path, DATA, BUDGET)
    content = canonical(release().to_json()).decode()
    with ledger._book.writing():
        ledger._book.append(book.EntryKind.RESERVE, content, "run", "half", "h")
        os.kill(os.getpid(), signal.SIGKILL)


def race(path: Path, name: str) -> None:
    """Reserve until the budget is exhausted, against others who do the same."""
    while not path.with_name("go").exists():
        time.sleep(0.005)
    with Ledger.open(path, DATA, RACE) as ledger:
        try:
            for i in range(1_000):
                ledger.reserve(f"{name}-{i}", "h", release(0.2), name)
                say(f"{name}-{i}")
        except BudgetExhaustedError:
            say("exhausted")


if __name__ == "__main__":
    role, ledger_path, *rest = sys.argv[1:]
    globals()[role](Path(ledger_path), *rest)
