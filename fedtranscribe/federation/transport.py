"""What carries queries to holders and answers back; the values are the same whatever it is.

A transport never raises for one holder's sake: it says per holder what came back, and a holder
that is missing from the reply did not answer in time.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedtranscribe.errors import ProtocolError
from fedtranscribe.exchange import Answer, NoisePlan, QueryBatch, RawAnswer
from fedtranscribe.federation import protocol, records
from fedtranscribe.federation.capabilities import Capabilities
from fedtranscribe.federation.holder import reply_to
from fedtranscribe.federation.node import Node
from fedtranscribe.federation.refusals import Refusal, RefusalCode

log = logging.getLogger(__name__)

Address = tuple[int, int]
"""(node id, number of the holder on that node)."""

Reply = Answer | RawAnswer | RefusalCode | ProtocolError

MakeMessage = Callable[[int, str], RecordDict]
"""The message for a holder, of its number on its node and its name."""


class Transport(Protocol):
    """In process, or over Flower.

    Attributes:
        payload: bytes of arrays that have travelled, both ways.
        private: whether no holder is known to draw its noise from a seed.
    """

    payload: int
    private: bool

    def capabilities(self) -> dict[str, Capabilities | RefusalCode | ProtocolError]:
        """Who is there, by name."""
        ...

    def ask(
        self, holders: Sequence[str], query: QueryBatch, plan: NoisePlan, run: str
    ) -> dict[str, Reply]:
        """Ask these holders; whoever stays silent is absent from the result."""
        ...

    def exchange(
        self, message_type: str, holders: Sequence[str], make: MakeMessage
    ) -> dict[str, RecordDict]:
        """Send each holder a message of its own, and give what came back, unread."""
        ...


class InProcess:
    """Holders in this very process, for one machine and for tests."""

    def __init__(self, nodes: Iterable[Node], requester: str = "in-process") -> None:
        self.payload = 0
        self._nodes = {node.name: node for node in nodes}
        self.private = all(node.private for node in self._nodes.values())
        self._requester = requester

    def capabilities(self) -> dict[str, Capabilities | RefusalCode | ProtocolError]:
        """Who is there, by name."""
        return {name: node.capabilities() for name, node in self._nodes.items()}

    def ask(
        self, holders: Sequence[str], query: QueryBatch, plan: NoisePlan, run: str
    ) -> dict[str, Reply]:
        """Ask one after the other."""
        there = [name for name in holders if name in self._nodes]
        return {name: self._ask(self._nodes[name], query, plan, run) for name in there}

    def exchange(
        self, message_type: str, holders: Sequence[str], make: MakeMessage
    ) -> dict[str, RecordDict]:
        """Hand over one message after the other."""
        told = {}
        for name in (name for name in holders if name in self._nodes):
            content, node = make(0, name), self._nodes[name]
            self.payload += records.payload_bytes(content)
            told[name] = reply_to(content, message_type, lambda _, n=node: n, self._requester)
            self.payload += records.payload_bytes(told[name])
        return told

    def _ask(self, node: Node, query: QueryBatch, plan: NoisePlan, run: str) -> Reply:
        try:
            return node.answer(query, plan, run, self._requester)
        except Refusal as refusal:
            return refusal.code


class OverFlower:
    """Holders behind Flower's grid.

    Args:
        grid: from the ServerApp.
        addresses: (node id, number of the holder on that node) of every holder; a node of a
            simulation may stand for several.
        timeout: seconds to wait for the holders' answers to one query.
        first_timeout: seconds to wait for their capabilities: a simulated holder trains its
            teachers first.
    """

    def __init__(
        self,
        grid: Grid,
        addresses: Sequence[Address],
        timeout: float,
        first_timeout: float,
    ) -> None:
        self.payload = 0
        self.private = True
        self._grid = grid
        self._addresses = list(addresses)
        self._timeout = timeout
        self._first_timeout = first_timeout
        self._by_name: dict[str, tuple[int, int]] = {}

    def capabilities(self) -> dict[str, Capabilities | RefusalCode | ProtocolError]:
        """Ask everybody who they are.

        Of two that call themselves by one name neither takes part: the server cannot know which
        one it is, and whoever answers first must not get what is meant for the other.
        """
        contents = {a: protocol.ask_capabilities(a[1]) for a in self._addresses}
        found: dict[str, Capabilities | RefusalCode | ProtocolError] = {}
        called: dict[str, list[tuple[Address, Capabilities]]] = {}
        for address, content in self._exchange(
            contents, records.CAPABILITIES, "capabilities", self._first_timeout
        ).items():
            try:
                told = protocol.read_capabilities(content)
            except Refusal as refusal:
                found[_node(address)] = refusal.code
            except ProtocolError as error:
                found[_node(address)] = error
            else:
                called.setdefault(told.name, []).append((address, told))
        for name, holders in called.items():
            if len(holders) == 1:
                self._by_name[name], found[name] = holders[0]
                continue
            nodes = [_node(address) for address, _ in holders]
            for node in nodes:
                found[node] = ProtocolError(
                    f"{', '.join(nodes)} all call themselves {name!r}; have their operators choose "
                    "other names, or take a stranger's key off the list."
                )
        return found

    def ask(
        self, holders: Sequence[str], query: QueryBatch, plan: NoisePlan, run: str
    ) -> dict[str, Reply]:
        """Ask these holders at once; whoever stays silent is absent from the result."""

        def make(number: int, name: str) -> RecordDict:
            return protocol.ask(protocol.Envelope(query, plan, run, number))

        replies = self.exchange(records.ANSWER, holders, make)
        return {name: _read(content, query) for name, content in replies.items()}

    def exchange(
        self, message_type: str, holders: Sequence[str], make: MakeMessage
    ) -> dict[str, RecordDict]:
        """Send all messages at once; whoever stays silent is absent from the result."""
        # Who has not been heard of since a resumed run began stays silent.
        names = {self._by_name[name]: name for name in holders if name in self._by_name}
        contents = {address: make(address[1], name) for address, name in names.items()}
        replies = self._exchange(contents, message_type, message_type, self._timeout)
        return {names[address]: content for address, content in replies.items()}

    def _exchange(
        self,
        contents: Mapping[Address, RecordDict],
        message_type: str,
        group: str,
        timeout: float,
    ) -> dict[Address, RecordDict]:
        messages = {
            address: Message(content, address[0], message_type, group_id=group)
            for address, content in contents.items()
        }
        self.payload += sum(records.payload_bytes(content) for content in contents.values())
        # Replies are told apart by the number that their message carried, as several holders may
        # share a node.
        replies: dict[Address, RecordDict] = {}
        for reply in self._grid.send_and_receive(list(messages.values()), timeout=timeout):
            source = reply.metadata.src_node_id
            if reply.has_error():
                # The text may hold anything: it stays here, and only its code is logged.
                log.warning("node %s failed (Flower code %s)", source, reply.error.code)
                continue
            number = records.echoed_holder(reply.content)
            if (source, number) in messages:
                replies[source, number] = reply.content
                self.payload += records.payload_bytes(reply.content)
        return replies


def _node(address: Address) -> str:
    return f"node {address[0]}/{address[1]}"


def _read(content: RecordDict, query: QueryBatch) -> Reply:
    try:
        return protocol.read_answer(content, query)
    except Refusal as refusal:
        return refusal.code
    except ProtocolError as error:
        return error
