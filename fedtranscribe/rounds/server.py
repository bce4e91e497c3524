"""The server's rounds: ask, wait, combine, learn; whatever the holders do.

A holder that is silent or fails is asked again under the same query id, which costs it nothing
twice; one that refuses for good leaves the run. The rows that a holder was asked are counted as
spent unless it said that it booked nothing, so the printed ε can only be too large.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from fedtranscribe.config import RoundSettings
from fedtranscribe.errors import ConfigError, ProtocolError, QuorumError
from fedtranscribe.methods.method import Combined, Method, Show
from fedtranscribe.noise.sources import KeyedNoise, NoiseSource, OsNoise
from fedtranscribe.privacy.units import Adjacency, NoiseMode, Unit
from fedtranscribe.questions.kinds import query_from
from fedtranscribe.questions.question import Answer, Query, RawAnswer
from fedtranscribe.results.progress import Report, ignore
from fedtranscribe.results.run_directory import Checkpoint, RunDirectory
from fedtranscribe.rounds.plan import Plan
from fedtranscribe.rounds.roster import Complaint, Standing, quorum
from fedtranscribe.rounds.transport import Reply, Transport, combine, combine_masked
from fedtranscribe.text import counted

if TYPE_CHECKING:
    from fedtranscribe.rounds.masked_sum import MaskedSum

log = logging.getLogger(__name__)

_CURVE_POINTS = 20

Events = Callable[[Standing], list[dict[str, Any]]]
"""What has been booked so far, as `events.jsonl` tells it."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

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
    """Runs a method over a transport.

    Args:
        method: student side.
        plan: of the run.
        transport: reaches the holders.
        settings: quorum, retries, what a spent budget does.
        run: where checkpoints go.
        unit: of the ε that is reported on the way.
        evaluate: accuracy on a test set that is public by declaration, or None.
        report: receives progress, a dict as in `progress.jsonl`.
        events: what has been booked; what the standing says, where nothing knows better.
        noise: for `central` mode; follows from the run's key unless a test says otherwise.

    Raises:
        StorageError: the run's key is gone.
    """

    def __init__(
        self,
        method: Method[Any],
        plan: Plan,
        transport: Transport,
        settings: RoundSettings,
        run: RunDirectory,
        unit: Unit,
        *,
        evaluate: Callable[[], float] | None = None,
        report: Report = ignore,
        events: Events | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        self._method = method
        self._plan = plan
        self._transport = transport
        self._settings = settings
        self._run = run
        self._unit = unit
        self._evaluate = evaluate
        self._report = report
        self._events = events or self._events_of_holders
        self._noise = noise or self._own_noise()
        self._standing = Standing()
        self._resumed = False
        self._asking: Query | None = None
        self._left_stored: dict[str, str] = {}
        self._curve: tuple[list[int], list[float]] = ([], [])
        self._masked = self._masked_sum() if plan.noise.mode is NoiseMode.SECAGG else None

    def serve(self, stored: Checkpoint | None, show: Show) -> Outcome:
        """Rounds until every row of the plan is answered; goes on from a checkpoint.

        State and query are stored together before the holders are asked. After a crash the same
        query goes out again, byte for byte, and the ledgers replay its answer: nothing is spent
        twice.

        A run whose result is written asks nobody: it learns from what is stored.

        Args:
            stored: where an interrupted run goes on.
            show: receives what is done after the last answer.

        Raises:
            QuorumError: too few holders answered a round; the run can be resumed.
            ConfigError: a checkpoint of another plan; nobody has been asked.
        """
        query, stopped = self._restore(stored), None
        while stopped is None and (query is not None or not self._method.finished):
            if self._run.finished and (query is None or self._run.load_answer(query.id) is None):
                # What it cost has been stated: nobody is asked any more, whatever they would say.
                stopped = "the run had ended before its plan did"
                break
            if query is None:
                query = self._method.ask()
                self._save(query)
            answer = self._settle(query)
            if answer is None:
                stopped = self._stop_reason()
                break
            losses = self._method.learn(query, answer)
            self._tell(query, losses)
            query = None
            if self._must_stop():
                stopped = self._stop_reason()
        self._method.finish(show)
        return Outcome(self._standing, self._method.rows, stopped, self._curve)

    # ---------------------------------------------------------------- one round

    def _settle(self, query: Query) -> Combined | None:
        """The combined answer to a query; None to stop.

        It is stored before anything is learned from it, so that nobody is asked again.
        """
        part, stored = self._method.part, self._run.load_answer(query.id)
        if stored is not None:
            self._standing = Standing(**stored["standing"])
            values, answered = stored["values"], stored["answered"]
            return Combined(query.id, values, self._plan.strength(part, answered))
        found = self._gather(query) if self._masked is None else self._gather_masked(query)
        if found is None:
            return None
        values, answered = found
        standing = self._standing.to_json()
        self._run.save_answer(
            query.id, {"values": values, "answered": answered, "standing": standing}
        )
        return Combined(query.id, values, self._plan.strength(part, answered))

    def _gather(self, query: Query) -> tuple[torch.Tensor, int] | None:
        """The private mean or sum of single answers, and how many there are; None to stop."""
        replies = self._collect(query)
        if self._must_stop():
            return None
        needed = quorum(self._settings, len(self._plan.roster))
        if len(replies) < needed:
            if self._standing.exhausted() and len(self._present()) < needed:
                return None
            raise QuorumError(
                f"{counted(len(replies), 'holder')} answered {query.id}, quorum={needed}; resume "
                "the run when more of them are back, or set a smaller quorum."
            )
        private = combine(query, replies, self._plan, self._method.part, self._noise)
        return private, len(replies)

    def _gather_masked(self, query: Query) -> tuple[torch.Tensor, int] | None:
        """As `_gather`, by secure aggregation: nobody's own answer is ever seen."""
        assert self._masked is not None
        present, part = self._present(), self._plan.parts[self._method.part]
        self._asking = query
        try:
            total, answered = self._masked.settle(query, part, present)
        except QuorumError:
            # Those who are silent may come back; those whose budget is spent will not.
            if self._standing.exhausted() and len(self._present()) < self._plan.members.quorum:
                return None
            raise
        finally:
            self._resumed = False
            # Whoever was asked may have booked it, also if the round came to nothing.
            self._count(query, present, [])
        if self._must_stop():
            return None
        for name in answered:
            self._standing.count_answer(name)
        return combine_masked(total, part, len(answered)), len(answered)

    def _collect(self, query: Query) -> list[Answer | RawAnswer]:
        """Answers in the order of the holders' names; the silent are asked again."""
        answers: dict[str, Answer | RawAnswer] = {}
        again, self._resumed = self._resumed, False
        noise = self._plan.parts[self._method.part].noise
        for attempt in range(self._settings.retries + 1):
            waiting = [n for n in self._present() if n not in answers]
            if not waiting:
                break
            if attempt:
                # Whatever broke needs a moment: a worker that died fails its next messages too.
                time.sleep(self._settings.retry_after * 2 ** (attempt - 1))
                log.warning("asking again for %s: %s", query.id, ", ".join(waiting))
            replies = self._transport.ask(waiting, query, noise, self._run.run_id)
            for name in waiting:
                reply = self._judge(name, replies.get(name))
                if isinstance(reply, Answer | RawAnswer):
                    answers[name] = reply
                else:
                    first = attempt == 0 and not again
                    self._standing.note(name, reply, self._spent(query), first=first)
        # The silent ones may have booked it.
        self._count(query, self._present(), list(answers))
        return [answers[name] for name in sorted(answers)]

    def _count(self, query: Query, asked: list[str], answered: list[str]) -> None:
        left = self._standing.left
        for name in self._plan.roster:
            # Who left in this round was charged as it left, if at all.
            if name in answered or (name in asked and name not in left):
                self._standing.charge(name, self._spent(query))
            if name in answered:
                self._standing.count_answer(name)
        self._run.write_events(self._events(self._standing))

    def _judge(self, name: str, reply: Reply | None) -> Reply | None:
        """Raw rows only where they were asked for, from a ledger that only grows."""
        if not isinstance(reply, Answer | RawAnswer):
            return reply
        raw = self._plan.noise.mode is NoiseMode.CENTRAL
        if not self._standing.grown(name, reply.head):
            return ProtocolError("a ledger that went back")
        if isinstance(reply, RawAnswer) is not raw:
            return ProtocolError("an answer of the wrong kind")
        return reply

    # ---------------------------------------------------------------- small parts

    def _spent(self, query: Query | None) -> list[int]:
        """Rows of a query, by part."""
        rows = 0 if query is None else query.rows
        parts = range(len(self._plan.parts))
        return [rows if part == self._method.part else 0 for part in parts]

    def _present(self) -> list[str]:
        return self._standing.present(self._plan.roster)

    def _must_stop(self) -> bool:
        return self._settings.on_exhausted == "stop" and bool(self._standing.exhausted())

    def _stop_reason(self) -> str:
        return f"the budget of {', '.join(self._standing.exhausted())} was spent"

    def _save(self, query: Query) -> None:
        state = {
            "method": self._method.state(),
            "standing": self._standing.to_json(),
            "plan": self._plan.outline(),
        }
        self._run.save_checkpoint(state, query.to_dict(), list(self._curve))
        self._left_stored = dict(self._standing.left)

    def _own_noise(self) -> NoiseSource:
        """Of `central` mode; elsewhere the server draws none."""
        # A finished run asks nobody, so it can be opened where the holder has kept private/.
        needed = self._plan.noise.mode is NoiseMode.CENTRAL and not self._run.finished
        return KeyedNoise(self._run.noise_key()) if needed else OsNoise()

    def _masked_sum(self) -> "MaskedSum":
        # Of an extra that one machine does without.
        from fedtranscribe.rounds.masked_sum import MaskedSum

        return MaskedSum(
            self._plan,
            self._transport,
            self._settings,
            self._run.run_id,
            self._run.path / "checkpoints",
            self,
        )

    def count_failure(
        self, name: str, complaint: Complaint, query: Query | None, *, charged: bool
    ) -> None:
        """See `masked_sum.Watch`."""
        first = not (charged or self._resumed)
        self._standing.note(name, complaint, self._spent(query), first=first)

    def keep(self) -> None:
        """See `masked_sum.Watch`."""
        if self._asking is not None and self._standing.left != self._left_stored:
            self._save(self._asking)

    def grown(self, name: str, head: tuple[int, str]) -> bool:
        """See `masked_sum.Watch`."""
        return self._standing.grown(name, head)

    def _restore(self, stored: Checkpoint | None) -> Query | None:
        if stored is None:
            return None
        if stored.state["plan"] != self._plan.outline():
            raise ConfigError(
                f"The run in {self._run.path} was planned with other noise: the number of records "
                "has changed since, or a setting has. Put them back, or start a new run."
            )
        self._method.load_state(stored.state["method"])
        self._standing = Standing(**stored.state["standing"])
        self._left_stored = dict(self._standing.left)
        self._resumed = True
        self._curve = (list(stored.curve[0]), list(stored.curve[1]))
        query = query_from(**stored.query)
        return self._abandoned(query) if self._settings.abandon else query

    def _abandoned(self, query: Query) -> Query:
        """The same rows under a new id, if a masked round of them was begun; paid for again."""
        if self._masked is None or not self._masked.began(query.id):
            return query
        if self._run.load_answer(query.id) is not None:
            return query  # it came to its end before the interrupt
        log.warning("round %s is abandoned; its query is repeated and charged again", query.id)
        for name in self._present():
            self._standing.charge(name, self._spent(query))
        self._standing.abandoned += query.rows
        anew = replace(query, id=f"{query.id}+")
        self._save(anew)
        return anew

    def _events_of_holders(self, standing: Standing) -> list[dict[str, Any]]:
        return [
            {"holder": name, "release": release.to_json()}
            for name, rows in standing.rows.items()
            for release in self._plan.releases(name, rows)
        ]

    def _tell(self, query: Query, losses: dict[str, float]) -> None:
        method, value = self._method, None
        every = max(1, self._rounds // _CURVE_POINTS)
        if self._evaluate is not None and (method.round % every == 0 or method.finished):
            value = self._evaluate()
            self._curve[0].append(method.rows)
            self._curve[1].append(value)
        stated = self._plan.guarantee(self._standing.rows, self._unit, Adjacency.ZERO_OUT)
        spent = stated.epsilon if stated else None
        log.info(
            "%s: %s %s/%s%s, %s",
            query.id,
            method.stage,
            f"{method.rows:,}",
            f"{self._plan.rows:,}",
            "" if value is None else f", accuracy {value:.1%}",
            "no guarantee" if spent is None else f"ε = {spent:.4g}",
        )
        self._report(
            {
                "stage": method.stage,
                "done": method.rows,
                "total": self._plan.rows,
                "accuracy": value,
                "epsilon": spent,
                "bytes": self._transport.payload,
                **losses,
            }
        )

    @property
    def _rounds(self) -> int:
        """How many the whole run has, about."""
        return self._plan.rows * max(1, self._method.round) // max(1, self._method.rows)
