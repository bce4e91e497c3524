"""kill -9 at every durable write of a masked round, `sign` among its stages: nothing is lost.

Under seeded noise the student is byte for byte that of a run that nobody killed, and every ledger
has each query once.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedtranscribe.data.partitions import holder_name
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.questions import messages as wire
from fedtranscribe.results.run_directory import STUDENT

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

SCRIPT = Path(__file__).with_name("killed_rounds.py")


def killed(who: str, folder: Path) -> list[str]:
    """The kills of a script's runs, in order."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), who, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    log = folder / "kills.txt"
    return log.read_text().splitlines() if log.exists() else []


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kills") / "whole"
    assert killed("none", folder) == []
    return folder / "none"


def entries(home: Path) -> list[list[tuple[str, str, str]]]:
    """What every holder has booked, but for times and hashes."""
    booked = []
    for number in range(3):
        path = home / "holders" / holder_name(number) / "ledger.sqlite"
        with Ledger.open_read_only(path) as ledger:
            ledger.verify()
            booked.append([(e.kind, e.query_id, e.content) for e in ledger.entries()])
    return booked


def same(home: Path, whole: Path) -> None:
    assert entries(home) == entries(whole)
    assert (home / "run" / STUDENT).read_bytes() == (whole / "run" / STUDENT).read_bytes()
    cost, expected = (
        json.loads((place / "run" / "metrics.json").read_text())["epsilon"]
        for place in (home, whole)
    )
    assert cost == expected


def test_a_holder_killed_at_every_write_of_every_stage(whole, tmp_path):
    kills = killed("holder", tmp_path / "kills")
    expected = [
        (wire.SECAGG_KEY, "run-fixed", ("put_run",)),
        # The keys of a run are agreed on with its first query.
        (wire.SECAGG_OPEN, "run-fixed/000000", ("put_run", "reserve", "put_round", "commit")),
        (wire.SECAGG_OPEN, "run-fixed/000001", ("reserve", "put_round", "commit")),
        *((wire.SECAGG_MASK, f"run-fixed/00000{i}", ("put_round",)) for i in range(2)),
        *((wire.SECAGG_SIGN, f"run-fixed/00000{i}", ("put_round",)) for i in range(2)),
        *((wire.SECAGG_REVEAL, f"run-fixed/00000{i}", ()) for i in range(2)),
    ]
    points = [
        f"{stage} {query}: {where}"
        for stage, query, writes in expected
        for where in (
            *(f"{w} {n}" for n in writes for w in ("before", "after")),
            "before the reply",
        )
    ]
    assert sorted(kills) == sorted(points)
    same(tmp_path / "kills" / "holder", whole)


def test_a_server_killed_at_every_write_of_a_round(tmp_path):
    kills = killed("server", tmp_path / "kills")
    # Settings and state of the run; keys; a round begun, its shares, vectors, survivors,
    # signatures and revealed shares; the answer; the result.
    assert len(kills) >= 10
    *broken, whole = [tmp_path / "kills" / f"server-{i + 1}" for i in range(len(kills) + 1)]
    for home in broken:
        same(home, whole)
