"""Asks every holder for everything that it must refuse, and writes down what each one said."""

import json
import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fedtranscribe.flower.records import message_of, record_of
from fedtranscribe.noise.mask_keys import Members
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.questions import masked_messages as masked
from fedtranscribe.questions import messages as wire
from fedtranscribe.questions import query_messages as queries
from fedtranscribe.questions import training_messages as trainings
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.rows import ImageQuery

HOLDERS, TIMEOUT = 2, 900.0
PLAN = NoisePlan(NoiseMode.CENTRAL, 100.0, HOLDERS)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One honest query, then all attacks at once."""
    while len(nodes := sorted(grid.get_node_ids())) < HOLDERS:
        time.sleep(1)
    said = ask(grid, nodes, {"honest": (wire.ANSWER, envelope(query()))})
    said |= ask(grid, nodes, attacks())
    Path(str(context.run_config["out"])).write_text(json.dumps(said))


def ask(
    grid: Grid, nodes: list[int], what: dict[str, tuple[str, wire.Message]]
) -> dict[str, list[str]]:
    """What every node said to each message: a refusal code, or what else there is to tell."""
    messages = [
        Message(record_of(content), node, kind, group_id=name)
        for name, (kind, content) in what.items()
        for node in nodes
    ]
    said: dict[str, list[str]] = {name: [] for name in what}
    for reply in grid.send_and_receive(messages, timeout=TIMEOUT):
        said[reply.metadata.group_id].append(_told(reply))
    return said


def _told(reply: Message) -> str:
    if reply.has_error():
        return f"Flower's error {reply.error.code}"
    if "told" in reply.content:
        return json.dumps(dict(reply.content.config_records["told"]))
    return str(message_of(reply.content).terms.get("refusal", "answered"))


def query(name: str = "evil/1", rows: int = 10, value: int = 0) -> ImageQuery:
    images = torch.full((rows, 1, 28, 28), value, dtype=torch.uint8)
    return ImageQuery(name, Kind.VOTE, images, torch.arange(3).repeat(rows, 1))


def envelope(asked: ImageQuery, plan: NoisePlan = PLAN, run: str = "evil") -> wire.Message:
    return queries.ask(queries.Envelope(asked, plan, run))


def attacks() -> dict[str, tuple[str, wire.Message]]:
    """By name; what each must be answered with stands in the test."""
    huge = envelope(query("evil/2")).and_arrays({"index_sets": np.zeros((0, 65_535), np.uint16)})
    empty = np.zeros((4_000, 1, 0, 0), np.uint8)
    shaped = envelope(query("evil/3")).and_arrays({"images": empty})
    giant = envelope(query("evil/4"))
    giant.terms["run"] = "r" * 2_000_000
    named = envelope(query("evil/5"))
    named.terms["query-id"] = "q" * 201
    free = NoisePlan(NoiseMode.CENTRAL, 1e-9, HOLDERS)
    strangers = Members(("clinic", "mallory"), 0, 1)
    absurd = {"method": "dp-promise", "epsilon": 1e6}
    endless = {"method": "dp-promise", "dp_promise": {"phase2_epochs": 1e12}}
    return {
        "huge k": (wire.ANSWER, huge),
        "shapes": (wire.ANSWER, shaped),
        "giant run": (wire.ANSWER, giant),
        "long id": (wire.ANSWER, named),
        "rows": (wire.ANSWER, envelope(query("evil/6", 1_001))),
        "budget": (wire.ANSWER, envelope(query("evil/7"), free)),
        "replay": (wire.ANSWER, envelope(query(value=1))),
        "roster": (wire.SECAGG_KEY, masked.ask_key(0, "evil", strangers)),
        "sign": (wire.SECAGG_SIGN, masked.ask_sign(0, "evil", "evil/1", ["clinic"], {})),
        "absurd": (wire.TRAIN, trainings.ask_train(0, "evil", absurd, 3_600.0)),
        "endless": (wire.TRAIN, trainings.ask_train(0, "evil", endless, 3_600.0)),
        "version": (wire.ANSWER, wire.Message()),
        "junk": ("query.junk", wire.Message()),
    }
