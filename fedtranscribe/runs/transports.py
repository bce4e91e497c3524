"""Transports within one process: to nodes as they are deployed, and to a holder of one's own."""

from collections.abc import Iterable, Sequence

from fedtranscribe.errors import ProtocolError
from fedtranscribe.holder.answering import Holder
from fedtranscribe.holder.node import Node, reply_to
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.questions.capabilities import Capabilities
from fedtranscribe.questions.messages import Message
from fedtranscribe.questions.question import Query
from fedtranscribe.questions.refusals import Refusal, RefusalCode
from fedtranscribe.rounds.transport import MakeMessage, Reply


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
        replies = {}
        for name in (name for name in holders if name in self._nodes):
            content, node = make(0, name), self._nodes[name]
            replies[name] = reply_to(content, message_type, lambda _, n=node: n, self._requester)
            self.payload += content.payload + replies[name].payload
        return replies

    def _ask(self, node: Node, query: Query, plan: NoisePlan, run: str) -> Reply:
        try:
            return node.answer(query, plan, run, self._requester)
        except Refusal as refusal:
            return refusal.code


class OwnHolder:
    """One's own data on one's own machine: no policy and no codes stand between.

    What goes wrong at the holder is raised as it is.
    """

    def __init__(self, name: str, holder: Holder) -> None:
        self.payload = 0
        self.private = holder.private
        self._name = name
        self._holder = holder

    def capabilities(self) -> dict[str, Capabilities | RefusalCode | ProtocolError]:
        """Nobody needs to ask: the plan was made from its facts."""
        return {}

    def ask(
        self, holders: Sequence[str], query: Query, plan: NoisePlan, run: str
    ) -> dict[str, Reply]:
        """Ask it, if it is among them."""
        return {name: self._holder.answer(query, plan) for name in holders if name == self._name}

    def exchange(
        self, message_type: str, holders: Sequence[str], make: MakeMessage
    ) -> dict[str, Message]:
        """A masked sum needs others."""
        return {}
