"""Masked sums of integer vectors: what a holder does, step by step, and what the server does.

    stage        holder                                     server
    0, per run   `RunKey.make` → advert, whom it drew       passes neighbours' adverts on
                 `RunKey.agree` → `KeyBook`
    1            `Holder.open` → `Round.sent`, sealed       `Server.inboxes`
    2            `Holder.mask` → `Round.masked`, tags       `Server.survivors`, `Server.tags`
    3            `Holder.sign` → `Round.signature`          passes signatures on in each circle
    4            `Holder.reveal` → opened shares            `Server.unmask` → the sum

After Bonawitz et al. 2017 (figure 4, the version for a server that cheats) and Bell et al. 2020
(section 5), with these changes: one key agreement serves a run, because a message costs seconds;
what is shared and revealed are a seed and a key of ONE round; the set of survivors is signed with
the holders' long-lived keys before anything is revealed; neighbours prove to each other by tags
that both have masked; and every step is bound to one query of one cohort. There is one protocol
over a graph (`secagg.graph`): each holder and those it drew are its circle, of n; they hold its
shares, with threshold t. It masks with those it drew and with those who drew it. In a small cohort
the graph is complete: every circle is the whole cohort, n = m and t = m − d.

Guarantee
    Against a server that does as it likes together with any c of the holders, which it may choose
    at any time, for a `Cohort` with m > 2d + c, and as far as X25519, HKDF, ChaCha20, AES-GCM and
    ECDSA hold: of the other holders' vectors in a round the server learns the sum over ONE set of
    m − d − c of them at least, or nothing. In a sparse graph this holds for all rounds of a run
    together unless the graph, which is drawn once, is not good, and that has probability
    2^-64 at most; see `secagg.connectivity` for what good means and for the bound. A complete
    graph leaves nothing to chance.
    A holder that lies can spoil the sum, as it could by lying about its vector; it learns
    nothing by it.

    Why. K are the c colluders; honest holders are the others. What an honest holder v does:
    (a) It signs one set U_v per round, with itself and at least Q = m − d + x others' names in
        it, and only if it has masked with every one of its neighbours in U_v, those it drew above
        all, and holds a tag of each. Nobody but the neighbour could have made the tag, and an
        honest one did so after it had masked with v.
    (b) It reveals only if t of its circle signed the same set, and then of every holder whose
        share it has exactly one: of the seed if that holder is in U_v, of the key if it is not.
    So a seed is opened (the holder is IN) or a key is (it is OUT) only if t members of its circle
    collude or revealed for it. The colluders alone have at most c < 2t − n <= t shares of each.

    1.  No holder is IN and OUT, and an honest one that revealed is not OUT. For both, t and t
        members of one circle of n would have to say so, hence 2t − n > c in common; one of them
        is honest, and it signed two sets. In the second case the first t are those who signed
        its set, of which it is a member.
    2.  What can be opened. Of a vector that is not IN the own mask stays; it is uniform. The pair
        mask of two honest holders is known only if one of them is OUT. So look at those who are
        IN, and join two of them that have masked with each other. Their vectors are uniform up to
        the sum over each connected part, and over a part one of whose members has an unopened
        pair mask with somebody outside of it nothing is known at all. Let C be a part whose sum
        is known. For v in C, let R(v) be the honest members of its circle who revealed its share:
        they and K make up t of it. By (a) each of them and v have masked with each other, by 1 it
        is not OUT: it is in C. Let R be all honest members of C that revealed; every v in C, and
        so every v in R, has t or more of its circle in R and K.
    3.  All of R signed one set. Suppose some signed S, B of them, and B' others. For v in B, t of
        its circle signed S, so n − t at most are in B'; and 2t − n at least both signed S and
        either revealed v's seed, so that they are in B, or collude. In B' the same, as each of
        them has t in its circle who signed with it and not S. A good graph has no such pair (2).
        In a complete graph, B and B' would need t = m − d signatures each, of which only
        colluders give two: 2(m − d) <= m + c, against m > 2d + c.
    4.  So C is part of S: a holder that revealed the seed of a member of C is in R and signed S.
        And C is nearly all of it. Let X be the honest members of S outside of C. No member of R
        has one in its circle that is not OUT: by (a) the two have masked with each other, and
        this mask would be unknown. And one that is OUT has at least t of its circle that collude or
        revealed it missing; they are not in R, so that n − t at most are. A good graph has at most
        x such holders (3), so that |C| >= Q − c − x = m − d − c. In a complete graph x = 0 and
        X is empty: every circle is the cohort, and |R| >= t − c > d = n − t.
    5.  There is one C, since two parts are disjoint and m − d − c > (m − c) / 2.
    6.  Another round has other seeds and keys, and whatever is said in a round is bound to it. A
        vector that comes late keeps its own mask.
"""

import hmac
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from cryptography.hazmat.primitives.asymmetric import ec

from fedtranscribe.errors import ProtocolError
from fedtranscribe.secagg.keys import KeyBook, sign, statement
from fedtranscribe.secagg.masks import (
    SEED_BYTES,
    Residues,
    RoundKey,
    masked,
    sealing_key,
    tag,
)
from fedtranscribe.secagg.rounds import Round, Task
from fedtranscribe.secagg.shares import SHARE_BYTES, seal, split, unseal
from fedtranscribe.text import counted

KEY_BYTES = 32
"""Of a round's public key, which stands before what is sealed."""

Named = Mapping[str, bytes]


@dataclass(frozen=True)
class Holder:
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
            sender: own.pair_seed(self.name, sender, told[:KEY_BYTES])
            for sender, told in received.items()
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
        signature = sign(self.signer, settled(state.digest, chosen))
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
        message, cohort = settled(state.digest, state.survivors), self.book.cohort
        good = (
            name
            for name in set(self.book.circle) & set(state.survivors) & set(signatures)
            if cohort.signed_by(name, signatures[name], message)
        )
        # No more are looked at than it takes.
        self._expect_circle(
            set(islice(good, cohort.graph.threshold)), "signed this set of survivors"
        )
        shares = {name: told[KEY_BYTES:] for name, told in state.received.items()}
        shares[self.name] = state.kept
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

    def _opened(self, state: Round, sender: str, told: bytes) -> bytes:
        public, sealed = told[:KEY_BYTES], told[KEY_BYTES:]
        key = sealing_key(self.book, sender, state.digest, sender)
        content = unseal(key, sealed, self._envelope(state.digest, sender, self.name, public))
        if len(content) not in (0, 2 * SHARE_BYTES):
            raise ProtocolError(f"Holder {sender} sent another number of shares than two.")
        return public + content


def settled(digest: bytes, survivors: Sequence[str]) -> bytes:
    """What survivors sign: a round, and their own names in order."""
    return statement("survivors", digest, *(name.encode() for name in survivors))
