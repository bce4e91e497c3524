"""Masked sums over TLS with registered nodes: five holders, one of them killed in every round."""

import contextlib
import json
import sqlite3
import time
from pathlib import Path

import pytest

from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from tests.e2e.deployment import Deployment
from tests.e2e.test_deployment import ROUND, ROWS, teachers, wait_for_rounds

__all__ = ["teachers"]  # a fixture
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

NAMES = ("clinic", "hospital", "institute", "practice", "ward")


def rounds_begun(holder: Path) -> int:
    path = f"file:{holder / 'book' / 'ledger.sqlite.rounds'}?mode=ro"
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(sqlite3.connect(path, uri=True, timeout=1)) as store,
    ):
        return store.execute("SELECT COUNT(*) FROM rounds").fetchone()[0]
    return 0


def kill_in_round(place: Deployment, holder: Path, part: str, number: int) -> None:
    """Kill a holder's service or node once it has begun a round, numbered from 1."""
    until = time.monotonic() + 300
    while rounds_begun(holder) < number:
        assert time.monotonic() < until, f"round {number} did not come"
        time.sleep(0.001)
    place.kill(f"{part}-{holder.name}")


def test_one_of_five_is_killed_in_every_round(tmp_path_factory, teachers):
    with Deployment(tmp_path_factory.mktemp("d") / "home") as place:
        place.make_certificates()
        place.start_superlink()
        place.await_superlink()
        holders = [place.make_holder(name, teachers) for name in NAMES]
        place.make_roster(holders)
        for holder in holders:
            place.register(holder)
            place.start_service(holder)
            place.start_node(holder)
        out = tmp_path_factory.mktemp("out") / "run"
        run = place.run(out, noise="secagg", holders=5, timeout=45.0, retries=3, epsilon=10.0)

        kill_in_round(place, holders[1], "service", 1)
        wait_for_rounds(place, out, 1)
        place.start_service(holders[1])
        kill_in_round(place, holders[3], "service", 2)
        wait_for_rounds(place, out, 2)
        place.start_service(holders[3])
        kill_in_round(place, holders[4], "node", 3)

        ended = place.await_run(run)
        mistake = out / "error.json"
        said = mistake.read_text() if mistake.exists() else ""
        assert ended == "finished:completed", said + place.log("superlink")[-3000:].decode()
        result = json.loads((out / "metrics.json").read_text())
        assert (result["rows"], result["stopped"], result["left"]) == (ROWS, None, {})
        assert result["trust"].startswith("no server")
        assert 9.9 < result["epsilon"] <= 10.0
        # The killed may have masked before they died; nobody else is ever missed.
        assert all(result["answered_rounds"][name] >= ROWS // ROUND - 1 for name in NAMES)
        for holder in holders:
            with Ledger.open_read_only(holder / "book" / "ledger.sqlite") as ledger:
                ledger.verify()
                assert ledger.rows(result["run"]) == ROWS
                spent = ledger.total(1e-5, Unit.RECORD, Adjacency.ZERO_OUT).epsilon
            assert spent == pytest.approx(result["epsilon"], rel=0.02)
        # What went through the server's hands opens nobody's answer: vectors are masked words.
        place.fedtranscribe("release", out)
        place.fedtranscribe("release", "verify", out / "release")
