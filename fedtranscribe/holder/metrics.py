"""What an operator may see of a holder service, as Prometheus metrics in a file."""

import logging
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)

import fedtranscribe
from fedtranscribe.errors import StorageError
from fedtranscribe.files import write_atomically
from fedtranscribe.holder.holder_file import HolderFile
from fedtranscribe.holder.readiness import budget_left, quotas
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.units import Unit
from fedtranscribe.questions import messages as wire
from fedtranscribe.questions.refusals import RefusalCode

# A second gauge for each counter, which says when it began.
disable_created_metrics()

_PREFIX = "fedtranscribe_holder"
_SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_MEGABYTE = 1_000_000


class Metrics:
    """Counters and gauges of one holder service; any thread may use them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        build = Info(f"{_PREFIX}_build", "Versions of the software.", registry=self.registry)
        build.info({"version": fedtranscribe.__version__, "protocol": str(wire.VERSION)})
        self._start_time = self._gauge("start_time_seconds", "Unix time when the service began.")
        self._start_time.set_to_current_time()
        self._written = self._gauge(
            "written_timestamp_seconds", "Unix time when these values were written."
        )
        self._answered = self._counter("answered", "Messages that were answered.", "message")
        self._refused = self._counter("refused", "Messages refused, by code.", "message", "code")
        self._seconds = Histogram(
            f"{_PREFIX}_message_seconds",
            "Time to work on a message, rounded up to the next bucket.",
            ["message"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._in_flight = self._gauge(
            "messages_in_flight", "Messages that arrive, wait or are being answered."
        )
        self._ledger_ok = self._gauge("ledger_ok", "1 if the ledger could be read and verified.")
        self._sequence = self._gauge("ledger_sequence", "Number of the ledger's last entry.")
        self._delta = self._gauge("delta", "δ of the budget in force.", "unit")
        self._limit = self._gauge("epsilon_limit", "ε that the policy allows now.", "unit")
        self._highest = self._gauge(
            "epsilon_highest_limit", "Highest ε ever allowed: that of all answers.", "unit"
        )
        self._booked = self._gauge("epsilon_booked", "ε that is booked.", "unit")
        self._left = self._gauge("epsilon_left", "ε limit less what is booked.", "unit")
        self._used = self._gauge("quota_used", "What is stored, by quota.", "quota")
        self._allowed = self._gauge("quota_limit", "What may be stored, by quota.", "quota")
        for message in map(_short, wire.MESSAGES):
            self._answered.labels(message)
            self._seconds.labels(message)
            for code in RefusalCode:
                self._refused.labels(message, code.value)

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Count a message from its first byte to its reply."""
        with self._in_flight.track_inprogress():
            yield

    def answered(self, message_type: str, seconds: float) -> None:
        """Count a message that got an answer."""
        self._answered.labels(_short(message_type)).inc()
        self._took(message_type, seconds)

    def refused(self, message_type: str, code: str, seconds: float | None = None) -> None:
        """Count a message that got a code; without seconds it was refused unread."""
        self._refused.labels(_short(message_type), RefusalCode(code).value).inc()
        if seconds is not None:
            self._took(message_type, seconds)

    def measure(self, file: HolderFile, ledger: Ledger) -> None:
        """Take over what ledger and folders hold; from the thread that owns the ledger."""
        self._ledger_ok.set(1)
        self._sequence.set(ledger.head.sequence)
        if ledger.budget is not None:
            self._delta.labels(ledger.budget.unit.value).set(ledger.budget.delta)
        figures = budget_left(ledger)
        kinds = {
            "booked": self._booked,
            "left": self._left,
            "limit": self._limit,
            "highest limit": self._highest,
        }
        for unit in Unit:
            for kind, gauge in kinds.items():
                value = figures.get(f"{unit} {kind}")
                if value is not None:
                    gauge.labels(unit.value).set(value)
                else:
                    # No sum over records has a cost per holder; the 0 of before would be a lie.
                    with suppress(KeyError):
                        gauge.remove(unit.value)
        for name, quota in quotas(file, ledger).items():
            label, used = name.replace(" ", "_"), quota["used"]
            if label == "stored_bytes":
                # How much the checkpoints of a training take may depend on the records.
                used = math.ceil(used / _MEGABYTE) * _MEGABYTE
            self._used.labels(label).set(used)
            self._allowed.labels(label).set(quota["limit"])

    def ledger_failed(self) -> None:
        """The ledger cannot be read; its other values stay as they were."""
        self._ledger_ok.set(0)

    def render(self) -> bytes:
        """All metrics as Prometheus' text format."""
        self._written.set_to_current_time()
        return generate_latest(self.registry)

    def _took(self, message_type: str, seconds: float) -> None:
        # The histogram's sum is exported too. Of exact times it would tell the time of each answer,
        # which for sums over records grows with their number.
        bound = next((b for b in _SECONDS if seconds <= b), 10 * _SECONDS[-1])
        self._seconds.labels(_short(message_type)).observe(bound)

    def _gauge(self, name: str, words: str, *labels: str) -> Gauge:
        return Gauge(f"{_PREFIX}_{name}", words, labels, registry=self.registry)

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(f"{_PREFIX}_{name}", words, labels, registry=self.registry)


def _short(message_type: str) -> str:
    """The label of a message type; whatever is none of ours is one."""
    return message_type.removeprefix("query.") if message_type in wire.MESSAGES else "unknown"


log = logging.getLogger(__name__)

_WRITE_SECONDS = 15.0
_PATIENCE_SECONDS = 5.0
_MODE = 0o640


class MetricsFile:
    """Writes the metrics every 15 seconds, as long as it is entered; then the file is gone."""

    def __init__(
        self, path: Path, render: Callable[[], bytes], measure: Callable[[], Future[None]]
    ) -> None:
        self._path, self._render, self._measure = path, render, measure
        self._measuring: Future[None] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_writing, name="metrics", daemon=True)

    def __enter__(self) -> None:
        # Zeros that only mean "not looked at yet" would raise alerts.
        self._measuring = self._measure()
        wait([self._measuring])
        self.write()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._path.unlink(missing_ok=True)

    def write(self) -> None:
        """Write the file now."""
        if self._measuring is None or self._measuring.done():
            self._measuring = self._measure()
        wait([self._measuring], timeout=_PATIENCE_SECONDS)
        write_atomically(self._path, self._render(), mode=_MODE)

    def _keep_writing(self) -> None:
        failing = False
        while not self._stop.wait(_WRITE_SECONDS):
            try:
                self.write()
                failing = False
            except StorageError as error:
                # Answers matter more; the age of the file raises the alert.
                if not failing:
                    log.warning("Metrics are not written: %s", error)
                failing = True
