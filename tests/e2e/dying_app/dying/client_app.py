"""Holders of a simulation, one of which dies on its first query."""

import os
from pathlib import Path

from flwr.app import Context

from fedtranscribe.federation.holder import make_client_app
from fedtranscribe.federation.node import Node
from fedtranscribe.federation.simulation import open_simulated


def open_node(context: Context, number: int) -> Node:
    node = open_simulated(context, number, "dying")
    if number == 3:
        calls = Path(str(context.run_config["out"])) / "private" / "calls-of-holder-3"
        with calls.open("a") as stream:
            stream.write("x")
        # The first call asks for its capabilities, the second is a query.
        if calls.stat().st_size == 2:
            os._exit(9)
    return node


app = make_client_app(open_node)
