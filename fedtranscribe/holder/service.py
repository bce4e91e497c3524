"""The holder service: records, teachers and ledger behind a local socket, and its journal."""

import json
import logging
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from fedtranscribe.errors import FedtranscribeError, StorageError
from fedtranscribe.files import json_objects, who_may_open
from fedtranscribe.holder.answering import LazyLedger
from fedtranscribe.holder.holder_file import HolderFile
from fedtranscribe.holder.holding import Holding
from fedtranscribe.holder.link import METHODS, NAME, PIECE_BYTES, SocketLock, health_socket
from fedtranscribe.holder.metrics import Metrics, MetricsFile
from fedtranscribe.holder.node import Node, reply_to
from fedtranscribe.holder.readiness import expect_closed
from fedtranscribe.privacy.ledger import PROVED_WITHIN, Head
from fedtranscribe.questions import messages as wire
from fedtranscribe.questions.messages import Message, pack, unpack
from fedtranscribe.questions.refusals import Refusal, RefusalCode

_MOST_BYTES, _COPIES = 10_000_000, 5
_LONGEST = 100
_LONGEST_WORDS = 500  # of our own log lines


class Journal:
    """Appends one line per event; the file is turned over at 10 MB and five copies are kept.

    Args:
        path: of the file; its folder is made. None writes to standard error.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._handler: logging.Handler = (
            logging.StreamHandler()
            if path is None
            else RotatingFileHandler(
                path, maxBytes=_MOST_BYTES, backupCount=_COPIES, encoding="utf-8"
            )
        )
        self._handler.setFormatter(logging.Formatter("%(message)s"))

    def write(self, event: str, **facts: str | float | int | None) -> None:
        """Append an event; texts that came from outside are cut."""
        cut = {k: v[:_LONGEST] if isinstance(v, str) else v for k, v in facts.items()}
        self._log(event, cut)

    def own_log(self) -> logging.Handler:
        """What puts the package's own log lines here too, as events of the name `log`."""
        journal = self

        class _ErrorLines(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                words = record.getMessage()[:_LONGEST_WORDS]
                journal._log("log", {"level": record.levelname, "words": words})

        return _ErrorLines()

    def close(self) -> None:
        """Let go of the file."""
        self._handler.close()

    def _log(self, event: str, facts: Mapping[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        text = json.dumps({"time": now, "event": event, **facts})
        self._handler.handle(
            logging.LogRecord("journal", logging.INFO, "", 0, text, args=None, exc_info=None)
        )


def refusals(path: Path | None) -> dict[str, int]:
    """How often each refusal code is in the journal's current file."""
    return dict(Counter(str(e.get("code")) for e in entries(path) if e.get("event") == "refused"))


def entries(path: Path | None) -> list[Mapping[str, Any]]:
    """The events in the journal's current file; a damaged line is passed over."""
    if path is None or not path.exists():
        return []
    return list(json_objects(path.read_text(encoding="utf-8").splitlines()))


log = logging.getLogger(__name__)

# Messages that may arrive or wait at once; more are told that the service is busy.
_CALLERS = 8
# Each needs a connection, and each connection a file descriptor.
_CONNECTIONS = 64
# In which a whole message has to arrive; one that was begun is then dropped.
_ARRIVAL_SECONDS = 30.0
_GRACE_SECONDS = 120.0
_OPTIONS = (
    ("grpc.max_receive_message_length", PIECE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_allowed_incoming_connections", _CONNECTIONS),
    ("grpc.max_connection_idle_ms", 60_000),
)


class HolderService:
    """A holder's node that answers bytes with bytes, one message at a time.

    One thread does all the work, because networks and ledger belong to one; messages queue for it.
    So memory does not grow with the callers: a message is no longer than the policy's
    `bytes_per_message`, and what is made of it no more than a few times as much.
    """

    def __init__(self, file: HolderFile, journal: Journal) -> None:
        self._file, self._journal, self.metrics = file, journal, Metrics()
        self._server_name = file.holder.server
        self._longest = file.bytes_per_message
        # The ledger's head when its metrics were taken; None if a message came since.
        self._measured: Head | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="holder")
        try:
            self._node, self._ledger = self._worker.submit(open_node, file).result()
        except BaseException:
            self._worker.shutdown()
            raise

    def handle(self, message_type: str, frame: bytes) -> bytes:
        """Reply to a message; never raises."""
        return self._worker.submit(self._handle, message_type, frame).result()

    def take(self, message_type: str, pieces: Iterable[bytes]) -> bytes:
        """Reply to a message that arrives in pieces; one that is too long is not read on."""
        with self.metrics.in_flight():
            arrived, length = [], 0
            for piece in pieces:
                arrived.append(piece)
                length += len(piece)
                if length > self._longest:
                    return self._refuse(RefusalCode.POLICY, message_type)
            frame = b"".join(arrived)
            # Not twice while it waits.
            arrived.clear()
            return self.handle(message_type, frame)

    def measure(self) -> Future[None]:
        """Bring the metrics of the ledger up to date, behind the messages that wait."""
        return self._worker.submit(self._measure)

    def close(self) -> None:
        """Finish what is being answered and let go of the ledger."""
        self._worker.submit(self._ledger.close)
        self._worker.shutdown()

    def _handle(self, message_type: str, frame: bytes) -> bytes:
        began = time.monotonic()
        self._measured = None
        try:
            content = unpack(frame)
        except Refusal as refusal:
            return self._refuse(refusal.code, message_type)
        reply = reply_to(content, message_type, self._open, self._server_name)
        asked, answered = content.terms, reply.terms
        facts = {k: str(asked[k]) for k in ("query-id", "run", "kind", "mode") if k in asked}
        seconds = time.monotonic() - began
        code = str(answered["refusal"]) if "refusal" in answered else None
        if code is None:
            self.metrics.answered(message_type, seconds)
        else:
            self.metrics.refused(message_type, code, seconds)
        self._journal.write(
            "answered" if code is None else "refused",
            message=message_type,
            code=code,
            seconds=round(seconds, 3),
            **facts,
        )
        return pack(reply)

    def _measure(self) -> None:
        try:
            with self._ledger() as ledger:
                # Another process may book in the same ledger, too.
                if ledger.head != self._measured:
                    self.metrics.measure(self._file, ledger)
                    self._measured = ledger.head
        except FedtranscribeError as error:
            self.metrics.ledger_failed()
            self._measured = None
            log.error("The ledger cannot be read for the metrics: %s", error)

    def _refuse(self, code: RefusalCode, message_type: str) -> bytes:
        self.metrics.refused(message_type, code.value)
        self._journal.write("refused", message=message_type, code=code.value)
        return pack(wire.echo_holder(wire.refuse(Refusal(code)), Message()))

    def _open(self, number: int) -> Node:
        # One holder per service: whatever number the server thinks of, it is this one.
        return self._node


def open_node(file: HolderFile) -> tuple[Node, LazyLedger]:
    """The node that a holder's file describes, everything proved and loaded."""
    _expect_closed(file.holder.ledger.parent)
    holding = Holding.open(file)
    if holding.records is None and file.sums_wanted and file.holder.records is not None:
        log.warning("No sums are given: %s cannot be read here.", file.holder.records)
    place = holding.ledger_place()
    if holding.unseen() is not None:
        log.warning("Cannot look for another ledger next to the data; see holder policy check.")
    backbones = file.backbones()
    facts = holding.facts(backbones)
    ledger = LazyLedger(file.holder.ledger, holding.data_id, file.policy.budget)
    ledger.prove()
    if holding.ids is not None:
        with ledger() as opened:
            opened.note_ids(holding.ids)
    place.mark()
    node = Node(
        file.holder.name,
        holding.statistics(backbones),
        lambda: facts,
        file.policy,
        ledger,
        at_start=partial(ledger.prove, PROVED_WITHIN),
        masking=file.masking(),
        trainings=holding.trainings(ledger),
    )
    return node, ledger


def _expect_closed(folder: Path) -> None:
    who = who_may_open(folder) if folder.is_dir() else None
    if who is not None:
        mode = stat.S_IMODE(folder.stat().st_mode)
        raise StorageError(
            f"The ledger's folder {folder} is open to {who} (mode {mode:o}); chmod 700 {folder}."
        )


def serve(
    file: HolderFile, stop: threading.Event, ready: Callable[[], None] = lambda: None
) -> None:
    """Answer on the holder's socket until `stop` is set, then finish what was begun."""
    place = file.holder
    if place.metrics is not None:
        expect_closed(place.metrics, place.socket)
    journal = Journal(place.log)
    ours = logging.getLogger("fedtranscribe")
    ours.addHandler(handler := journal.own_log())
    try:
        with SocketLock(place.socket):
            service = HolderService(file, journal)
            try:
                with _metrics_of(service, place.metrics):
                    _serve(service, place.socket, journal, stop, ready)
            finally:
                service.close()
    finally:
        ours.removeHandler(handler)
        journal.close()


def _metrics_of(service: HolderService, path: Path | None) -> AbstractContextManager[None]:
    """Writes the service's metrics for as long as it is entered, if the holder wants them."""
    if path is None:
        return nullcontext()
    return MetricsFile(path, service.metrics.render, service.measure)


def _serve(
    service: HolderService,
    socket: Path,
    journal: Journal,
    stop: threading.Event,
    ready: Callable[[], None],
) -> None:
    server = grpc.server(
        ThreadPoolExecutor(_CALLERS), maximum_concurrent_rpcs=_CALLERS, options=_OPTIONS
    )
    server.add_generic_rpc_handlers((_handlers(service),))
    # The group of the socket's folder may ask; nobody else can even connect.
    _listen(server, socket, _GROUPS)
    state, checked = health.HealthServicer(), grpc.server(ThreadPoolExecutor(1))
    health_pb2_grpc.add_HealthServicer_to_server(state, checked)
    _listen(checked, health_socket(socket), _OWN)
    server.start()
    checked.start()
    state.set("", health_pb2.HealthCheckResponse.SERVING)
    journal.write("started", socket=str(socket))
    ready()
    stop.wait()
    state.enter_graceful_shutdown()
    server.stop(_GRACE_SECONDS).wait()
    checked.stop(None).wait()
    for path in (socket, health_socket(socket)):
        path.unlink(missing_ok=True)
    journal.write("stopped")


# What the umask leaves of a new socket's mode.
_GROUPS, _OWN = 0o117, 0o177


def _listen(server: grpc.Server, socket: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        server.add_insecure_port(f"unix:{socket}")
    except RuntimeError:
        raise StorageError(f"Cannot make the socket {socket}; check its folder.") from None
    finally:
        os.umask(before)


def _handlers(service: HolderService) -> grpc.GenericRpcHandler:
    def handler(message_type: str) -> grpc.RpcMethodHandler:
        return grpc.stream_unary_rpc_method_handler(
            lambda pieces, context: service.take(message_type, _in_time(pieces, context))
        )

    return grpc.method_handlers_generic_handler(
        NAME, {method: handler(message_type) for message_type, method in METHODS.items()}
    )


def _in_time(pieces: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    """The pieces of a message; a caller that does not send them in time is hung up on."""
    timer = threading.Timer(_ARRIVAL_SECONDS, context.cancel)
    timer.start()
    try:
        yield from pieces
    finally:
        timer.cancel()
