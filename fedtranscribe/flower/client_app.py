"""A ClientApp that answers for holders in its own process: of simulations.

A deployed holder's ClientApp only passes messages on, see `relay.py`.
"""

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedtranscribe import wire
from fedtranscribe.flower.records import message_of, record_of
from fedtranscribe.holder.node import Node
from fedtranscribe.holder.replies import reply_to

_REQUESTER = "flower"


def make_client_app(open_node: Callable[[Context, int], Node]) -> ClientApp:
    """A ClientApp that answers for the holders that `open_node` opens.

    Args:
        open_node: gives the holder of a context and number; Flower may start a process per
            message, so it should be quick after the first time.
    """
    app = ClientApp()

    def handler(message_type: str) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            said = reply_to(
                message_of(message.content),
                message_type,
                lambda number: open_node(context, number),
                _REQUESTER,
            )
            return Message(record_of(said), reply_to=message)

        return handle

    for message_type in wire.MESSAGES:
        app.query(message_type.removeprefix("query."))(handler(message_type))
    return app
