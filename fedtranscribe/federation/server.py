"""The server side of FedDPSD: ask, wait, combine, learn; whatever the holders do.

A holder that is silent or fails is asked again under the same query id, which costs it nothing
twice; one that refuses for good leaves the run. The rows that a holder was asked are counted as
spent unless it said that it booked nothing, so the printed ε can only be too large.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from fedtranscribe.config import FederationSettings
from fedtranscribe.errors import ProtocolError, QuorumError
from fedtranscribe.exchange import Answer, AnswerKind, QueryBatch, RawAnswer
from fedtranscribe.federation.plan import FederatedPlan
from fedtranscribe.federation.refusals import RefusalCode
from fedtranscribe.federation.roster import quorum
from fedtranscribe.federation.transport import Reply, Transport
from fedtranscribe.mechanisms import CentralNoise, NoiseSource, OsNoise
from fedtranscribe.methods.dpsd import DPSD
from fedtranscribe.privacy.calibrate import NoiseMode, RowAnswer
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.tracking import Report, ignore
from fedtranscribe.transcribe.rundir import Checkpoint, RunDirectory

log = logging.getLogger(__name__)

_FAR_TAIL = 12.0


# Asking again would change nothing.
_FINAL = frozenset(
    {RefusalCode.PROTOCOL, RefusalCode.MALFORMED, RefusalCode.POLICY, RefusalCode.CONFLICT}
)


@dataclass
class Standing:
    """How the holders stand; part of every checkpoint.

    Attributes:
        rows: rows that each holder may have been charged for.
        heads: last (sequence, hash) of each holder's ledger, so that one put back is noticed.
        answers: rounds that each holder answered.
        left: why a holder takes part no more.
    """

    rows: dict[str, int] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    heads: dict[str, list[Any]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON-able."""
        return deepcopy(asdict(self))


@dataclass(frozen=True)
class Outcome:
    """How a federated run ended.

    Attributes:
        standing: of the holders.
        rows: rows learned from.
        stopped: why it ended before its plan did; None if it did not.
        curve: (rows, accuracy) along the way, where accuracy may be told.
    """

    standing: Standing
    rows: int
    stopped: str | None
    curve: tuple[list[int], list[float]]


class Server:
    """Runs Algorithm 2 over a transport.

    Args:
        method: student side.
        plan: of the run.
        transport: reaches the holders.
        settings: quorum, retries, what a spent budget does.
        run: where checkpoints go.
        evaluate: accuracy on a test set that is public by declaration, or None.
        report: receives progress, a dict as in `progress.jsonl`.
        noise: for `central` mode; OS entropy unless a test says otherwise.
    """

    def __init__(
        self,
        method: DPSD,
        plan: FederatedPlan,
        transport: Transport,
        settings: FederationSettings,
        run: RunDirectory,
        *,
        evaluate: Callable[[], float] | None = None,
        report: Report = ignore,
        noise: NoiseSource | None = None,
    ) -> None:
        self._method = method
        self._plan = plan
        self._transport = transport
        self._settings = settings
        self._run = run
        self._evaluate = evaluate
        self._report = report
        self._noise = noise or OsNoise()
        self._standing = Standing()
        self._resumed = False
        self._curve: tuple[list[int], list[float]] = ([], [])

    def serve(self, stored: Checkpoint | None = None) -> Outcome:
        """Rounds until every row of the plan is answered; goes on from a checkpoint.

        Raises:
            QuorumError: too few holders answered a round; the run can be resumed.
        """
        query, stopped = self._restore(stored), None
        while stopped is None and (query is not None or not self._method.finished):
            if query is None:
                query = self._method.ask()
                self._save(query)
            answer, answered = self._settle(query)
            if answer is None:
                stopped = self._stop_reason()
                break
            losses = self._method.learn(query, answer, self._plan.sharpness(answered))
            self._tell(query, losses)
            query = None
            if self._settings.on_exhausted == "stop" and self._exhausted():
                stopped = self._stop_reason()
        self._method.finish(self._settings.dpsd.finish_steps)
        return Outcome(self._standing, self._rows, stopped, self._curve)

    # ---------------------------------------------------------------- one round

    def _settle(self, query: QueryBatch) -> tuple[Answer | None, int]:
        """The combined answer to a query and how many holders are in it; (None, 0) to stop.

        It is stored before anything is learned from it: noise of the server's own is never
        drawn twice for one query.
        """
        stored = self._run.load_answer(query.id)
        if stored is not None:
            self._standing = Standing(**stored["standing"])
            return Answer(query.id, stored["values"], (0, "")), stored["answered"]
        replies = self._collect(query)
        if self._settings.on_exhausted == "stop" and self._exhausted():
            return None, 0
        needed = quorum(self._settings, len(self._plan.roster))
        if len(replies) < needed:
            if self._exhausted() and len(self._present()) < needed:
                return None, 0
            raise QuorumError(
                f"{len(replies)} holders answered {query.id}, quorum={needed}; resume the run "
                "when more of them are back, or set a smaller quorum."
            )
        values = combine(replies, self._plan, self._noise.for_query(query.id))
        answer = {
            "values": values,
            "answered": len(replies),
            "standing": self._standing.to_json(),
        }
        self._run.save_answer(query.id, answer)
        return Answer(query.id, values, (0, "")), len(replies)

    def _collect(self, query: QueryBatch) -> list[Answer | RawAnswer]:
        """Answers in the order of the holders' names; the silent are asked again."""
        answers: dict[str, Answer | RawAnswer] = {}
        again, self._resumed = self._resumed, False
        for attempt in range(self._settings.retries + 1):
            waiting = [name for name in self._present() if name not in answers]
            if not waiting:
                break
            if attempt:
                # Whatever broke needs a moment: a worker that died fails its next messages too.
                self._pause(attempt)
                log.warning("asking again for %s: %s", query.id, ", ".join(waiting))
            replies = self._transport.ask(waiting, query, self._plan.noise, self._run.run_id)
            for name in waiting:
                reply = replies.get(name)
                if isinstance(reply, Answer | RawAnswer) and self._fits(name, reply):
                    answers[name] = reply
                else:
                    self._note(name, reply, query.rows, first=attempt == 0 and not again)
        for name in self._plan.roster:
            # Silent ones may have booked it.
            if name in answers or name in self._present():
                self._add(self._standing.rows, name, query.rows)
            if name in answers:
                self._add(self._standing.answers, name, 1)
        self._write_events()
        return [answers[name] for name in sorted(answers)]

    def _pause(self, attempt: int) -> None:
        time.sleep(self._settings.retry_after * 2 ** (attempt - 1))

    def _fits(self, name: str, reply: Answer | RawAnswer) -> bool:
        """Raw rows only where they were asked for, from a ledger that only grows."""
        raw = self._plan.noise.mode is NoiseMode.CENTRAL
        before, head = self._standing.heads.get(name), list(reply.head)
        grown = before is None or head == before or head[0] > before[0]
        if grown:
            self._standing.heads[name] = head
        return isinstance(reply, RawAnswer) is raw and grown

    def _note(self, name: str, reply: Reply | None, rows: int, *, first: bool) -> None:
        """Keep a silent or failing holder, let go of one that refuses or talks nonsense.

        Only a refusal at first contact shows that nothing was booked; an earlier, lost message may
        have been charged, and a conflict proves that the id is known.
        """
        if reply is None:
            log.warning("holder %s did not answer in time", name)
        elif reply is RefusalCode.INTERNAL:
            log.warning("holder %s failed", name)
        elif reply is RefusalCode.BUDGET or reply in _FINAL:
            if not first or reply is RefusalCode.CONFLICT:
                self._add(self._standing.rows, name, rows)
            self._let_go(name, str(reply))
        else:
            # It was charged for what it sent, whatever that was.
            self._add(self._standing.rows, name, rows)
            odd = "an answer of the wrong kind, or a ledger that went back"
            self._let_go(name, str(reply) if isinstance(reply, ProtocolError) else odd)

    def _let_go(self, name: str, why: str) -> None:
        log.warning("holder %s takes part no more: %s", name, why)
        self._standing.left[name] = why

    # ---------------------------------------------------------------- small parts

    @property
    def _rows(self) -> int:
        total = self._method.round * self._settings.dpsd.round_rows
        return min(total, self._plan.rows)

    def _present(self) -> list[str]:
        return [name for name in self._plan.roster if name not in self._standing.left]

    def _exhausted(self) -> list[str]:
        spent = RefusalCode.BUDGET.value
        return [name for name, why in self._standing.left.items() if why == spent]

    def _stop_reason(self) -> str:
        return f"the budget of {', '.join(self._exhausted())} was spent"

    @staticmethod
    def _add(tally: dict[str, int], name: str, count: int) -> None:
        tally[name] = tally.get(name, 0) + count

    def _save(self, query: QueryBatch) -> None:
        state = {"method": self._method.state(), "standing": self._standing.to_json()}
        self._run.save_checkpoint(state, query, list(self._curve))

    def _restore(self, stored: Checkpoint | None) -> QueryBatch | None:
        if stored is None:
            return None
        self._method.load_state(stored.state["method"])
        self._standing = Standing(**stored.state["standing"])
        self._resumed = True
        self._curve = (list(stored.curve[0]), list(stored.curve[1]))
        return stored.query

    def _write_events(self) -> None:
        self._run.write_events(
            [
                {"holder": name, "release": self._plan.release(name, count).to_json()}
                for name, count in self._standing.rows.items()
            ]
        )

    def _tell(self, query: QueryBatch, losses: dict[str, float]) -> None:
        rows, value = self._rows, None
        if self._evaluate is not None:
            value = self._evaluate()
            self._curve[0].append(rows)
            self._curve[1].append(value)
        unit = Unit(self._settings.unit)
        stated = self._plan.guarantee(self._standing.rows, unit, Adjacency.ZERO_OUT)
        spent = stated.epsilon if stated else None
        log.info("%s: %d rows, accuracy %s, ε %s", query.id, rows, value, spent)
        self._report(
            {
                "stage": "rows answered",
                "done": rows,
                "total": self._plan.rows,
                "accuracy": value,
                "epsilon": spent,
                "bytes": self._transport.payload,
                **losses,
            }
        )


def combine(
    answers: Sequence[Answer | RawAnswer], plan: FederatedPlan, noise: NoiseSource
) -> torch.Tensor:
    """One private [n, k] out of the answers, given in the order of the holders' names.

    Labels are summed, since each is evidence of its own; everything else is averaged.

    Args:
        answers: all of the plan's kind, at least one.
        plan: of the run.
        noise: for `central` mode.
    """
    values = [answer.values for answer in answers]
    if plan.noise.mode is NoiseMode.CENTRAL:
        central = CentralNoise(plan.noise.strength, plan.noise.holders, RowAnswer(plan.kind.value))
        return central.noisy_mean(values, noise)
    total = torch.stack(values).double()
    if plan.kind is not AnswerKind.LABEL:
        # No honest answer is louder than a row and the far tail of its noise.
        loudest = 1 + _FAR_TAIL * plan.noise.strength * math.sqrt(plan.noise.holders)
        total = total.clamp(-loudest, loudest)
    total = total.sum(0)
    return (total if plan.kind is AnswerKind.LABEL else total / len(values)).float()
