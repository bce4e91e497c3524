"""A Flower grid without Flower's processes: the ClientApp runs here, the wire format is real."""

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class LocalGrid(Grid):
    """Carries every message through Flower's protobuf form, there and back.

    Args:
        client: answers for all nodes.
        nodes: node id -> its node-config.
        run_config: of every context.
        drop: node ids that never answer.
    """

    def __init__(
        self,
        client: ClientApp,
        nodes: Mapping[int, dict[str, Any]],
        run_config: Mapping[str, Any] | None = None,
        drop: Iterable[int] = (),
    ) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self.drop = set(drop)
        self.sent: list[Message] = []
        self._client = client
        self._contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config=dict(config),
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for node, config in nodes.items()
        }
        self._waiting: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        """There is only one."""

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> list[int]:
        return list(self._contexts)

    def get_nodes(self) -> list[Any]:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            number = str(uuid.uuid4())
            message.metadata.__dict__["_message_id"] = number
            ids.append(number)
            self.sent.append(message)
            if message.metadata.dst_node_id not in self.drop:
                self._waiting[number] = _over_the_wire(self._deliver(_over_the_wire(message)))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        there = [number for number in message_ids if number in self._waiting]
        return [self._waiting.pop(number) for number in there]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _deliver(self, message: Message) -> Message:
        try:
            return self._client(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:  # as a SuperNode does: the text travels to the server
            return Message(Error(code=2, reason=repr(error)), reply_to=message)


def _over_the_wire(message: Message) -> Message:
    return message_from_proto(message_to_proto(message))
