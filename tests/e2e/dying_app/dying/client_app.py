"""Holders of a simulation whose processes die: one in a round of single answers, or one in every
round of a masked run, each at another stage.

In a masked run the first holder that comes to the stage dies, whoever it is: Flower may have given
any other one to a worker that is dead already.
"""

import os
from pathlib import Path
from typing import Any

from flwr.app import Context

from fedtranscribe.flower.client_app import make_client_app, open_simulated
from fedtranscribe.holder.node import Node

# In which round a holder dies at which stage, before or after it has done what it was asked for.
_FATES = {
    "mask": ("000000", "before"),
    "open_round": ("000001", "after"),
    "sign": ("000002", "before"),
}


class Mortal:
    """A node that dies where nobody has died before."""

    def __init__(self, node: Node, graves: Path) -> None:
        self._node, self._graves = node, graves

    def __getattr__(self, name: str) -> Any:
        known = getattr(self._node, name)
        if name not in _FATES:
            return known
        number, when = _FATES[name]

        def doomed(*args: Any, **named: Any) -> Any:
            query = args[0].id if name == "open_round" else args[1]
            if query.rsplit("/", 1)[-1] != number:
                return known(*args, **named)
            if when == "before":
                self._die_once(name)
            said = known(*args, **named)
            if when == "after":
                self._die_once(name)
            return said

        return doomed

    def _die_once(self, stage: str) -> None:
        try:
            (self._graves / f"died-in-{stage}").touch(exist_ok=False)
        except FileExistsError:
            return
        os._exit(9)


def open_node(context: Context, number: int) -> Any:
    node = open_simulated(context, number, "dying")
    private = Path(str(context.run_config["out"])) / "private"
    if context.run_config["noise"] == "secagg":
        return Mortal(node, private)
    if number == 3:
        calls = private / "calls-of-holder-3"
        with calls.open("a") as stream:
            stream.write("x")
        # The first call asks for its capabilities, the second is a query.
        if calls.stat().st_size == 2:
            os._exit(9)
    return node


app = make_client_app(open_node)
