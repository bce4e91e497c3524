"""The data holder's side: ledger first, then teachers, then the mechanism, then the answer.

The same object serves one machine and a federation. Whatever the student side sends, a holder
answers only what its mechanism is set up for, and only after its ledger has booked it.
"""

import hashlib
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedtranscribe.errors import (
    ConfigError,
    CorruptLedgerError,
    ModelMismatchError,
    QueryConflictError,
)
from fedtranscribe.exchange import Answer, AnswerKind, QueryBatch, RawAnswer
from fedtranscribe.mechanisms import (
    ExponentialVoteLabels,
    MeanRows,
    NoiseSource,
    NoisyMeanRows,
    OsNoise,
    RawMeanRows,
    RowBound,
    TopKRandomizedResponse,
    mean_rows,
    vote_counts,
)
from fedtranscribe.methods.distillation import RowGradient, decoupled_distillation, gradient_of
from fedtranscribe.privacy.events import Release
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.teachers import Teachers

Mechanism = NoisyMeanRows | RawMeanRows | TopKRandomizedResponse | ExponentialVoteLabels


class Holder:
    """Answers queries about private teachers, charging the ledger before it computes anything.

    Args:
        teachers: an ensemble on disjoint shards of the holder's records.
        mechanism: what every answer passes through; its kind is the only one answered.
        ledger: the budget book of the DATA, open for writing.
        run: name under which the ledger books.
        positional_ids: whether records are known by row number only (then no add-remove).
        terms: who asks and under which noise plan; bound to every query beside its content.
        noise: OS entropy unless a test says otherwise.
        row_gradient: ∂L_t/∂Φ_s of Eq. 3; benchmarks pass classic distillation.
        gradient_bound: unit rows as in Eq. 3, or clipping for the paper's ablation; both lie in
            the same ball.

    Guarantee:
        That of the mechanism, for the sum of everything the ledger has booked. Order of each
        query: check the public part, reserve durably, compute, store the private answer, release.
        A repeated query gets the stored answer; noise is never drawn twice for one query.
    """

    def __init__(
        self,
        teachers: Teachers,
        mechanism: Mechanism,
        ledger: Ledger,
        run: str,
        *,
        positional_ids: bool,
        terms: str = "",
        noise: NoiseSource | None = None,
        row_gradient: RowGradient | None = None,
        gradient_bound: Literal[RowBound.UNIT, RowBound.CLIP] = RowBound.UNIT,
    ) -> None:
        _expect_layout(mechanism, teachers.shards)
        self.teachers = teachers
        self.mechanism = mechanism
        self.ledger = ledger
        self.run = run
        self.noise = noise or OsNoise()
        self._positional_ids = positional_ids
        self._terms = terms
        self._row_gradient = row_gradient or gradient_of(decoupled_distillation)
        self._bounds = {AnswerKind.GRADIENT: gradient_bound, AnswerKind.VOTE: RowBound.SIMPLEX}

    def release(self, rows: int) -> Release:
        """What answering so many rows gives away, per unit and adjacency."""
        return self.mechanism.release(rows, positional_ids=self._positional_ids)

    def answer(self, query: QueryBatch) -> Answer:
        """Answer one query, once: charged once, replayable for ever.

        Raises:
            ConfigError, ModelMismatchError: the public query does not fit; nothing was booked.
            BudgetExhaustedError: the holder's limit would be exceeded; nothing was booked.
            QueryConflictError: the id was used for another query.
        """
        if isinstance(self.mechanism, RawMeanRows):
            raise ConfigError("Expected a mechanism that adds noise; raw rows are `answer_raw`'s.")
        return Answer(query.id, *self._charged(query))

    def answer_raw(self, query: QueryBatch) -> RawAnswer:
        """As `answer`, for a server whose noise the holder's policy trusts; NOT private.

        Raises:
            ConfigError: the mechanism is not `RawMeanRows`; otherwise as `answer`.
        """
        if not isinstance(self.mechanism, RawMeanRows):
            raise ConfigError("Expected a mechanism for raw rows; this one's answers are private.")
        return RawAnswer(query.id, *self._charged(query))

    def _charged(self, query: QueryBatch) -> tuple[Tensor, tuple[int, str]]:
        self._check_public_part(query)
        bound_to = hashlib.sha256(f"{query.digest()}\0{self._terms}".encode()).hexdigest()
        booking = query.id, bound_to, self.release(query.rows), self.run
        stored = self.ledger.reserve(*booking).answer
        if stored is None:
            stored = self._compute(query).to(torch.float32).contiguous().numpy().tobytes()
            try:
                self.ledger.commit(query.id, stored)
            except QueryConflictError:
                # Another process was asked the same and came first: its answer stands.
                stored = self.ledger.reserve(*booking).answer
                assert stored is not None
        head = self.ledger.head
        return _decode(stored, query), (head.sequence, head.hash)

    def _check_public_part(self, query: QueryBatch) -> None:
        if query.kind is not self.mechanism.kind:
            raise ConfigError(
                f"Expected {self.mechanism.kind} queries, got {query.kind}; "
                "ask for the kind that this holder offers."
            )
        k = None if isinstance(self.mechanism, MeanRows) else self.mechanism.k
        # A label out of a smaller set tells more than the ledger would book.
        if k is not None and query.k != k:
            raise ConfigError(f"Expected index sets of k={k} classes, got {query.k}.")
        manifest = self.teachers.manifest
        expected = (manifest.channels, manifest.size, manifest.size)
        if tuple(query.images.shape[1:]) != expected:
            raise ModelMismatchError(
                f"Expected query images of shape {expected}, got {tuple(query.images.shape[1:])}."
            )
        classes = query.student_logits.shape[1] if query.student_logits is not None else None
        if int(query.index_sets.max()) >= manifest.classes or classes not in (
            None,
            manifest.classes,
        ):
            raise ModelMismatchError(f"Expected queries over {manifest.classes} classes.")

    def _compute(self, query: QueryBatch) -> Tensor:
        logits = self.teachers.logits(query.images)
        noise = self.noise.for_query(query.id)
        if isinstance(self.mechanism, MeanRows):
            raw = self._raw_rows(query, logits)
            bound = self._bounds[query.kind]
            rows = mean_rows(raw, query.index_sets, self.teachers.shards, bound)
            return self.mechanism.privatise(rows, noise)
        return self.mechanism.privatise(vote_counts(logits, query.index_sets), noise)

    def _raw_rows(self, query: QueryBatch, logits: Iterator[Tensor]) -> Iterator[Tensor]:
        for shard_logits in logits:
            if query.kind is AnswerKind.VOTE:
                yield F.softmax(shard_logits.double(), dim=-1)
            else:
                assert query.student_logits is not None  # QueryBatch refuses it otherwise
                yield self._row_gradient(shard_logits, query.student_logits)


def _expect_layout(mechanism: Mechanism, shards: int) -> None:
    """A mechanism that counts on more teachers than there are would book too little."""
    if isinstance(mechanism, MeanRows):
        counted = mechanism.layout.shards
    elif isinstance(mechanism, TopKRandomizedResponse):
        counted = 1
    else:
        return  # one vote moves by one record, however many teachers vote
    if counted != shards:
        raise ConfigError(f"Expected a mechanism for {shards} shards, got one for {counted}.")


def _decode(stored: bytes, query: QueryBatch) -> Tensor:
    values = np.frombuffer(stored, dtype=np.float32)
    if values.size != query.rows * query.k:
        raise CorruptLedgerError(
            f"The stored answer to {query.id} has {values.size} values, "
            f"expected {query.rows * query.k}; the ledger was not written by this version."
        )
    return torch.from_numpy(values.reshape(query.rows, query.k).copy())
