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
)
from fedtranscribe.exchange import Answer, AnswerKind, QueryBatch, RawAnswer, Summand
from fedtranscribe.mechanisms import (
    BitSource,
    ExponentialVoteLabels,
    MeanRows,
    NoiseSource,
    NoisyMeanRows,
    OsBits,
    OsNoise,
    QuantisedMeanRows,
    RawMeanRows,
    RowBound,
    TopKRandomizedResponse,
    mean_rows,
    vote_counts,
)
from fedtranscribe.methods.distillation import RowGradient, decoupled_distillation, gradient_of
from fedtranscribe.privacy.answering import answer_once
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import Release
from fedtranscribe.teachers import Teachers

Mechanism = (
    NoisyMeanRows | RawMeanRows | QuantisedMeanRows | TopKRandomizedResponse | ExponentialVoteLabels
)


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
        bits: likewise, for integer rows.
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
        bits: BitSource | None = None,
        row_gradient: RowGradient | None = None,
        gradient_bound: Literal[RowBound.UNIT, RowBound.CLIP] = RowBound.UNIT,
    ) -> None:
        _expect_layout(mechanism, teachers.shards)
        self.teachers = teachers
        self.mechanism = mechanism
        self.ledger = ledger
        self.run = run
        self.noise = noise or OsNoise()
        self.bits = bits or OsBits()
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
        if isinstance(self.mechanism, RawMeanRows | QuantisedMeanRows):
            raise ConfigError("Expected a mechanism whose single answers are private.")
        stored, head = self._charged(query)
        return Answer(query.id, _decode(stored, query), head)

    def answer_raw(self, query: QueryBatch) -> RawAnswer:
        """As `answer`, for a server whose noise the holder's policy trusts; NOT private.

        Raises:
            ConfigError: the mechanism is not `RawMeanRows`; otherwise as `answer`.
        """
        if not isinstance(self.mechanism, RawMeanRows):
            raise ConfigError("Expected a mechanism for raw rows; this one's answers are private.")
        stored, head = self._charged(query)
        return RawAnswer(query.id, _decode(stored, query), head)

    def summand(self, query: QueryBatch) -> Summand:
        """As `answer`, for a masked sum; NOT private alone.

        Raises:
            ConfigError: the mechanism is not `QuantisedMeanRows`; otherwise as `answer`.
        """
        if not isinstance(self.mechanism, QuantisedMeanRows):
            raise ConfigError("Expected a mechanism for masked sums; this one's answers are not.")
        stored, head = self._charged(query)
        return Summand(query.id, decode_summand(stored, query.rows, query.k), head)

    def reserve(self, query: QueryBatch) -> bool:
        """Charge a query before it is computed; whether its answer is stored already.

        Raises:
            As `answer`.
        """
        self._check_public_part(query)
        return self.ledger.reserve(*self._booking(query)).answer is not None

    def _booking(self, query: QueryBatch) -> tuple[str, str, Release, str]:
        bound_to = hashlib.sha256(f"{query.digest()}\0{self._terms}".encode()).hexdigest()
        return query.id, bound_to, self.release(query.rows), self.run

    def _charged(self, query: QueryBatch) -> tuple[bytes, tuple[int, str]]:
        self._check_public_part(query)

        def compute() -> bytes:
            return self._compute(query).contiguous().numpy().tobytes()

        stored, head = answer_once(self.ledger, *self._booking(query), compute)
        return stored, (head.sequence, head.hash)

    def _check_public_part(self, query: QueryBatch) -> None:
        if query.kind is not self.mechanism.kind:
            raise ConfigError(
                f"Expected {self.mechanism.kind} queries, got {query.kind}; "
                "ask for the kind that this holder offers."
            )
        # Integer rows and labels are booked for one k.
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
        if isinstance(self.mechanism, MeanRows | QuantisedMeanRows):
            raw = self._raw_rows(query, logits)
            bound = self._bounds[query.kind]
            rows = mean_rows(raw, query.index_sets, self.teachers.shards, bound)
            if isinstance(self.mechanism, QuantisedMeanRows):
                return self.mechanism.privatise(rows, self.bits.for_query(query.id))
            return self.mechanism.privatise(rows, noise).float()
        return self.mechanism.privatise(vote_counts(logits, query.index_sets), noise).float()

    def _raw_rows(self, query: QueryBatch, logits: Iterator[Tensor]) -> Iterator[Tensor]:
        for shard_logits in logits:
            if query.kind is AnswerKind.VOTE:
                yield F.softmax(shard_logits.double(), dim=-1)
            else:
                assert query.student_logits is not None  # QueryBatch refuses it otherwise
                yield self._row_gradient(shard_logits, query.student_logits)


def _expect_layout(mechanism: Mechanism, shards: int) -> None:
    """A mechanism that counts on more teachers than there are would book too little."""
    if isinstance(mechanism, MeanRows | QuantisedMeanRows):
        counted = mechanism.layout.shards
    elif isinstance(mechanism, TopKRandomizedResponse):
        counted = 1
    else:
        return  # one vote moves by one record, however many teachers vote
    if counted != shards:
        raise ConfigError(f"Expected a mechanism for {shards} shards, got one for {counted}.")


def decode_summand(stored: bytes, rows: int, k: int) -> Tensor:
    """The integers [rows, k] that the ledger stored for a masked sum.

    Raises:
        CorruptLedgerError: their number is wrong.
    """
    return torch.from_numpy(_numbers(stored, np.int64, rows, k))


def _decode(stored: bytes, query: QueryBatch) -> Tensor:
    return torch.from_numpy(_numbers(stored, np.float32, query.rows, query.k))


def _numbers(stored: bytes, kind: type[np.generic], rows: int, k: int) -> np.ndarray:
    size = np.dtype(kind).itemsize
    if len(stored) != rows * k * size:
        raise CorruptLedgerError(
            f"A stored answer has {len(stored) / size:g} values, expected {rows * k}; the ledger "
            "was not written by this version."
        )
    return np.frombuffer(stored, dtype=kind).reshape(rows, k).copy()
