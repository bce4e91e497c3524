"""Masked sums of integer vectors: what a holder does, step by step, and what the server does.

    stage        holder                                     server
    0, per run   `RunKey.make` → advert                     passes all adverts on
                 `RunKey.agree` → `KeyBook`
    1            `Holder.open` → `Round.sent`, sealed       `relay` → an inbox for each sender
    2            `Holder.mask` → `Round.masked`             `survivors`
    3            `Holder.sign` → `Round.signature`          passes all signatures on
    4            `Holder.reveal` → opened shares            `unmask` → the sum

After Bonawitz et al. 2017 (figure 4, the version for a server that cheats), with four changes: one
key agreement serves a run, because a message costs seconds; what is shared and revealed are seeds
of ONE round, never a key; the drop-out set is signed with the nodes' long-lived keys before
anything is revealed; and every step is bound to one query of one cohort. The graph is complete;
the sparse one of Bell et al. 2020 would pay from some hundred holders on.

Guarantee
    Against a server that does as it likes together with c of the holders, for a `Cohort` with
    m > 2d + c, and as far as X25519, HKDF, ChaCha20, AES-GCM and ECDSA hold: of the honest
    holders' vectors in a round the server learns their sum over ONE set of m − d − c honest
    holders at least, or nothing.
    Why. (1) A holder reveals only for the set that it signed itself and that m − d members of it
    signed; there is one such set U2 (see `Cohort`), and the same signatures fix the set U1 that
    vectors were masked against. (2) Of every holder only the own seed (it is in U2) or pair
    seeds (it is in U1 but not in U2) are revealed, never both. Seeds are shared with threshold
    m − d, of which colluders hold c < m − d. (3) An honest vector outside U2 keeps its own mask,
    also if it comes late. (4) One inside U2 keeps its pair masks with honest members of U2. Let
    C be honest members of U2 whose remaining masks cancel among themselves. Who signed was
    masked against all of U2, so C with one signer in it is all honest members of U2. Without
    one, C has at most d − g members, g = |U1| − |U2|; but each of them was masked against
    m − d − c − 1 honest others or more, of which at most g are opened, so C would have
    m − d − c − g members, more than d − g. Other combinations stay uniform. (5) Seeds of other
    rounds are independent (`pair_seed`): whatever is said in this round opens no other.
    A holder that lies can spoil the sum, as it could by lying about its vector; it learns
    nothing by it.
"""

import hmac
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from fedtranscribe.errors import ProtocolError, QuorumError
from fedtranscribe.secagg.keys import KeyBook, Members, sign, statement
from fedtranscribe.secagg.masks import (
    SEED_BYTES,
    Residues,
    keystream,
    masked,
    pair_seed,
    residue_type,
    sealing_key,
    signed_keystream,
)
from fedtranscribe.secagg.rounds import Round, Task
from fedtranscribe.secagg.shares import SHARE_BYTES, combine, seal, split, unseal
from fedtranscribe.text import counted


@dataclass(frozen=True)
class Holder:
    """One holder's steps within a run.

    Every step is a function of a `Round`: asked again for the same it gives an equal one, asked
    for anything else it refuses. Whoever calls stores the new round before its message leaves,
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
        """Stage 1: a fresh own seed, and shares of it and of the round's pair seeds."""
        book, digest, seed = self.book, task.digest(self.book), os.urandom(SEED_BYTES)
        pairs = [pair_seed(book, other, digest) for other in book.others]
        quorum, m = book.cohort.quorum, len(book.cohort.names)
        shares = [b"".join(row) for row in split([seed, *pairs], quorum, m)]
        sent = {
            other: seal(
                sealing_key(book, other, digest, self.name),
                shares[book.cohort.members.point(other) - 1],
                self._envelope(digest, self.name, other),
            )
            for other in book.others
        }
        return Round(task, digest, seed, shares[book.cohort.members.point(self.name) - 1], sent)

    def resume(self, stored: bytes, task: Task) -> Round:
        """The round of a query as it was stored.

        Raises:
            ProtocolError: it was bound to another content, run or cohort; it stays with that.
        """
        state = Round.from_bytes(stored)
        if state.task != task or state.digest != task.digest(self.book):
            raise ProtocolError(
                f"Query {task.query} was opened for another content or cohort; ask under a new id."
            )
        return state

    def mask(self, state: Round, inbox: Mapping[str, bytes], values: Residues) -> Round:
        """Stage 2: mask the vector against all who sent shares.

        Args:
            state: the round.
            inbox: sealed shares by sender; who is absent dropped out.
            values: the quantised, noisy vector: what the ledger stored for this query.

        Raises:
            ProtocolError: fewer senders than a sum needs, shares that do not open, or a round
                that has been masked for other senders or other values.
        """
        self._expect_ours(state)
        if self.name in inbox or not set(inbox) <= set(self.book.keys):
            raise ProtocolError("Shares came from holders outside of this run's keys.")
        self._expect_quorum(len(inbox) + 1, "sent shares")
        if values.shape != (state.task.length,):
            raise ProtocolError(
                f"Expected {state.task.length} values to mask, got shape {values.shape}."
            )
        received = {sender: self._opened(state, sender, inbox[sender]) for sender in sorted(inbox)}
        pairs = {sender: pair_seed(self.book, sender, state.digest) for sender in received}
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

    def sign(self, state: Round, survivors: Iterable[str]) -> Round:
        """Stage 3: put a name under whose vectors the sum is made of; once.

        Raises:
            ProtocolError: too few, this holder is not among them, or it signed another set.
        """
        self._expect_ours(state)
        chosen = tuple(sorted(set(survivors)))
        if state.masked is None:
            raise ProtocolError(f"Query {state.task.query} is not masked yet; send the shares.")
        if self.name not in chosen or not set(chosen) <= {self.name, *state.senders}:
            raise ProtocolError("The sum leaves this holder out, or takes in who sent no shares.")
        self._expect_quorum(len(chosen), "are in the sum")
        if state.survivors is not None:
            if state.survivors != chosen:
                raise ProtocolError(
                    f"A set of survivors of query {state.task.query} is signed; there is no other."
                )
            return state
        signature = sign(self.signer, self._settled(state, chosen))
        return replace(state, survivors=chosen, signature=signature)

    def reveal(self, state: Round, signatures: Mapping[str, bytes]) -> bytes:
        """Stage 4: shares of the survivors' own seeds and of the others' pair seeds.

        Args:
            state: the round, signed.
            signatures: by signer; those that are not good do not count.

        Raises:
            ProtocolError: nothing was signed here, or fewer survivors than a sum needs signed
                the very set that this holder signed.
        """
        self._expect_ours(state)
        if state.survivors is None:
            raise ProtocolError(f"No set of survivors of query {state.task.query} is signed yet.")
        message, cohort = self._settled(state, state.survivors), self.book.cohort
        good = [
            name
            for name in state.survivors
            if name in signatures and cohort.signed_by(name, signatures[name], message)
        ]
        self._expect_quorum(len(good), "signed this set of survivors")
        shares = {**state.received, self.name: state.kept}
        own = [_share_of_own_seed(shares[name]) for name in state.survivors]
        pairs = [
            self._share_of_pair_seed(shares[gone], gone, name)
            for gone in _gone(shares, state.survivors)
            for name in state.survivors
        ]
        return b"".join(own + pairs)

    # ------------------------------------------------ small parts

    def _expect_ours(self, state: Round) -> None:
        if state.digest != state.task.digest(self.book):
            raise ProtocolError(f"Query {state.task.query} belongs to another run or cohort.")

    def _expect_quorum(self, count: int, what: str) -> None:
        if count < self.book.cohort.quorum:
            raise ProtocolError(
                f"Only {counted(count, 'holder')} {what}; this holder's cohort needs "
                f"{self.book.cohort.quorum}. Nothing is revealed."
            )

    def _envelope(self, digest: bytes, sender: str, receiver: str) -> bytes:
        run = self.book.cohort.run.encode()
        return statement("sealed shares", run, digest, sender.encode(), receiver.encode())

    def _opened(self, state: Round, sender: str, sealed: bytes) -> bytes:
        key = sealing_key(self.book, sender, state.digest, sender)
        content = unseal(key, sealed, self._envelope(state.digest, sender, self.name))
        # An own seed and one for each pair: as many as there are keys.
        if len(content) != SHARE_BYTES * len(self.book.keys):
            raise ProtocolError(f"Holder {sender} sent another number of shares than of keys.")
        return content

    def _settled(self, state: Round, survivors: Sequence[str]) -> bytes:
        everyone = sorted({self.name, *state.senders})
        counts = f"{len(everyone)} {len(survivors)}".encode()
        names = [name.encode() for name in (*everyone, *survivors)]
        return statement("survivors", state.digest, counts, *names)

    def _share_of_pair_seed(self, shares: bytes, owner: str, other: str) -> bytes:
        others = [name for name in self.book.keys if name != owner]
        start = SHARE_BYTES * (1 + others.index(other))
        return shares[start : start + SHARE_BYTES]


# ---------------------------------------------------------------- the server


def relay(members: Members, sent: Mapping[str, Mapping[str, bytes]]) -> dict[str, dict[str, bytes]]:
    """After stage 1: the inbox of every holder that sent shares, from all the others that did.

    Raises:
        QuorumError: too few did; nothing has been masked, and nothing revealed.
        ProtocolError: one left another out.
    """
    _expect_enough(members, len(sent), "sent shares")
    try:
        return {
            receiver: {sender: sent[sender][receiver] for sender in sent if sender != receiver}
            for receiver in sent
        }
    except KeyError as missing:
        raise ProtocolError(f"A holder sent no shares for holder {missing}.") from None


def survivors(members: Members, task: Task, vectors: Mapping[str, bytes]) -> tuple[str, ...]:
    """After stage 2: whose vectors make the sum, for them to sign; those of a wrong size do not.

    Raises:
        QuorumError: too few came; nothing has been revealed.
    """
    size = task.length * residue_type(task.word).itemsize
    names = tuple(sorted(name for name, vector in vectors.items() if len(vector) == size))
    _expect_enough(members, len(names), "sent masked vectors")
    return names


def unmask(
    members: Members,
    task: Task,
    senders: Iterable[str],
    signed: Sequence[str],
    vectors: Mapping[str, bytes],
    revealed: Mapping[str, bytes],
) -> Residues:
    """After stage 4: the sum of the survivors' values, modulo 2^word.

    Args:
        members: as the holders know them.
        task: as the holders know it.
        senders: who sent shares in stage 1.
        signed: the survivors, as they were signed.
        vectors: masked vectors by name; those of others than survivors play no part.
        revealed: what survivors revealed, by name; a quorum is enough.

    Raises:
        QuorumError: too few revealed; the vectors stay masked.
        ProtocolError: shares that do not fit together.
    """
    names = sorted(signed)
    own, pairs = _opened_seeds(members, names, _gone(senders, names), revealed)
    kind = residue_type(task.word)
    total = np.zeros(task.length, dtype=kind)
    for name in names:
        total += np.frombuffer(vectors[name], dtype=kind)
        total -= keystream(own[name], task.length, task.word)
    for (left, name), seed in pairs.items():
        total -= signed_keystream(seed, task.length, task.word, name, left)
    return total


def _opened_seeds(
    members: Members, names: Sequence[str], gone: Sequence[str], revealed: Mapping[str, bytes]
) -> tuple[dict[str, bytes], dict[tuple[str, str], bytes]]:
    pairs = [(left, name) for left in gone for name in names]
    count = len(names) + len(pairs)
    whole = {n: told for n, told in revealed.items() if len(told) == SHARE_BYTES * count}
    _expect_enough(members, len(whole), "revealed their shares")
    chosen = sorted(whole)[: members.quorum]
    starts = range(0, SHARE_BYTES * count, SHARE_BYTES)
    seeds = combine(
        {members.point(n): [whole[n][i : i + SHARE_BYTES] for i in starts] for n in chosen}
    )
    own = dict(zip(names, seeds, strict=False))
    return own, dict(zip(pairs, seeds[len(names) :], strict=True))


def _gone(everyone: Iterable[str], survivors: Sequence[str]) -> list[str]:
    return sorted(set(everyone) - set(survivors))


def _share_of_own_seed(shares: bytes) -> bytes:
    return shares[:SHARE_BYTES]


def _expect_enough(members: Members, count: int, what: str) -> None:
    if count < members.quorum:
        raise QuorumError(
            f"Only {count} of {len(members.names)} holders {what}, a masked sum needs "
            f"{members.quorum}; the round is given up, and nothing of it is revealed."
        )
