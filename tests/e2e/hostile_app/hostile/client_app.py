"""The honest relay, and a handler that attacks the holder service's socket itself.

A bundle comes from the server's side, so a hostile server can ship this.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedtranscribe.errors import StorageError
from fedtranscribe.flower.relay import SOCKET, make_relay_app
from fedtranscribe.holder.link import METHODS, NAME, call, health_socket
from fedtranscribe.questions import messages as wire
from fedtranscribe.questions.messages import unpack

JUNK = [b"", b"x", b"\xff" * 1_000_000, (1 << 62).to_bytes(8, "little"), bytes(200_000_000)]

app = make_relay_app()


@app.query("junk")
def junk(message: Message, context: Context) -> Message:
    """Send junk, hold streams open, and ask for health; tell what came of it."""
    socket = Path(str(context.node_config[SOCKET]))
    codes = [_code(socket, frame) for frame in JUNK]
    with ExitStack() as stack:
        over = threading.Event()
        stack.callback(over.set)
        for _ in range(32):
            channel = stack.enter_context(grpc.insecure_channel(f"unix:{socket}"))
            ask = channel.stream_unary(f"/{NAME}/{METHODS[wire.ANSWER]}")
            ask.future(_silence(over), timeout=10)
        over.wait(2)
    told = {"codes": codes, "health": health_socket(socket).exists()}
    return Message(RecordDict({"told": ConfigRecord(told)}), reply_to=message)


def _code(socket: Path, frame: bytes) -> str:
    try:
        reply = unpack(call(socket, wire.ANSWER, frame, 60, wait=30))
    except StorageError as error:
        return str(error)
    return str(reply.terms.get("refusal"))


def _silence(over: threading.Event) -> Iterator[bytes]:
    yield b"a beginning"
    over.wait(10)
