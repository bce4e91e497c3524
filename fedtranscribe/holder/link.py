"""How the SuperNode's side reaches the holder service: gRPC over a Unix domain socket."""

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fedtranscribe.errors import StorageError
from fedtranscribe.files import open_private, unwritable
from fedtranscribe.questions import messages as wire

NAME = "fedtranscribe.Holder"
METHODS = {
    wire.CAPABILITIES: "Capabilities",
    wire.ANSWER: "Answer",
    wire.SECAGG_KEY: "SecAggKey",
    wire.SECAGG_OPEN: "SecAggOpen",
    wire.SECAGG_MASK: "SecAggMask",
    wire.SECAGG_SIGN: "SecAggSign",
    wire.SECAGG_REVEAL: "SecAggReveal",
    wire.TRAIN: "Train",
    wire.MODEL: "Model",
}
HEALTH_SUFFIX = ".health"
PIECE_BYTES = 1_000_000

# A trained network comes back in one piece; what the service takes in is limited there.
_LONGEST_REPLY = 1 << 30
_WAIT_SECONDS = 60.0
_LOOK_SECONDS = 0.5
_HEALTH_SECONDS = 5.0
_RECONNECT_MS = 1_000
_TRIES = 3
# The service is there, but answers as many as it can at once.
_BUSY = grpc.StatusCode.RESOURCE_EXHAUSTED
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def health_socket(socket: Path) -> Path:
    """Where a service that answers on `socket` reports its health."""
    return socket.with_name(f"{socket.name}{HEALTH_SUFFIX}")


def is_serving(socket: Path, timeout: float = _HEALTH_SECONDS) -> bool:
    """Whether a holder service answers there and takes questions; for the holder's own user."""
    with grpc.insecure_channel(f"unix:{health_socket(socket)}") as channel:
        try:
            check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]
            reply = check(health_pb2.HealthCheckRequest(), timeout=timeout)
        except grpc.RpcError:
            return False
    return reply.status == health_pb2.HealthCheckResponse.SERVING


def is_reachable(socket: Path, timeout: float = _HEALTH_SECONDS) -> bool:
    """Whether this user can connect to a holder service there, within `timeout` seconds."""
    # No service knows this method, so any answer shows that one is there. `channel_ready_future`
    # would leave a thread that can read the channel after it was closed and print a traceback.
    options = (("grpc.max_reconnect_backoff_ms", _RECONNECT_MS),)
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        try:
            channel.unary_unary("/fedtranscribe.Anyone/There")(
                b"", timeout=timeout, wait_for_ready=True
            )
        except grpc.RpcError as error:
            return error.code() not in _UNREACHABLE  # type: ignore[attr-defined]
    return True


def call(
    socket: Path, message_type: str, frame: bytes, timeout: float, wait: float | None = None
) -> bytes:
    """Ask the service; one that is being restarted, or is busy, is waited for and asked again.

    Asking again is safe: the same query gets its stored answer.

    Args:
        socket: the service's.
        message_type: a key of `METHODS`.
        frame: the message.
        timeout: seconds that an answer may take.
        wait: seconds to wait for a service that is not there or busy; a minute if not given.
    """
    wait = _WAIT_SECONDS if wait is None else wait
    until, failures = time.monotonic() + wait, 0
    while failures < _TRIES:
        left = max(until - time.monotonic(), _LOOK_SECONDS)
        if not is_reachable(socket, left):
            break
        try:
            return _ask(socket, message_type, frame, timeout)
        except grpc.RpcError as error:
            code = error.code()  # type: ignore[attr-defined]
        if code is _BUSY:
            if time.monotonic() > until:
                raise StorageError(
                    f"The holder service on {socket} was busy for {wait:.0f} s; ask again later."
                )
            time.sleep(_LOOK_SECONDS)
        elif code is grpc.StatusCode.UNAVAILABLE:
            failures += 1
            until = time.monotonic() + wait
        else:
            break
    raise StorageError(
        f"No holder service answers on {socket}; start it: fedtranscribe holder serve."
    )


def _ask(socket: Path, message_type: str, frame: bytes, timeout: float) -> bytes:
    options = (("grpc.max_receive_message_length", _LONGEST_REPLY),)
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        ask = channel.stream_unary(f"/{NAME}/{METHODS[message_type]}")
        return ask(_pieces(frame), timeout=timeout)


def _pieces(frame: bytes) -> Iterator[bytes]:
    for start in range(0, len(frame), PIECE_BYTES):
        yield frame[start : start + PIECE_BYTES]


class SocketLock:
    """Hold the lock beside the socket: a second service would take it away unnoticed."""

    def __init__(self, socket: Path) -> None:
        self._path = socket.with_name(f"{socket.name}.lock")
        self._file: IO[str] | None = None

    def __enter__(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # For us alone: who may open it may hold the lock, and no service could start again.
            self._file = os.fdopen(open_private(self._path, os.O_RDWR), "r+")
        except OSError as error:
            raise unwritable(self._path, error) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise StorageError(
                f"Another holder service answers on {self._path.with_suffix('')}; stop it first."
            ) from None

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
