"""A hostile server app against two holders over TLS: codes, nothing booked, then honest work."""

import json
import subprocess
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.e2e.deployment import BIN, Deployment
from tests.e2e.test_deployment import ROWS, result_of, rows_booked

pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]

HOSTILE = Path(__file__).parent / "hostile_app"
MORE = 'trainers = ["dp-promise"]\ndropouts = 0\ncolluders = 1\n'
SAID = {
    "honest": "answered",
    "huge k": "MALFORMED_QUERY",
    "shapes": "MALFORMED_QUERY",
    "giant run": "MALFORMED_QUERY",
    "long id": "MALFORMED_QUERY",
    "rows": "POLICY_REFUSED",
    "budget": "BUDGET_EXHAUSTED",
    "replay": "QUERY_CONFLICT",
    "roster": "QUERY_CONFLICT",
    "sign": "QUERY_CONFLICT",
    "absurd": "BUDGET_EXHAUSTED",
    "endless": "MALFORMED_QUERY",
    "version": "PROTOCOL_VERSION",
}
JUNK = [*["MALFORMED_QUERY"] * 4, "POLICY_REFUSED"]


def make_records(folder: Path, name: str) -> Path:
    """240 grey images of three classes."""
    labels = np.arange(240) % 3
    noise = np.random.default_rng(len(name)).integers(0, 80, (240, 28, 28))
    path = folder / f"{name}.npz"
    images = (noise + 60 * labels[:, None, None]).astype(np.uint8)
    ids = np.array([f"p-{i}" for i in range(240)])
    np.savez(path, images=images, labels=labels, ids=ids, classes=3)
    return path


def train(records: Path, folder: Path) -> Path:
    out = folder / f"teachers-{records.stem}"
    config = folder / "teachers.toml"
    config.write_text("[teachers]\nsteps = 5\n")
    subprocess.run(
        [
            *(str(BIN / "fedtranscribe"), "teacher", "train", "--data", str(records)),
            *("--shards", "4", "--arch", "cnn-small", "--config", str(config)),
            *("--out", str(out)),
        ],
        check=True,
        capture_output=True,
    )
    return out


def test_a_hostile_server_gets_codes_and_then_honest_runs_are_served(tmp_path_factory, tmp_path):
    with Deployment(tmp_path_factory.mktemp("d") / "home") as place:
        place.make_certificates()
        place.start_superlink()
        place.await_superlink()
        private = [make_records(tmp_path, name) for name in ("clinic", "hospital")]
        holders = [place.make_holder(each.stem, train(each, tmp_path)) for each in private]
        place.make_roster(holders)
        for holder, records in zip(holders, private, strict=True):
            place.write_policy(holder, epsilon=200, more=MORE)
            with (holder / "policy.toml").open("a") as policy:
                policy.write(f'key = "book/key"\nroster = "book/roster"\nrecords = "{records}"\n')
            place.register(holder)
            place.start_service(holder)
            place.start_node(holder)
        before = {holder: memory(place, holder) for holder in holders}

        told = tmp_path / "said.json"
        run = place.flwr("run", str(HOSTILE), "here", "-c", f'out="{told}"')["run-id"]
        assert place.await_run(str(run), 900) == "finished:completed", place.log("superlink")[
            -3000:
        ]
        said = json.loads(told.read_text())
        junk = [json.loads(each) for each in said.pop("junk")]
        assert said == {name: [code] * 2 for name, code in SAID.items()}
        assert [each["codes"] for each in junk] == [JUNK] * 2

        for holder in holders:
            assert rows_booked(holder) == {"evil": 10}
            assert not (holder / "book" / "trainings").exists()
            assert memory(place, holder) - before[holder] < 300
            policy = holder / "policy.toml"
            status = json.loads(
                place.fedtranscribe("holder", "status", "--policy", policy, "--json")
            )
            assert status["serving"] is True
            assert status["quotas"]["runs"]["used"] == 1
            assert set(SAID.values()) - {"answered"} <= set(status["refusals"])

        out = tmp_path / "run"
        assert place.await_run(place.run(out, data="none"), 900) == "finished:completed"
        result = result_of(out)
        assert (result["rows"], result["left"]) == (ROWS, {})
        for holder in holders:
            assert rows_booked(holder) == {"evil": 10, result["run"]: ROWS}


def memory(place: Deployment, holder: Path) -> float:
    """MiB that a holder's service has now."""
    service = psutil.Process(place.parts[f"service-{holder.name}"].pid)
    return service.memory_info().rss / 2**20
