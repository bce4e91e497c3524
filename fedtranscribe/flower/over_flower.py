"""Holders behind Flower's grid, and our messages as Flower's records."""

import logging
from collections.abc import Mapping, Sequence

from flwr import app as flower
from flwr.serverapp import Grid

from fedtranscribe.errors import ProtocolError
from fedtranscribe.flower.records import message_of, record_of
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.questions import messages as wire
from fedtranscribe.questions import query_messages as queries
from fedtranscribe.questions.capabilities import Capabilities
from fedtranscribe.questions.messages import Message
from fedtranscribe.questions.question import Query
from fedtranscribe.questions.refusals import Refusal, RefusalCode
from fedtranscribe.rounds.transport import MakeMessage, Reply

log = logging.getLogger(__name__)

Address = tuple[int, int]
"""(node id, number of the holder on that node)."""


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

        If two use the same name, neither takes part: the server cannot know which is which, and
        the first to answer must not get what is meant for the other.
        """
        contents = {a: queries.ask_capabilities(a[1]) for a in self._addresses}
        found: dict[str, Capabilities | RefusalCode | ProtocolError] = {}
        called: dict[str, list[tuple[Address, Capabilities]]] = {}
        for address, content in self._exchange(
            contents, wire.CAPABILITIES, "capabilities", self._first_timeout
        ).items():
            try:
                facts = queries.read_capabilities(content)
            except Refusal as refusal:
                found[_node(address)] = refusal.code
            except ProtocolError as error:
                found[_node(address)] = error
            else:
                called.setdefault(facts.name, []).append((address, facts))
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
        self, holders: Sequence[str], query: Query, plan: NoisePlan, run: str
    ) -> dict[str, Reply]:
        """Ask these holders at once; a holder that does not answer is absent from the result."""

        def make(number: int, name: str) -> Message:
            return queries.ask(queries.Envelope(query, plan, run, number))

        replies = self.exchange(wire.ANSWER, holders, make)
        return {name: _read(content, query) for name, content in replies.items()}

    def exchange(
        self, message_type: str, holders: Sequence[str], make: MakeMessage
    ) -> dict[str, Message]:
        """Send all messages at once; a holder that does not answer is absent from the result."""
        # Who has not been heard of since a resumed run began stays silent.
        names = {self._by_name[name]: name for name in holders if name in self._by_name}
        contents = {address: make(address[1], name) for address, name in names.items()}
        replies = self._exchange(contents, message_type, message_type, self._timeout)
        return {names[address]: content for address, content in replies.items()}

    def _exchange(
        self,
        contents: Mapping[Address, Message],
        message_type: str,
        group: str,
        timeout: float,
    ) -> dict[Address, Message]:
        messages = {
            address: flower.Message(record_of(content), address[0], message_type, group_id=group)
            for address, content in contents.items()
        }
        self.payload += sum(content.payload for content in contents.values())
        # Replies are told apart by the number that their message carried, as several holders may
        # share a node.
        replies: dict[Address, Message] = {}
        for reply in self._grid.send_and_receive(list(messages.values()), timeout=timeout):
            source = reply.metadata.src_node_id
            if reply.has_error():
                # The text may hold anything: it stays here, and only its code is logged.
                log.warning("node %s failed (Flower code %s)", source, reply.error.code)
                continue
            content = message_of(reply.content)
            number = wire.echoed_holder(content)
            if (source, number) in messages:
                replies[source, number] = content
                self.payload += content.payload
        return replies


def _node(address: Address) -> str:
    return f"node {address[0]}/{address[1]}"


def _read(content: Message, query: Query) -> Reply:
    try:
        return queries.read_answer(content, query)
    except Refusal as refusal:
        return refusal.code
    except ProtocolError as error:
        return error
