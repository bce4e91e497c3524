"""Hours of a deployment under mixed queries, refusals and restarts: do memory and open files stay?

    PYTHONPATH=. python benchmarks/soak_deployment.py --hours 2
    PYTHONPATH=. python benchmarks/soak_deployment.py --hours 0.1 --pause 0

A SuperLink with TLS and two holders, each a holder service and a SuperNode, on this machine. Runs
of votes and of sums follow each other; in between, each service gets hostile messages, and must
answer with refusal codes. `steady` is never restarted: its memory and open files are what counts.
`restarted` loses its service (SIGTERM, then kill -9) and its SuperNode in turn. At the end both
ledgers are proved. Looks are kept in `results/soak_deployment.jsonl` while it goes on; the table
goes to `results/soak_deployment.md`.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import psutil
from soak import ask, attacks

from fedtranscribe.holder.link import is_serving
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.questions import messages as wire
from tests.e2e.deployment import Deployment, train_teachers, write_records

RESULTS = Path(__file__).parent / "results"
LINES = RESULTS / "soak_deployment.jsonl"
STEADY, RESTARTED = "steady", "restarted"
RUNS: tuple[dict[str, Any], ...] = (
    {"student": "cnn-small", "start": "none"},
    {
        "student": "",
        "rows": 0,
        "teachers-share": 0.0,
        "descent-rounds": 2,
        "with-generator": False,
    },
)
KINDS = '["vote", "moments", "descent"]'
# Patient: other work shares the machine.
FACTS = {"holders": 2, "noise": "central", "epsilon": 3.0, "timeout": 900.0, "first-timeout": 900.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--pause", type=float, default=30.0, help="seconds between runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Deployment(Path(folder) / "home") as place:
        prepare(place, Path(folder))
        LINES.write_text("")
        looks = []
        for look in soak(place, Path(folder), options.hours * 3600, options.pause):
            looks.append(look)
            with LINES.open("a") as stream:
                stream.write(json.dumps(look) + "\n")
            print(json.dumps(look), flush=True)
            (RESULTS / "soak_deployment.md").write_text(table(looks, ended=False))
        prove(place)
    (RESULTS / "soak_deployment.md").write_text(table(looks, ended=True))


def prepare(place: Deployment, folder: Path) -> None:
    place.make_certificates()
    place.start_superlink()
    place.await_superlink()
    for number, name in enumerate((STEADY, RESTARTED)):
        records = write_records(folder / name, range(400 * number, 400 * (number + 1)))
        teachers = train_teachers(records, 4, 5)
        place.holders.append(place.make_holder(name, teachers, records, kinds=KINDS))
    for holder in place.holders:
        place.register(holder)
        place.start_service(holder)
        place.start_node(holder)


def soak(place: Deployment, folder: Path, seconds: float, pause: float) -> Iterator[dict[str, Any]]:
    """A look after each run."""
    began, number = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        out = folder / f"run-{number}"
        run = place.run(out, **FACTS, **RUNS[number % len(RUNS)])
        ended = place.await_run(run, 1800)
        mistake = out / "error.json"
        if mistake.exists() and number < len(RUNS):
            raise SystemExit(f"Run {number} cannot be made: {mistake.read_text()}")
        told = json.loads((out / "metrics.json").read_text()) if ended.endswith("ted") else {}
        codes = refusals(place, number)
        yield {
            "minutes": round((time.monotonic() - began) / 60, 1),
            "run": number,
            "ended": ended,
            "answered": told.get("answered_rounds", {}),
            "codes": codes,
            **{name: process_of(place, name) for name in place.parts},
        }
        restart(place, number)
        number += 1
        time.sleep(pause)


def refusals(place: Deployment, number: int) -> dict[str, int]:
    """What each service says to one hostile message of each kind."""
    seen: Counter[str] = Counter()
    for holder in place.holders:
        with grpc.insecure_channel(f"unix:{holder / 'run' / 'h.sock'}") as channel:
            for kind, content, expected in attacks(number):
                # An id that is free here may be answered; the other soak has used it before.
                if (kind, expected) != (wire.ANSWER, "QUERY_CONFLICT"):
                    seen[ask(channel, kind, content)] += 1
    assert "answered" not in seen, seen
    return dict(sorted(seen.items()))


def restart(place: Deployment, number: int) -> None:
    """Every third run: the service by SIGTERM, by kill -9, or the SuperNode."""
    holder = place.holders[1]
    match number % 9:
        case 2:
            assert place.stop(f"service-{RESTARTED}") == 0
            place.start_service(holder)
        case 5:
            place.kill(f"service-{RESTARTED}")
            place.start_service(holder)
        case 8:
            place.stop(f"node-{RESTARTED}")
            place.rejoin(holder)


def process_of(place: Deployment, name: str) -> dict[str, int]:
    """Resident MiB, open files and threads of a part's own process."""
    process = psutil.Process(place.parts[name].pid)
    return {
        "mib": round(process.memory_info().rss / 2**20),
        "files": process.num_fds(),
        "threads": process.num_threads(),
    }


def prove(place: Deployment) -> None:
    for holder in place.holders:
        assert is_serving(holder / "run" / "h.sock")
        with Ledger.open_read_only(holder / "book" / "ledger.sqlite") as ledger:
            ledger.verify()


def table(looks: list[dict[str, Any]], *, ended: bool) -> str:
    parts = (f"service-{STEADY}", f"node-{STEADY}", "superlink")
    codes: Counter[str] = Counter()
    for look in looks:
        codes.update(look["codes"])
    completed = sum(look["ended"] == "finished:completed" for look in looks)
    proof = "both ledgers were proved" if ended else "it was still going on"
    lines = [
        "# Hours of a deployment",
        "",
        f"`python benchmarks/soak_deployment.py`, {datetime.now(UTC):%Y-%m-%d}, two cores that "
        f"other work shared: {len(looks)} runs of votes and sums in {looks[-1]['minutes']:.0f} "
        f"minutes, {completed} of them completed; at the end {proof}. Service and SuperNode of the "
        f"other holder were restarted {restarts(len(looks))} times. Refusals: "
        + ", ".join(f"{code} {count:,}" for code, count in sorted(codes.items()))
        + ".",
        "",
        "Resident MiB / open files / threads of the processes that were never restarted:",
        "",
        f"| minutes | {' | '.join(parts)} |",
        f"| ---: | {' | '.join('---' for _ in parts)} |",
    ]
    for look in looks[:: max(1, len(looks) // 20)]:
        cells = (f"{p['mib']:,} / {p['files']} / {p['threads']}" for p in map(look.get, parts) if p)
        lines.append(f"| {look['minutes']:.0f} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def restarts(runs: int) -> int:
    return sum(number % 9 in (2, 5, 8) for number in range(runs))


if __name__ == "__main__":
    main()
