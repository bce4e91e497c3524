"""How the SuperNode's side reaches the holder service: gRPC over a Unix domain socket."""

import time
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fedtranscribe.errors import StorageError
from fedtranscribe.federation import records

NAME = "fedtranscribe.Holder"
METHODS = {
    records.CAPABILITIES: "Capabilities",
    records.ANSWER: "Answer",
    records.SECAGG_KEY: "SecAggKey",
    records.SECAGG_OPEN: "SecAggOpen",
    records.SECAGG_MASK: "SecAggMask",
    records.SECAGG_SIGN: "SecAggSign",
    records.SECAGG_REVEAL: "SecAggReveal",
    records.TRAIN: "Train",
    records.MODEL: "Model",
}

_MOST_BYTES = 1 << 30
OPTIONS = (
    ("grpc.max_receive_message_length", _MOST_BYTES),
    ("grpc.max_send_message_length", _MOST_BYTES),
)
_WAIT_SECONDS = 60.0
_LOOK_SECONDS = 0.5
_HEALTH_SECONDS = 5.0
_TRIES = 3


def is_serving(socket: Path, timeout: float = _HEALTH_SECONDS) -> bool:
    """Whether a holder service answers there and takes questions."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        try:
            check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]
            reply = check(health_pb2.HealthCheckRequest(), timeout=timeout)
        except grpc.RpcError:
            return False
    return reply.status == health_pb2.HealthCheckResponse.SERVING


def call(
    socket: Path, message_type: str, frame: bytes, timeout: float, wait: float | None = None
) -> bytes:
    """Ask the service; one that is being restarted is waited for and asked again.

    Asking again is safe: the same query gets its stored answer.

    Args:
        socket: the service's.
        message_type: a key of `METHODS`.
        frame: the message.
        timeout: seconds that an answer may take.
        wait: seconds to wait for a service that is not there; a minute if not given.

    Raises:
        StorageError: nobody answers; names the socket and the mend.
    """
    for _ in range(_TRIES):
        if not _wait(socket, _WAIT_SECONDS if wait is None else wait):
            break
        with grpc.insecure_channel(f"unix:{socket}", options=OPTIONS) as channel:
            ask = channel.unary_unary(f"/{NAME}/{METHODS[message_type]}")
            try:
                return ask(frame, timeout=timeout)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:  # type: ignore[attr-defined]
                    break
    raise StorageError(
        f"No holder service answers on {socket}; start it: fedtranscribe holder serve."
    )


def _wait(socket: Path, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not is_serving(socket):
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
