"""The server's side of masked sums; what each step is for, and the proof, is in `protocol`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedtranscribe.errors import ProtocolError, QuorumError
from fedtranscribe.noise.mask_graph import circle, neighbours
from fedtranscribe.noise.mask_keys import Advert, Members
from fedtranscribe.noise.masks import (
    SHARE_BYTES,
    Residues,
    RoundKey,
    combine,
    keystream,
    residue_type,
    signed_keystream,
)
from fedtranscribe.noise.secagg import KEY_BYTES, Named, Task


@dataclass(frozen=True)
class MaskingServer:
    """The server's steps within a run.

    Attributes:
        members: as the holders know them.
        drawn: by name, whom each holder that advertised drew.
    """

    members: Members
    drawn: Mapping[str, Sequence[str]]

    @cached_property
    def neighbours(self) -> dict[str, set[str]]:
        """Whom each holder masks with."""
        return neighbours(self.drawn)

    @cached_property
    def circles(self) -> dict[str, tuple[str, ...]]:
        """Who holds each holder's shares, in the order of their points."""
        return {name: circle(name, drawn) for name, drawn in self.drawn.items()}

    def adverts(self, name: str, adverts: Mapping[str, Advert]) -> list[Advert]:
        """After stage 0: those that a holder needs, its own among them."""
        return [adverts[each] for each in sorted({name, *self.neighbours[name]})]

    def inboxes(self, sent: Mapping[str, Named]) -> dict[str, dict[str, bytes]]:
        """After stage 1: the inbox of every holder that sent, from its neighbours that did.

        Raises:
            QuorumError: too few did; nothing has been masked, and nothing revealed.
            ProtocolError: one left a neighbour out.
        """
        self._expect_enough(len(sent), "sent shares")
        try:
            return {
                receiver: {
                    sender: sent[sender][receiver]
                    for sender in sorted(self.neighbours[receiver] & sent.keys())
                }
                for receiver in sent
            }
        except KeyError as missing:
            raise ProtocolError(f"A holder sent no shares for holder {missing}.") from None

    def survivors(self, vectors: Iterable[str]) -> tuple[str, ...]:
        """After stage 2: whose vectors make the sum, for them to sign.

        Raises:
            QuorumError: too few came; nothing has been revealed.
        """
        names = tuple(sorted(vectors))
        self._expect_enough(len(names), "sent masked vectors")
        return names

    def tags(
        self, received: Mapping[str, Named], signed: Iterable[str], name: str
    ) -> dict[str, bytes]:
        """For stage 3: the tags that surviving neighbours made for a holder."""
        near = self.neighbours[name] & set(signed) & received.keys()
        return {each: received[each][name] for each in sorted(near) if name in received[each]}

    def signatures(self, received: Named, name: str) -> dict[str, bytes]:
        """For stage 4: the signatures of a holder's circle."""
        return {each: received[each] for each in self.circles[name] if each in received}

    def closed(
        self, senders: Iterable[str], signed: Sequence[str], revealed: Mapping[str, Named]
    ) -> list[str]:
        """The holders of whom too few shares were revealed to open what the sum needs."""
        threshold = self.members.graph.threshold
        return [
            name
            for name in sorted({*senders, *signed})
            if len(self._shares(name, revealed)) < threshold
        ]

    def unmask(
        self,
        task: Task,
        sent: Mapping[str, Named],
        signed: Sequence[str],
        vectors: Named,
        revealed: Mapping[str, Named],
    ) -> Residues:
        """After stage 4: the sum of the survivors' values, modulo 2^word.

        Args:
            task: as the holders know it.
            sent: in stage 1, by sender and receiver.
            signed: the survivors, as they were signed.
            vectors: masked vectors by name, looked at one after the other; those of others than
                survivors play no part.
            revealed: what survivors revealed, by name and owner.

        Raises:
            QuorumError: too few revealed; the vectors stay masked.
            ProtocolError: shares that do not fit together.
        """
        if missing := self.closed(sent, signed, revealed):
            raise QuorumError(
                f"Too few holders revealed their shares of holder {missing[0]}: "
                f"{len(self._shares(missing[0], revealed))} of {self.members.graph.threshold}; the "
                "vectors stay masked."
            )
        kind = residue_type(task.word)
        total = np.zeros(task.length, dtype=kind)
        for name in sorted(signed):
            total += np.frombuffer(vectors[name], dtype=kind)
            total -= keystream(self._secret(name, revealed), task.length, task.word)
        for gone in sorted(set(sent) - set(signed)):
            key = RoundKey(self._secret(gone, revealed))
            for name in sorted(self.neighbours[gone] & set(signed)):
                public = sent[name][gone][:KEY_BYTES]
                seed = key.pair_seed(gone, name, public)
                total -= signed_keystream(seed, task.length, task.word, name, gone)
        return total

    def _shares(self, name: str, revealed: Mapping[str, Named]) -> dict[int, bytes]:
        """By point."""
        return {
            point: revealed[each][name]
            for point, each in enumerate(self.circles[name], 1)
            if each in revealed and len(revealed[each].get(name, b"")) == SHARE_BYTES
        }

    def _secret(self, name: str, revealed: Mapping[str, Named]) -> bytes:
        shares = sorted(self._shares(name, revealed).items())[: self.members.graph.threshold]
        return combine({point: [share] for point, share in shares})[0]

    def _expect_enough(self, count: int, what: str) -> None:
        if count < self.members.quorum:
            raise QuorumError(
                f"Only {count} of {len(self.members.names)} holders {what}, a masked sum needs "
                f"{self.members.quorum}; the round is given up, and nothing of it is revealed."
            )
