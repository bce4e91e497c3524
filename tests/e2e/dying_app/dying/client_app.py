"""Holders of a simulation whose processes die: one in a round of single answers, or one in every
round of a masked run, each at another stage."""

import os
from pathlib import Path
from typing import Any

from flwr.app import Context

from fedtranscribe.federation.holder import make_client_app
from fedtranscribe.federation.node import Node
from fedtranscribe.federation.simulation import open_simulated

# Which holder dies in which round, before or after it has done what it was asked for.
_FATES = {
    (1, "mask", "000000"): "before",
    (2, "open_round", "000001"): "after",
    (4, "sign", "000002"): "before",
}


class Mortal:
    """A node that dies once per fate."""

    def __init__(self, node: Node, number: int, graves: Path) -> None:
        self._node, self._number, self._graves = node, number, graves

    def __getattr__(self, name: str) -> Any:
        known = getattr(self._node, name)
        if name not in {stage for _, stage, _ in _FATES}:
            return known

        def doomed(*args: Any, **named: Any) -> Any:
            query = args[0].id if name == "open_round" else args[1]
            fate = _FATES.get((self._number, name, query.rsplit("/", 1)[-1]))
            grave = self._graves / f"holder-{self._number}-{name}"
            if fate == "before" and not grave.exists():
                self._die(grave)
            said = known(*args, **named)
            if fate == "after" and not grave.exists():
                self._die(grave)
            return said

        return doomed

    def _die(self, grave: Path) -> None:
        grave.touch()
        os._exit(9)


def open_node(context: Context, number: int) -> Any:
    node = open_simulated(context, number, "dying")
    private = Path(str(context.run_config["out"])) / "private"
    if context.run_config["noise"] == "secagg":
        return Mortal(node, number, private)
    if number == 3:
        calls = private / "calls-of-holder-3"
        with calls.open("a") as stream:
            stream.write("x")
        # The first call asks for its capabilities, the second is a query.
        if calls.stat().st_size == 2:
            os._exit(9)
    return node


app = make_client_app(open_node)
