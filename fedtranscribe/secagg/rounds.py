"""What a holder remembers of one round: all that it may ever say about one query.

A round is a value: every step of the protocol gives a new one. The holder stores it before the
step's message leaves, so that a service that was restarted says the same again, byte for byte,
and can never say anything else: no second mask, no second drop-out set.
"""

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Self

from fedtranscribe.errors import ConfigError, ProtocolError
from fedtranscribe.reading import parse_json
from fedtranscribe.secagg.keys import Cohort, statement
from fedtranscribe.secagg.masks import residue_type


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
        kept: this holder's own shares of its seed and key.
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
    kept: bytes = field(repr=False)
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
            for name in ("digest", "seed", "key", "kept", "masked", "signature"):
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
