"""What a data holder replies to a message: protocol in, node, protocol out; codes for all else.

What Flower sends to the server for an exception holds its text, and in a simulation its traceback;
so nothing may be raised out of here.
"""

import logging
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedtranscribe.federation import masked_messages, protocol, records, training_messages
from fedtranscribe.federation.node import Node
from fedtranscribe.federation.refusals import Refusal, RefusalCode, where

log = logging.getLogger(__name__)

_REQUESTER = "flower"


def reply_to(
    content: RecordDict, message_type: str, open_node: Callable[[int], Node], requester: str
) -> RecordDict:
    """A holder's reply to one message; never raises.

    Args:
        content: of the message.
        message_type: one of `records.MESSAGES`.
        open_node: gives the holder of a number.
        requester: who asks, as the holder knows it; bound to the query.
    """
    try:
        reply = _reply(content, message_type, open_node, requester)
    except Refusal as refusal:
        reply = records.refuse(refusal)
    except Exception as error:
        log.error("a message could not be answered: %s", where(error))
        reply = records.refuse(Refusal(RefusalCode.INTERNAL))
    return records.echo_holder(reply, content)


def _reply(
    content: RecordDict, message_type: str, open_node: Callable[[int], Node], requester: str
) -> RecordDict:
    if message_type == records.CAPABILITIES:
        node = open_node(protocol.holder_number(content))
        return protocol.tell_capabilities(node.capabilities())
    if message_type == records.ANSWER:
        node = open_node(protocol.holder_number(content))
        envelope = protocol.read_query(content, node.facts)
        # Not Flower's own run id: a resumed run has another, and must get its answers again.
        told = node.answer(envelope.query, envelope.plan, envelope.run, requester)
        return protocol.tell(told, envelope.query.kind)
    if message_type in records.MASKED:
        node = open_node(protocol.holder_number(content))
        return masked_messages.reply(content, message_type, node, requester)
    if message_type in records.TRAINING:
        return training_messages.reply(
            content, message_type, open_node(protocol.holder_number(content))
        )
    raise Refusal(RefusalCode.MALFORMED)


def make_client_app(open_node: Callable[[Context, int], Node]) -> ClientApp:
    """A ClientApp that answers for the holders that `open_node` opens, in its own process.

    For simulations. A deployed holder's ClientApp only passes messages on, see `relay.py`.

    Args:
        open_node: gives the holder of a context and number; Flower may start a process per
            message, so it should be quick after the first time.
    """
    app = ClientApp()

    def handler(message_type: str) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            content = reply_to(
                message.content, message_type, lambda number: open_node(context, number), _REQUESTER
            )
            return Message(content, reply_to=message)

        return handle

    for message_type in records.MESSAGES:
        app.query(message_type.removeprefix("query."))(handler(message_type))
    return app
