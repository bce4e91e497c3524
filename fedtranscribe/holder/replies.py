"""What a data holder replies to a message: wire in, node, wire out; codes for all else.

What Flower sends to the server for an exception holds its text, and in a simulation its traceback;
so nothing may be raised out of here.
"""

import logging
from collections.abc import Callable

from fedtranscribe import wire
from fedtranscribe.holder.node import Node
from fedtranscribe.refusals import Refusal, RefusalCode, where
from fedtranscribe.wire import Message, get, get_name, get_names, masked, queries, trainings

log = logging.getLogger(__name__)


def reply_to(
    content: Message, message_type: str, open_node: Callable[[int], Node], requester: str
) -> Message:
    """A holder's reply to one message; never raises.

    Args:
        content: of the message.
        message_type: one of `wire.MESSAGES`.
        open_node: gives the holder of a number.
        requester: who asks, as the holder knows it; bound to the query.
    """
    try:
        node = open_node(queries.holder_number(content))
        reply = _reply(content, message_type, node, requester)
    except Refusal as refusal:
        reply = wire.refuse(refusal)
    except Exception as error:
        log.error("a message could not be answered: %s", where(error))
        reply = wire.refuse(Refusal(RefusalCode.INTERNAL))
    return wire.echo_holder(reply, content)


def _reply(content: Message, message_type: str, node: Node, requester: str) -> Message:
    if message_type == wire.CAPABILITIES:
        return queries.tell_capabilities(node.capabilities())
    if message_type == wire.ANSWER:
        envelope = queries.read_query(content, node.expect)
        # Not Flower's own run id: a resumed run has another, and must get its answers again.
        return queries.tell(node.answer(envelope.query, envelope.plan, envelope.run, requester))
    if message_type in wire.MASKED:
        return _masked(content, message_type, node, requester)
    if message_type in wire.TRAINING:
        return _training(content, message_type, node)
    raise Refusal(RefusalCode.MALFORMED)


def _masked(content: Message, message_type: str, node: Node, requester: str) -> Message:
    terms = wire.asked_terms(content)
    if message_type == wire.SECAGG_OPEN:
        return _open_round(content, node, requester)
    try:
        run = get_name(terms, "run")
        if message_type == wire.SECAGG_KEY:
            names = get_names(terms, "names")
            failures = (get(terms, name, int) for name in ("dropouts", "colluders"))
            return masked.tell_advert(*node.advertise(run, names, *failures))
        query_id = get_name(terms, "query-id")
        if message_type == wire.SECAGG_MASK:
            inbox = masked.bytes_of(content, "sealed")
            return masked.tell_masked(query_id, *node.mask(run, query_id, inbox))
        if message_type == wire.SECAGG_SIGN:
            survivors, tags = get_names(terms, "survivors"), masked.bytes_of(content, "tags")
            return masked.tell_signature(query_id, node.sign(run, query_id, survivors, tags))
        signatures = masked.bytes_of(content, "signatures")
        return masked.tell_shares(query_id, node.reveal(run, query_id, signatures))
    except masked.SENSELESS:
        raise Refusal(RefusalCode.MALFORMED) from None


def _open_round(content: Message, node: Node, requester: str) -> Message:
    try:
        adverts = masked.adverts_of(content)
    except masked.SENSELESS:
        raise Refusal(RefusalCode.MALFORMED) from None
    asked = queries.read_query(content, node.expect)
    sent, head = node.open_round(asked.query, asked.plan, asked.run, requester, adverts)
    return masked.tell_sealed(asked.query.id, head, sent)


def _training(content: Message, message_type: str, node: Node) -> Message:
    try:
        if message_type == wire.MODEL:
            return trainings.tell_trained(node.trained(get_name(wire.asked_terms(content), "run")))
        run, asked, seconds = trainings.read_asked(content)
    except masked.SENSELESS:
        raise Refusal(RefusalCode.MALFORMED) from None
    return trainings.tell_progress(node.train(run, asked, seconds))
