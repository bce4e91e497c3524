"""The ClientApp of a deployed holder: it passes messages to the holder service, and nothing else.

Its code comes from the server's side, and Flower starts a process for every message. So it knows
no records, no teachers, no ledger and no torch, and an attacker who changes it gains nothing: the
service does not trust it.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedtranscribe.errors import StorageError
from fedtranscribe.flower.records import message_of, record_of
from fedtranscribe.holder.link import METHODS, call
from fedtranscribe.questions import messages as wire
from fedtranscribe.questions.messages import pack, unpack
from fedtranscribe.questions.refusals import Refusal, RefusalCode

log = logging.getLogger(__name__)

SOCKET = "holder-socket"
_ANSWER_SECONDS = 3_600.0


def make_relay_app() -> ClientApp:
    """A ClientApp for `flower-supernode --node-config 'holder-socket="/run/holder.sock"'`."""
    app = ClientApp()
    for message_type in METHODS:
        app.query(message_type.removeprefix("query."))(_relay(message_type))
    return app


def _relay(message_type: str) -> Callable[[Message, Context], Message]:
    def handle(message: Message, context: Context) -> Message:
        asked = message_of(message.content)
        try:
            socket = Path(str(context.node_config[SOCKET]))
            reply = unpack(call(socket, message_type, pack(asked), _ANSWER_SECONDS))
        except Refusal as refusal:
            reply = wire.echo_holder(wire.refuse(refusal), asked)
        except (KeyError, StorageError) as error:
            log.error("%s", error if isinstance(error, StorageError) else _NO_SOCKET)
            refusal = Refusal(RefusalCode.INTERNAL)
            reply = wire.echo_holder(wire.refuse(refusal), asked)
        return Message(record_of(reply), reply_to=message)

    return handle


_NO_SOCKET = f"Start this node with --node-config '{SOCKET}=\"/path/to/holder.sock\"'."
