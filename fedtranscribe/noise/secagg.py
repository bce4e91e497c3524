"""Masked sums of integer vectors: what a holder does, step by step, and what it remembers."""

import hashlib
import hmac
import json
import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import islice
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric import ec

from fedtranscribe.errors import ConfigError, ProtocolError
from fedtranscribe.files import parse_json
from fedtranscribe.noise.mask_keys import Cohort, KeyBook, sign, statement
from fedtranscribe.noise.masks import (
    SEED_BYTES,
    SHARE_BYTES,
    Residues,
    RoundKey,
    masked,
    residue_type,
    seal,
    sealing_key,
    split,
    tag,
    unseal,
)
from fedtranscribe.text import counted


@dataclass(frozen=True)
class Task:
    """Which vectors are summed in a round; public.

    Attributes:
        query: the query's id. It has one round for ever; what is given up is asked again under
            another id, and paid for again.
        bound_to: the hash that the ledger binds the query id to: its content, noise and cohort.
        length: how many values a vector has.
        word: of their residues, in bits.
    """

    query: str
    bound_to: str
    length: int
    word: int

    def __post_init__(self) -> None:
        residue_type(self.word)
        if not self.query or self.length < 1:
            raise ConfigError(f"Expected a query id and length={self.length} >= 1.")

    @property
    def size(self) -> int:
        """Of a vector, in bytes."""
        return self.length * residue_type(self.word).itemsize

    def digest(self, cohort: Cohort) -> bytes:
        """What every seed, seal, tag and signature of the round is bound to."""
        words = self.query.encode(), self.bound_to.encode(), f"{self.length} {self.word}".encode()
        return hashlib.sha256(statement("round", cohort.digest, *words)).digest()


@dataclass(frozen=True)
class Round:
    """A holder's side of one round. Holds seeds: it stays on the holder's machine.

    Attributes:
        task: what is summed.
        digest: of the task in one run and cohort.
        seed: of the own mask; fresh from the operating system.
        key: X25519, of this round only: pair masks come from it.
        own_shares: this holder's own shares of its seed and key.
        sent: for each neighbour, the round's public key and, if it was drawn, its sealed shares.
        received: from each neighbour that sent, its public key and the shares that it drew this
            holder for; empty before it has masked.
        masked: its masked vector, once it has masked.
        survivors: whose vectors it signed for as the sum, once it has signed.
        signature: under those survivors.
    """

    task: Task
    digest: bytes
    seed: bytes = field(repr=False)
    key: bytes = field(repr=False)
    own_shares: bytes = field(repr=False)
    sent: Mapping[str, bytes] = field(repr=False)
    received: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    masked: bytes | None = field(default=None, repr=False)
    survivors: tuple[str, ...] | None = None
    signature: bytes | None = field(default=None, repr=False)

    @cached_property
    def senders(self) -> tuple[str, ...]:
        """The other holders that its vector is masked against, in order."""
        return tuple(sorted(self.received))

    def to_bytes(self) -> bytes:
        """To store before the message of the latest step leaves."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["task"] = asdict(self.task)
        return json.dumps({name: _plain(value) for name, value in values.items()}).encode()

    @classmethod
    def from_bytes(cls, stored: bytes) -> Self:
        """The inverse of `to_bytes`.

        Raises:
            ProtocolError: it is no stored round.
        """
        try:
            values: dict[str, Any] = parse_json(stored)
            for name in ("digest", "seed", "key", "own_shares", "masked", "signature"):
                values[name] = _bytes(values[name])
            for name in ("sent", "received"):
                values[name] = {who: b64decode(text) for who, text in values[name].items()}
            values["task"] = Task(**values["task"])
            if values["survivors"] is not None:
                values["survivors"] = tuple(values["survivors"])
            return cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError, ConfigError):
            raise ProtocolError(
                "A stored round cannot be read: damaged, or of another version."
            ) from None


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    return value


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


KEY_BYTES = 32
"""Of a round's public key, which stands before what is sealed."""

Named = Mapping[str, bytes]


@dataclass(frozen=True)
class MaskingHolder:
    """One holder's steps within a run.

    Every step is a function of a `Round`: asked again for the same it gives an equal one, asked
    for anything else it refuses. The caller stores the new round before its message leaves,
    keeps one round per query id for ever, and gives `open` each query id once.

    Attributes:
        book: the keys of its run.
        signer: its long-lived key.
    """

    book: KeyBook
    signer: ec.EllipticCurvePrivateKey

    @property
    def name(self) -> str:
        """Whose steps these are."""
        return self.book.name

    def open(self, task: Task) -> Round:
        """Stage 1: a fresh seed and key, shares of both for those it drew, the key for others."""
        book, digest = self.book, task.digest(self.book.cohort)
        seed, secret = os.urandom(SEED_BYTES), os.urandom(KEY_BYTES)
        rows = split([seed, secret], book.cohort.graph.threshold, len(book.circle))
        shares = {name: b"".join(row) for name, row in zip(book.circle, rows, strict=True)}
        public = RoundKey(secret).public
        sent = {
            other: public
            + seal(
                sealing_key(book, other, digest, self.name),
                shares.get(other, b""),
                self._envelope(digest, self.name, other, public),
            )
            for other in book.others
        }
        return Round(task, digest, seed, secret, shares[self.name], sent)

    def resume(self, stored: bytes, task: Task) -> Round:
        """The round of a query as it was stored.

        Raises:
            ProtocolError: it was bound to another content, run or cohort; it stays with that.
        """
        state = Round.from_bytes(stored)
        if state.task != task or state.digest != task.digest(self.book.cohort):
            raise ProtocolError(
                f"Query {task.query} was opened for another content or cohort; ask under a new id."
            )
        return state

    def mask(self, state: Round, inbox: Named, values: Residues) -> Round:
        """Stage 2: mask the vector with all neighbours that sent.

        Args:
            state: the round.
            inbox: what neighbours sent, by name; those who are absent dropped out.
            values: the quantised, noisy vector: what the ledger stored for this query.

        Raises:
            ProtocolError: too few of the circle, shares that do not open, or a round that has
                been masked with other holders or other values.
        """
        self._expect_ours(state)
        if not set(inbox) <= set(self.book.others):
            raise ProtocolError("Shares came from holders that are no neighbours in this run.")
        self._expect_circle({self.name, *inbox}, "sent shares")
        if values.shape != (state.task.length,):
            raise ProtocolError(
                f"Expected {state.task.length} values to mask, got shape {values.shape}."
            )
        received = {sender: self._opened(state, sender, inbox[sender]) for sender in sorted(inbox)}
        own = RoundKey(state.key)
        pairs = {
            sender: own.pair_seed(self.name, sender, sealed[:KEY_BYTES])
            for sender, sealed in received.items()
        }
        vector = masked(values, state.task.word, self.name, state.seed, pairs).tobytes()
        if state.masked is not None:
            same = hmac.compare_digest(state.masked, vector) and state.received == received
            if not same:
                raise ProtocolError(
                    f"Query {state.task.query} has been masked for another set of holders or "
                    "another vector; it is answered as it was, or never."
                )
            return state
        return replace(state, received=received, masked=vector)

    def tags(self, state: Round) -> dict[str, bytes]:
        """What proves to each neighbour that this holder has masked with it.

        Raises:
            ProtocolError: it has not yet.
        """
        self._expect_masked(state)
        return {name: tag(self.book, name, state.digest, self.name) for name in state.senders}

    def sign(self, state: Round, survivors: Iterable[str], tags: Named) -> Round:
        """Stage 3: put a name under whose vectors the sum is made of; once.

        Args:
            state: the round, masked.
            survivors: in the sum.
            tags: those that the surviving neighbours made for this holder.

        Raises:
            ProtocolError: too few, this holder is not among them, one is a neighbour that it has
                not masked with, or that does not prove to have; or it signed another set.
        """
        self._expect_ours(state)
        self._expect_masked(state)
        chosen = tuple(sorted(set(survivors)))
        if state.survivors is not None:
            if state.survivors != chosen:
                raise ProtocolError(
                    f"A set of survivors of query {state.task.query} is signed; there is no other."
                )
            return state
        cohort = self.book.cohort
        if self.name not in chosen or not set(chosen) <= set(cohort.names):
            raise ProtocolError("The sum leaves this holder out, or takes a stranger in.")
        if len(chosen) < cohort.quorum:
            raise ProtocolError(
                f"Only {counted(len(chosen), 'holder')} in the sum; this holder's cohort needs "
                f"{cohort.quorum}. Nothing is revealed."
            )
        near = ({*self.book.others, *self.book.drawn} & set(chosen)) - {self.name}
        for other in near:
            if other not in state.received:
                raise ProtocolError(f"The sum takes in holder {other}, who sent no shares.")
            proof = tag(self.book, other, state.digest, other)
            if not hmac.compare_digest(proof, tags.get(other, b"")):
                raise ProtocolError(f"Holder {other} does not prove to have masked with this one.")
        signature = sign(self.signer, survivors_statement(state.digest, chosen))
        return replace(state, survivors=chosen, signature=signature)

    def reveal(self, state: Round, signatures: Named) -> dict[str, bytes]:
        """Stage 4: for every holder whose shares it has one of them.

        Args:
            state: the round, signed.
            signatures: by signer; those that are not good do not count.

        Returns:
            By owner: a share of its seed if it is in the sum, of its key if it is not.

        Raises:
            ProtocolError: nothing was signed here, or fewer of the circle than it takes signed
                the very set that this holder signed.
        """
        self._expect_ours(state)
        if state.survivors is None:
            raise ProtocolError(f"No set of survivors of query {state.task.query} is signed yet.")
        message, cohort = survivors_statement(state.digest, state.survivors), self.book.cohort
        good = (
            name
            for name in set(self.book.circle) & set(state.survivors) & set(signatures)
            if cohort.signed_by(name, signatures[name], message)
        )
        # No more are looked at than it takes.
        self._expect_circle(
            set(islice(good, cohort.graph.threshold)), "signed this set of survivors"
        )
        shares = {name: opened[KEY_BYTES:] for name, opened in state.received.items()}
        shares[self.name] = state.own_shares
        inside = set(state.survivors)
        return {
            owner: both[:SHARE_BYTES] if owner in inside else both[SHARE_BYTES:]
            for owner, both in sorted(shares.items())
            if both
        }

    # ------------------------------------------------ small parts

    def _expect_ours(self, state: Round) -> None:
        if state.digest != state.task.digest(self.book.cohort):
            raise ProtocolError(f"Query {state.task.query} belongs to another run or cohort.")

    def _expect_masked(self, state: Round) -> None:
        if state.masked is None:
            raise ProtocolError(f"Query {state.task.query} is not masked yet; send the shares.")

    def _expect_circle(self, names: set[str], what: str) -> None:
        count, threshold = len(names & set(self.book.circle)), self.book.cohort.graph.threshold
        if count < threshold:
            raise ProtocolError(
                f"Only {count} of this holder's circle of {len(self.book.circle)} {what}; it needs "
                f"{threshold}. Nothing is revealed."
            )

    def _envelope(self, digest: bytes, sender: str, receiver: str, public: bytes) -> bytes:
        run = self.book.cohort.run.encode()
        return statement("sealed shares", run, digest, sender.encode(), receiver.encode(), public)

    def _opened(self, state: Round, sender: str, message: bytes) -> bytes:
        public, sealed = message[:KEY_BYTES], message[KEY_BYTES:]
        key = sealing_key(self.book, sender, state.digest, sender)
        content = unseal(key, sealed, self._envelope(state.digest, sender, self.name, public))
        if len(content) not in (0, 2 * SHARE_BYTES):
            raise ProtocolError(f"Holder {sender} sent another number of shares than two.")
        return public + content


def survivors_statement(digest: bytes, survivors: Sequence[str]) -> bytes:
    """What survivors sign: a round, and their own names in order."""
    return statement("survivors", digest, *(name.encode() for name in survivors))
