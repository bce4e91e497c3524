"""Nodes as they are deployed, within one process."""

from collections.abc import Iterable, Sequence

from fedtranscribe.capabilities import Capabilities
from fedtranscribe.errors import ProtocolError
from fedtranscribe.holder.node import Node
from fedtranscribe.holder.replies import reply_to
from fedtranscribe.privacy.noise_plan import NoisePlan
from fedtranscribe.query import Query
from fedtranscribe.refusals import Refusal, RefusalCode
from fedtranscribe.rounds.transport import MakeMessage, Reply
from fedtranscribe.wire import Message


class InProcess:
    """Nodes in this very process, behind their policies: for tests and benchmarks."""

    def __init__(self, nodes: Iterable[Node], requester: str = "in-process") -> None:
        self.payload = 0
        self._nodes = {node.name: node for node in nodes}
        self.private = all(node.private for node in self._nodes.values())
        self._requester = requester

    def capabilities(self) -> dict[str, Capabilities | RefusalCode | ProtocolError]:
        """Who is there, by name."""
        return {name: node.capabilities() for name, node in self._nodes.items()}

    def ask(
        self, holders: Sequence[str], query: Query, plan: NoisePlan, run: str
    ) -> dict[str, Reply]:
        """Ask one after the other."""
        there = [name for name in holders if name in self._nodes]
        return {name: self._ask(self._nodes[name], query, plan, run) for name in there}

    def exchange(
        self, message_type: str, holders: Sequence[str], make: MakeMessage
    ) -> dict[str, Message]:
        """Hand over one message after the other."""
        told = {}
        for name in (name for name in holders if name in self._nodes):
            content, node = make(0, name), self._nodes[name]
            told[name] = reply_to(content, message_type, lambda _, n=node: n, self._requester)
            self.payload += content.payload + told[name].payload
        return told

    def _ask(self, node: Node, query: Query, plan: NoisePlan, run: str) -> Reply:
        try:
            return node.answer(query, plan, run, self._requester)
        except Refusal as refusal:
            return refusal.code
