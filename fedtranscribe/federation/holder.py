"""The data holder's ClientApp: protocol in, node, protocol out; generic codes for all else.

What Flower sends to the server for an exception holds its text, and in a simulation its
traceback; so nothing may be raised out of a handler.
"""

import logging
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedtranscribe.federation import protocol
from fedtranscribe.federation.node import Node
from fedtranscribe.federation.refusals import Refusal, RefusalCode

log = logging.getLogger(__name__)

_REQUESTER = "flower"

OpenNode = Callable[[Context, int], Node]
Handler = Callable[[Message, Context], RecordDict]


def make_client_app(open_node: OpenNode) -> ClientApp:
    """A ClientApp that answers for the holders that `open_node` opens.

    Args:
        open_node: gives the holder of a context and number; Flower may start a process per
            message, so it should be quick after the first time.
    """
    app = ClientApp()

    def capabilities(message: Message, context: Context) -> RecordDict:
        number = protocol.holder_number(message.content)
        return protocol.tell_capabilities(open_node(context, number).capabilities())

    def answer(message: Message, context: Context) -> RecordDict:
        envelope = protocol.read_query(message.content)
        node = open_node(context, envelope.holder)
        # Not Flower's own run id: a resumed run has another, and must get its answers again.
        told = node.answer(envelope.query, envelope.plan, envelope.run, _REQUESTER)
        return protocol.tell(told, envelope.query.kind)

    app.query("capabilities")(_guarded(capabilities))
    app.query("answer")(_guarded(answer))
    return app


def _guarded(handler: Handler) -> Callable[[Message, Context], Message]:
    """Turn whatever goes wrong into a code; details stay in this holder's log."""

    def handle(message: Message, context: Context) -> Message:
        try:
            content = handler(message, context)
        except Refusal as refusal:
            content = protocol.refuse(refusal)
        except Exception:
            log.exception("a query could not be answered")
            content = protocol.refuse(Refusal(RefusalCode.INTERNAL))
        return Message(protocol.echo_holder(content, message.content), reply_to=message)

    return handle
