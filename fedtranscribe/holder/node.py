"""One data holder: policy, ledger, records or teachers; and its replies to messages."""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from fedtranscribe.config.facts import Facts
from fedtranscribe.errors import ProtocolError
from fedtranscribe.holder.answering import Holder, decode
from fedtranscribe.holder.masking import Masking
from fedtranscribe.holder.policy import HolderPolicy
from fedtranscribe.holder.trainings import Trainings
from fedtranscribe.noise.mask_keys import Advert, Members
from fedtranscribe.noise.masked import MaskedShare, residues
from fedtranscribe.noise.masks import Residues
from fedtranscribe.noise.secagg import Task
from fedtranscribe.noise.sources import BitSource, NoiseSource, OsBits, OsNoise
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.questions import masked_messages as masked
from fedtranscribe.questions import messages as wire
from fedtranscribe.questions import query_messages as queries
from fedtranscribe.questions import training_messages as trainings
from fedtranscribe.questions.capabilities import Capabilities
from fedtranscribe.questions.messages import Message, get, get_name, get_names
from fedtranscribe.questions.question import Answer, Query, RawAnswer, Scalar
from fedtranscribe.questions.refusals import Refusal, RefusalCode, refusing, where
from fedtranscribe.questions.statistic import Statistic
from fedtranscribe.questions.training_messages import TrainedNetwork, TrainingProgress
from fedtranscribe.trainers.training import training_id

# What one value of an answer may take on disk, and the key of a run.
_WORD_BYTES = 8
_RUN_BYTES = 4_096

OpenLedger = Callable[[], AbstractContextManager[Ledger]]


class Node:
    """A data holder that answers queries within its policy.

    Args:
        name: how the server calls it.
        statistics: what it can be asked for; none, and it answers nothing.
        facts: what is public about its private side.
        policy: its own limits.
        ledger: opens the budget book of its DATA under the policy's limit, for one query.
        at_start: called when a server asks who the holder is, as every run begins.
        noise: OS entropy unless a test says otherwise.
        bits: OS entropy unless a test says otherwise, for integer rows.
        masking: its part in masked sums; None, and it takes part in none.
        trainings: its private trainings; None, and it carries out none.

    Guarantee:
        That of the mechanism, for everything the ledger has booked, against every party that the
        policy does not trust. Only the public part of a query and the ledger's total can be
        refused; nothing that depends on a private record changes the code that comes back.
    """

    def __init__(
        self,
        name: str,
        statistics: Mapping[str, Statistic[Any]],
        facts: Callable[[], Facts],
        policy: HolderPolicy,
        ledger: OpenLedger,
        *,
        at_start: Callable[[], None] = lambda: None,
        noise: NoiseSource | None = None,
        bits: BitSource | None = None,
        masking: Masking | None = None,
        trainings: Trainings | None = None,
    ) -> None:
        self.name = name
        self.policy = policy
        self._statistics = statistics
        self._facts = facts
        self._open_ledger = ledger
        self._at_start = at_start
        self._noise = noise or OsNoise()
        self._bits = bits or OsBits()
        self._masking = masking
        self._trainings = trainings

    @property
    def private(self) -> bool:
        """Whether the noise is what a guarantee needs."""
        return self._noise.private and self._bits.private

    def capabilities(self) -> Capabilities:
        """What the server may know before it asks, once the ledger is proved."""
        self._at_start()
        return self.facts

    @property
    def facts(self) -> Capabilities:
        """What is public about the holder; messages are held against it before they are read."""
        return self.policy.capabilities(
            self.name,
            self._facts(),
            self._statistics,
            masks=self._masking is not None,
            trains=self._trainings is not None,
        )

    def expect(
        self, kind: str, shapes: Mapping[str, tuple[int, ...]], terms: Mapping[str, Scalar]
    ) -> None:
        """Refuse a query by the shapes of its arrays, before anything is made of them.

        Raises:
            ConfigError, KeyError, ValueError: shapes that the holder cannot answer.
            Refusal: POLICY for too many rows, and for what it is never asked for.
        """
        if kind not in self._statistics:
            raise Refusal(RefusalCode.POLICY)
        if self._statistics[kind].expect(shapes, terms) > self.policy.rows_per_message:
            raise Refusal(RefusalCode.POLICY)

    def answer(self, query: Query, plan: NoisePlan, run: str, requester: str) -> Answer | RawAnswer:
        """Answer within the policy, or refuse with a code.

        Args:
            query: what is asked.
            plan: under which noise.
            run: under which name the ledger books.
            requester: who asks; bound to the query.

        Raises:
            Refusal: see `RefusalCode`.
        """
        with refusing(self.name, query.id):
            if plan.mode is NoiseMode.SECAGG:
                # Integer rows leave under masks only, see `open_round`.
                raise Refusal(RefusalCode.MALFORMED)
            with self._booked(query, plan, run, f"{requester}\0{run}") as holder:
                return holder.answer(query, plan)

    # ---------------------------------------------------------------- masked sums

    def advertise(
        self, run: str, names: Sequence[str], dropouts: int, colluders: int
    ) -> tuple[Advert, tuple[str, ...]]:
        """The holder's signed key for a run's masked sums, and whom it drew to mask with.

        Raises:
            Refusal: POLICY for a cohort that the policy does not bear, or whose graph of masks
                leaves too much to chance for the policy's δ; CONFLICT for one with
                strangers in it or another one than before.
        """
        with refusing(self.name, run):
            self.policy.check_cohort(dropouts, colluders)
            masks = self._masks
            # Before its graph: that of thousands of invented names would take a while to compute.
            masks.expect_known(names)
            members = Members(tuple(sorted(set(names))), dropouts, colluders)
            # A server may look at what some holders drew, give a run up and start another one with
            # other holders first: no run costs it more than one of a holder's, so m times as many.
            graphs = self.policy.runs * len(members.names)
            if not members.graph.negligible(self.policy.delta, graphs):
                raise Refusal(RefusalCode.POLICY)
            if not masks.knows_run(run):
                self.policy.check_usage(masks.runs + 1, 0, masks.size + _RUN_BYTES)
            return masks.advertise(run, names, dropouts, colluders)

    def open_round(
        self,
        query: Query,
        plan: NoisePlan,
        run: str,
        requester: str,
        adverts: Iterable[Advert],
    ) -> tuple[Mapping[str, bytes], tuple[int, str]]:
        """Charge and compute a query, keep the answer, and give sealed shares of its masks.

        Args:
            query: as for `answer`.
            plan: as for `answer`.
            run: as for `answer`.
            requester: as for `answer`.
            adverts: its neighbours' keys of the run, the same ones for every query.

        Returns:
            Sealed shares by receiver, and the head of the ledger.

        Raises:
            Refusal: as `answer`; CONFLICT also where the ledger knows the query but its round has
                been forgotten: it could be masked a second time.
        """
        with refusing(self.name, query.id):
            masks = self._masks
            masks.agree(run, adverts)
            cohort = masks.cohort(run)
            agreed = len(cohort.names), cohort.dropouts, cohort.colluders
            if (plan.holders, plan.dropouts, plan.colluders) != agreed:
                raise Refusal(RefusalCode.CONFLICT)
            shared = f"{run}\0{plan.words}\0{cohort.digest.hex()}"
            with self._booked(query, plan, run, f"{requester}\0{shared}") as holder:
                mechanism = holder.mechanism(query, plan)
                if not isinstance(mechanism, MaskedShare):
                    raise Refusal(RefusalCode.MALFORMED)
                grid = mechanism.grid
                # The same at every holder, whatever each of them calls the server.
                words = f"{query.digest()}\0{shared}\0{grid.bits} {grid.word}"
                bound_to = hashlib.sha256(words.encode()).hexdigest()
                task = Task(query.id, bound_to, query.rows * query.width, grid.word)
                if holder.reserve(query, plan) and not masks.knows(query.id):
                    raise Refusal(RefusalCode.CONFLICT)
                sent = masks.open(run, task)
                return sent, holder.summand(query, plan).head

    def mask(
        self, run: str, query_id: str, inbox: Mapping[str, bytes]
    ) -> tuple[bytes, Mapping[str, bytes]]:
        """The holder's masked vector, out of what `open_round` kept, and tags for its neighbours.

        Raises:
            Refusal: CONFLICT for anything but the one continuation of the round.
        """

        def values(task: Task) -> Residues:
            with self._open_ledger() as ledger:
                stored = ledger.answer(task.query)
            if stored is None:
                raise ProtocolError(f"Query {task.query} was opened but is not answered yet.")
            return residues(decode(stored, 1, task.length, MaskedShare.dtype)[0], task.word)

        with refusing(self.name, query_id):
            return self._masks.mask(run, query_id, inbox, values)

    def sign(
        self, run: str, query_id: str, survivors: Iterable[str], tags: Mapping[str, bytes]
    ) -> bytes:
        """A signature under whose vectors make the sum; raises as `mask`."""
        with refusing(self.name, query_id):
            return self._masks.sign(run, query_id, survivors, tags)

    def reveal(
        self, run: str, query_id: str, signatures: Mapping[str, bytes]
    ) -> Mapping[str, bytes]:
        """Shares that open the masks of the signed sum, by owner; raises as `mask`."""
        with refusing(self.name, query_id):
            return self._masks.reveal(run, query_id, signatures)

    # ---------------------------------------------------------------- private trainings

    def train(self, run: str, asked: Mapping[str, Any], seconds: float) -> TrainingProgress:
        """Begin a private training or go on with it, for so many seconds.

        Args:
            run: its name.
            asked: what the server chose.
            seconds: that it may take now; at most the policy's `training_seconds`.

        Raises:
            Refusal: POLICY for a method that the holder does not carry out, BUDGET, QUOTA,
                MALFORMED for settings that make no sense or are not the server's to choose.
        """
        with refusing(self.name, run):
            self.policy.check_method(asked.get("method"))
            trains = self._trains
            settings = trains.settings(asked)
            self.policy.check_cost(settings.epsilon, settings.delta)
            if not trains.knows(run):
                with self._open_ledger() as ledger:
                    self._admit(ledger, training_id(run), run, 0)
            return trains.advance(run, settings, min(seconds, self.policy.training_seconds))

    def trained(self, run: str) -> TrainedNetwork:
        """The network of a finished training.

        Raises:
            Refusal: CONFLICT where there is none.
        """
        with refusing(self.name, run):
            return self._trains.result(run)

    # ---------------------------------------------------------------- small parts

    @property
    def _trains(self) -> Trainings:
        if self._trainings is None:
            raise Refusal(RefusalCode.POLICY)
        return self._trainings

    @property
    def _masks(self) -> Masking:
        if self._masking is None:
            raise Refusal(RefusalCode.POLICY)
        return self._masking

    def _admit(self, ledger: Ledger, query_id: str, run: str, size: int) -> None:
        """Refuse a new query for which the holder has no room; `size` bytes are its answer."""
        if ledger.knows(query_id):
            return
        used = ledger.usage(run)
        runs = used.runs if used.queries else used.runs + 1
        self.policy.check_usage(runs, used.queries + 1, self._stored(ledger) + size)

    def _stored(self, ledger: Ledger) -> int:
        """Bytes that the holder keeps because of what it was asked."""
        stores = (self._masking, self._trainings)
        return ledger.size + sum(part.size for part in stores if part is not None)

    @contextmanager
    def _booked(self, query: Query, plan: NoisePlan, run: str, terms: str) -> Iterator[Holder]:
        """The holder's answering side over its open ledger, once the policy has agreed."""
        if query.kind not in self._statistics:
            raise Refusal(RefusalCode.POLICY)
        # Noise that this kind cannot have makes no sense, whatever the policy says of it.
        statistic = self._statistics[query.kind]
        statistic.check(query)
        statistic.mechanism(query, plan)
        with self._open_ledger() as ledger:
            self.policy.check(query, plan, ledger.rows(run, besides=query.id))
            self._admit(ledger, query.id, run, query.rows * query.width * _WORD_BYTES)
            yield Holder(
                self._statistics,
                ledger,
                run,
                positional_ids=self._facts().positional_ids,
                terms=terms,
                noise=self._noise,
                bits=self._bits,
            )


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
