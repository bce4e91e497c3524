"""One data holder: policy, ledger, teachers, mechanism, in this order, for every query.

The same object answers in process, inside a Flower ClientApp and behind the holder service.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from traceback import extract_tb

from fedtranscribe.errors import (
    BudgetExhaustedError,
    ConfigError,
    FedtranscribeError,
    ModelMismatchError,
    QueryConflictError,
    UnsupportedAdjacencyError,
)
from fedtranscribe.exchange import Answer, AnswerKind, NoisePlan, QueryBatch, RawAnswer
from fedtranscribe.federation.policy import HolderPolicy
from fedtranscribe.federation.refusals import Refusal, RefusalCode
from fedtranscribe.holder import Holder, Mechanism
from fedtranscribe.mechanisms import (
    ExponentialVoteLabels,
    NoiseSource,
    NoisyMeanRows,
    OsNoise,
    RawMeanRows,
    TopKRandomizedResponse,
)
from fedtranscribe.privacy.calibrate import EnsembleLayout, NoiseMode, RowAnswer
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.teachers import Teachers

log = logging.getLogger(__name__)

OpenLedger = Callable[[], AbstractContextManager[Ledger]]


@dataclass(frozen=True)
class Capabilities:
    """What a holder tells about itself; public facts and its policy, never how good it is.

    Attributes:
        name: how the server calls the holder in logs and files.
        classes, channels, size: what its teachers expect.
        shards: p, its teachers on disjoint records.
        positional_ids: whether its records are known by position only (then no add-remove).
        kinds: what it answers.
        noise: the least protective mode it accepts.
        rows_per_message, rows_per_run: its limits.
    """

    name: str
    classes: int
    channels: int
    size: int
    shards: int
    positional_ids: bool
    kinds: tuple[AnswerKind, ...]
    noise: NoiseMode
    rows_per_message: int
    rows_per_run: int

    def __post_init__(self) -> None:
        """Refuse what no holder can be; a server reads these off the wire."""
        if not (0 < len(self.name) <= 80 and self.name.isprintable()):
            raise ValueError("a name must be printable and have 1 to 80 characters")
        counts = self.classes, self.channels, self.size, self.shards
        if min(counts) < 1 or self.classes < 2:
            raise ValueError(f"classes, channels, size, shards = {counts} make no sense")


def mechanism_of(kind: AnswerKind, plan: NoisePlan, shards: int, k: int) -> Mechanism:
    """What answers of a holder with so many shards pass through under a plan.

    Holder and server both call it: the server to say what a run costs, the holder to book it.

    Raises:
        ConfigError: labels under another mode than `local`, or secure aggregation.
    """
    if kind is AnswerKind.LABEL:
        if plan.mode is not NoiseMode.LOCAL:
            raise ConfigError(f"Expected noise mode local with label answers, got {plan.mode}.")
        if shards == 1:
            return TopKRandomizedResponse(plan.strength, k)
        return ExponentialVoteLabels(plan.strength, k)
    layout = EnsembleLayout(plan.holders * shards, plan.holders)
    answer = RowAnswer(kind.value)
    if plan.mode is NoiseMode.LOCAL:
        return NoisyMeanRows(layout, plan.strength, answer)
    if plan.mode is NoiseMode.CENTRAL:
        return RawMeanRows(layout, plan.strength, answer)
    raise ConfigError(f"Expected noise mode local or central, got {plan.mode}.")


class Node:
    """A data holder that answers queries within its policy.

    Args:
        name: how the server calls it.
        teachers: its ensemble.
        policy: its own limits.
        ledger: opens the budget book of its DATA under the policy's limit, for one query.
        positional_ids: whether records are known by row number only.
        at_start: called when a server asks who the holder is, as every run begins.
        noise: OS entropy unless a test says otherwise.

    Guarantee:
        That of the mechanism, for everything the ledger has booked, against whoever the policy
        does not trust. Only the public part of a query and the ledger's total can be refused;
        nothing that depends on a private record changes the code that comes back.
    """

    def __init__(
        self,
        name: str,
        teachers: Teachers,
        policy: HolderPolicy,
        ledger: OpenLedger,
        *,
        positional_ids: bool,
        at_start: Callable[[], None] = lambda: None,
        noise: NoiseSource | None = None,
    ) -> None:
        self.name = name
        self.teachers = teachers
        self.policy = policy
        self._open_ledger = ledger
        self._positional_ids = positional_ids
        self._at_start = at_start
        self._noise = noise or OsNoise()

    @property
    def private(self) -> bool:
        """Whether the noise is what a guarantee needs."""
        return self._noise.private

    def capabilities(self) -> Capabilities:
        """What the server may know before it asks."""
        self._at_start()
        m, policy = self.teachers.manifest, self.policy
        return Capabilities(
            name=self.name,
            classes=m.classes,
            channels=m.channels,
            size=m.size,
            shards=m.shards,
            positional_ids=self._positional_ids,
            kinds=policy.kinds,
            noise=policy.noise,
            rows_per_message=policy.rows_per_message,
            rows_per_run=policy.rows_per_run,
        )

    def answer(
        self, query: QueryBatch, plan: NoisePlan, run: str, requester: str
    ) -> Answer | RawAnswer:
        """Answer within the policy, or refuse with a code.

        Args:
            query: what is asked.
            plan: under which noise.
            run: under which name the ledger books.
            requester: who asks; bound to the query.

        Raises:
            Refusal: see `RefusalCode`.
        """
        try:
            return self._answer(query, plan, run, requester)
        except Refusal:
            raise
        except BudgetExhaustedError:
            raise Refusal(RefusalCode.BUDGET) from None
        except QueryConflictError:
            raise Refusal(RefusalCode.CONFLICT) from None
        except UnsupportedAdjacencyError:
            # This kind of answer has no cost in the unit that the policy counts in.
            raise Refusal(RefusalCode.POLICY) from None
        except (ConfigError, ModelMismatchError):
            raise Refusal(RefusalCode.MALFORMED) from None
        except Exception as error:
            log.error("holder %s could not answer query %s: %s", self.name, query.id, where(error))
            raise Refusal(RefusalCode.INTERNAL) from None

    def _answer(
        self, query: QueryBatch, plan: NoisePlan, run: str, requester: str
    ) -> Answer | RawAnswer:
        mechanism = mechanism_of(query.kind, plan, self.teachers.shards, query.k)
        with self._open_ledger() as ledger:
            self.policy.check(query, plan, ledger.rows(run, besides=query.id))
            holder = Holder(
                self.teachers,
                mechanism,
                ledger,
                run,
                positional_ids=self._positional_ids,
                terms=f"{requester}\0{run}\0{plan.words}",
                noise=self._noise,
            )
            if isinstance(mechanism, RawMeanRows):
                return holder.answer_raw(query)
            return holder.answer(query)


def where(error: Exception) -> str:
    """What went wrong and where, for the holder's own log.

    Our own messages are written to hold nothing private; others' may quote a record, so of them
    only the kind and the place are told.
    """
    words = str(error) if isinstance(error, FedtranscribeError) else "its text is not logged"
    frames = extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"
    return f"{type(error).__name__} at {place}: {words}"
