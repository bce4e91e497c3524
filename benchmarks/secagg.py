"""What masks cost over `central`: bytes and seconds per round, for votes and for sums over records.

    python benchmarks/secagg.py            # ten minutes on two cores

One process plays the server and all holders, one after the other, so seconds are divided among
them: what the holders did is told per holder, what the server did by itself. Everybody answers
through the real node, policy, ledger and messages. Votes are those of one small untrained network;
sums are the moments of 501 features over 200 digits, with 10 classes.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedtranscribe.config import FederationSettings, TeacherSettings
from fedtranscribe.data import load
from fedtranscribe.data.partitions import holder_name
from fedtranscribe.holder.node import Node
from fedtranscribe.holder.policy import HolderPolicy
from fedtranscribe.models.fixed_features import SCATTER, coefficient_count, row_width
from fedtranscribe.noise.sources import OsNoise
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.questions import messages as wire
from fedtranscribe.questions import query_messages as queries
from fedtranscribe.questions.messages import Message
from fedtranscribe.questions.moments import MomentsQuery
from fedtranscribe.questions.question import Kind, Query
from fedtranscribe.questions.rows import ImageQuery
from fedtranscribe.rounds.masked_sum import MaskedSum
from fedtranscribe.rounds.plan import Asked, Plan
from fedtranscribe.rounds.planning import make_plan
from fedtranscribe.rounds.roster import Standing
from fedtranscribe.rounds.transport import MakeMessage, combine
from fedtranscribe.runs.simulation import open_holder
from fedtranscribe.runs.transports import InProcess

RESULTS = Path(__file__).parent / "results" / "secagg.md"
HOLDERS = (2, 5, 20, 100)
RECORDS = 200
KINDS = {"votes": Kind.VOTE, "sums": Kind.MOMENTS}


class Clocked(InProcess):
    """Measures the seconds that holders take."""

    seconds = 0.0

    def exchange(
        self, message_type: str, holders: Sequence[str], make: MakeMessage
    ) -> dict[str, Message]:
        """As `InProcess`."""
        began = time.perf_counter()
        told = super().exchange(message_type, holders, make)
        self.seconds += time.perf_counter() - began
        return told


class NobodyComplains:
    """Keeps heads; a complaint would spoil the measurement."""

    def __init__(self) -> None:
        self.standing = Standing()

    def complain(self, name: str, complaint: object, query: Query | None, *, charged: bool) -> None:
        raise AssertionError(f"{name}: {complaint}")

    def keep(self) -> None:
        pass

    def grown(self, name: str, head: tuple[int, str]) -> bool:
        return self.standing.grown(name, head)


NOTHING_ELSE = {"with_generator": False, "descent_rounds": 0}
"""Then the moments are the last that a plan asks."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--holders", type=int, nargs="*", default=list(HOLDERS))
    parser.add_argument("--rows", type=int, default=1_000, help="votes: per round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = []
    for asked, kind in KINDS.items():
        for holders in options.holders:
            line = {"asked": asked, **measure(kind, holders, options.rows, options.rounds)}
            print(json.dumps(line), flush=True)
            lines.append(line)
    write(lines, options.rows, options.rounds)


def measure(kind: Kind, holders: int, rows: int, rounds: int) -> dict[str, Any]:
    found: dict[str, dict[str, float]] = {}
    for noise in ("central", "secagg"):
        with tempfile.TemporaryDirectory() as folder:
            found[noise] = one_mode(kind, noise, holders, rows, rounds, Path(folder))
    central, masked = found["central"], found["secagg"]
    over = {f"{name} over central": round(masked[name] / central[name], 2) for name in central}
    facts = {f"secagg {name}": round(value, 5) for name, value in masked.items()}
    return {"holders": holders, **facts, **over}


def one_mode(
    kind: Kind, noise: str, holders: int, rows: int, rounds: int, folder: Path
) -> dict[str, float]:
    settings = FederationSettings(
        data="digits",
        holders=holders,
        shards=1,
        teacher="cnn-small",
        noise=noise,  # type: ignore[arg-type]
        rows=rows * (rounds + 1),
        epsilon=1.0,
        device="cpu",
        teachers=TeacherSettings(steps=1),
        **(NOTHING_ELSE if kind is Kind.MOMENTS else {}),
    )
    transport = Clocked(nodes_of(settings, folder))
    roster = transport.capabilities()
    asked = Asked(settings, kind, NoiseMode(noise), settings.dropouts)
    plan = make_plan(asked, roster)  # type: ignore[arg-type]
    round_of = masked_round if noise == "secagg" else central_round
    go = round_of(plan, transport, settings, folder)
    query = {Kind.VOTE: votes, Kind.MOMENTS: sums}[kind]
    go(query("warm", rows))  # keys are agreed on, and everything is loaded
    transport.seconds, before, began = 0.0, transport.payload, time.perf_counter()
    for i in range(rounds):
        go(query(f"round-{i}", rows))
    total = time.perf_counter() - began
    return {
        "bytes per round and holder": (transport.payload - before) / (rounds * holders),
        "seconds per round and holder": transport.seconds / (rounds * holders),
        "server's seconds per round": (total - transport.seconds) / rounds,
    }


def nodes_of(settings: FederationSettings, folder: Path) -> list[Node]:
    train = load("digits").train.subset(range(RECORDS))
    policy = HolderPolicy(
        epsilon=1e6, noise=NoiseMode(settings.noise), dropouts=settings.holders // 5, colluders=1
    )
    return [
        open_holder(
            settings, train, number, folder / "holders" / holder_name(number), policy=policy
        )
        for number in range(settings.holders)
    ]


def central_round(
    plan: Plan, transport: Clocked, settings: FederationSettings, folder: Path
) -> Callable[[Any], object]:
    def go(asked: Query) -> object:
        def make(number: int, name: str) -> Message:
            return queries.ask(queries.Envelope(asked, plan.parts[-1].noise, "run", number))

        told = transport.exchange(wire.ANSWER, list(plan.roster), make)
        answers = [queries.read_answer(told[name], asked) for name in plan.roster]
        return combine(asked, answers, plan, len(plan.parts) - 1, OsNoise())

    return go


def masked_round(
    plan: Plan, transport: Clocked, settings: FederationSettings, folder: Path
) -> Callable[[Any], object]:
    together = MaskedSum(plan, transport, settings, "run", folder, NobodyComplains())
    return partial(together.settle, part=plan.parts[-1], present=list(plan.roster))


def sums(name: str, rows: int) -> MomentsQuery:
    """Asks about records, so that `rows` is nothing to it."""
    raw, width = coefficient_count(SCATTER, 1, 28), row_width(SCATTER, 1, 28) - 1
    return MomentsQuery(name, Kind.MOMENTS, torch.zeros(raw), torch.randn(raw, width), SCATTER, 10)


def votes(name: str, rows: int) -> ImageQuery:
    images = torch.randint(0, 256, (rows, 1, 28, 28), dtype=torch.uint8)
    return ImageQuery(name, Kind.VOTE, images, torch.arange(10).repeat(rows, 1))


def write(lines: list[dict[str, Any]], rows: int, rounds: int) -> None:
    names = list(lines[0])
    table = [
        "| " + " | ".join(names) + " |",
        "| " + " | ".join("---" for _ in names) + " |",
        *("| " + " | ".join(str(line[name]) for name in names) + " |" for line in lines),
    ]
    text = [
        "# What masked sums cost",
        "",
        f"`python benchmarks/secagg.py`, {datetime.now(UTC):%Y-%m-%d}; mean of {rounds} rounds, "
        "one thread, a fifth of the holders may drop out and one may collude. Votes: 28x28 grey "
        f"images over 10 classes, {rows:,} rows a round; a row of `central` is an image of 784 "
        "bytes and 10 classes out, and 10 float32 back. Sums: moments of 501 features by 10 "
        f"classes over {RECORDS} records a holder, 130,761 numbers back. One process plays "
        "everybody.",
        "",
        *table,
        "",
    ]
    RESULTS.write_text("\n".join(text))
    print(f"written: {RESULTS}")


if __name__ == "__main__":
    main()
