"""Asks every holder once and writes what `fedtranscribe simulate` reads; `mode` picks a fault."""

import json
import time
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    mode, out = settings["mode"], Path(str(settings["out"]))
    out.mkdir(parents=True, exist_ok=True)
    if mode == "mistake":
        mistake = {"error": "Expected rows=100 to\nfit the toy.", "exit_code": 5}
        (out / "error.json").write_text(json.dumps(mistake))
        raise ValueError("the toy was told to make a mistake")
    # Flower starts the ServerApp before it has registered the nodes, all of them or some.
    while len(nodes := list(grid.get_node_ids())) < int(settings["holders"]):
        time.sleep(0.1)
    questions = [
        Message(RecordDict(), dst_node_id=node, message_type="query.hello") for node in nodes
    ]
    answers = grid.send_and_receive(questions, timeout=240)
    partitions = sorted(int(a.content["answer"]["partition"]) for a in answers if a.has_content())
    progress = {"stage": "rows", "done": 50, "total": settings["rows"], "epsilon": 0.5}
    with (out / "progress.jsonl").open("a") as stream:
        stream.write(json.dumps(progress) + "\n")
    if mode == "crash":
        raise RuntimeError("the toy was told to crash")
    if mode == "wait":
        time.sleep(600)
    metrics = {
        "run": "toy-run",
        "method": "toy",
        "rows": settings["rows"],
        "holders": len(partitions),
        "shards": {f"holder-{number}": 1 for number in partitions},
        "accuracy": {"student": 0.75},
        "epsilon": settings["epsilon"],
        "delta": 1e-5,
        "unit": "record",
        "adjacency": "zero-out",
        "published": {"epsilon": 1.0, "reason": "it counts one holder"},
        "settings": dict(settings),
    }
    (out / "metrics.json").write_text(json.dumps(metrics))
