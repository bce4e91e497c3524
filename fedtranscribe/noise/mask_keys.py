"""Who takes part in a run's masked sums, and the keys that pairs of them share.

Every holder knows the others' long-lived public keys from its OWN configuration. For each run it
makes one X25519 key and signs it; what the server passes on is believed only if it carries the
signature of a holder on the roster, for this run and this cohort.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedtranscribe.errors import ConfigError, ProtocolError
from fedtranscribe.noise.mask_graph import Graph, circle, graph_of
from fedtranscribe.privacy.release_plan import expect_tolerable

_DOMAIN = b"fedtranscribe secagg 2"
_MOST_HOLDERS = 10_000


def statement(kind: str, *parts: bytes) -> bytes:
    """Bytes to sign, hash or derive from: no two lists of parts give the same."""
    framed = (_DOMAIN, kind.encode(), *parts)
    return b"".join(len(part).to_bytes(8, "big") + part for part in framed)


@dataclass(frozen=True)
class Members:
    """Names and numbers of a cohort: all that the server needs to know.

    Attributes:
        names: of the holders, in the order that all of them use.
        dropouts, colluders: as in `Cohort`.

    Raises:
        ConfigError: too many failures for so many holders, or two of one name.
    """

    names: tuple[str, ...]
    dropouts: int
    colluders: int = 0

    def __post_init__(self) -> None:
        if list(self.names) != sorted(set(self.names)) or not all(self.names):
            raise ConfigError("Expected the names of a cohort once each, in order.")
        if len(self.names) > _MOST_HOLDERS:
            raise ConfigError(f"Expected at most {_MOST_HOLDERS} holders, got {len(self.names)}.")
        expect_tolerable(len(self.names), self.dropouts, self.colluders)

    @cached_property
    def graph(self) -> Graph:
        """Who masks with whom; it follows from the numbers."""
        return graph_of(len(self.names), self.dropouts, self.colluders)

    @property
    def quorum(self) -> int:
        """Fewest holders in a sum: m − d, and the spare ones of a sparse graph."""
        return len(self.names) - self.dropouts + self.graph.spare


@dataclass(frozen=True)
class Cohort:
    """The holders of one run and how many of them may fail; all of it public and fixed.

    Attributes:
        run: a name that no other run has.
        roster: the holders' long-lived public keys by name, from the holder's own configuration.
        dropouts: d, how many may be missing from a sum.
        colluders: c, how many may tell the server all that they know.

    Guarantee:
        m > 2d + c, m the number of holders; and the graph of masks is the one that these numbers
        need. So every sum holds the noise of at least m − d − c = m − t holders that told
        nobody, whatever the server declares (see `secagg.protocol`). With one number t for both, a
        lying server declares t drop-outs and uses t colluders as well.

    Raises:
        ConfigError: a roster that cannot be, or too many failures for it.
    """

    run: str
    roster: Mapping[str, ec.EllipticCurvePublicKey]
    dropouts: int
    colluders: int = 0

    def __post_init__(self) -> None:
        m = len(self.members.names)
        if not self.run:
            raise ConfigError("Expected a name for the run.")
        for name, key in self.roster.items():
            if not isinstance(key.curve, ec.SECP384R1):
                raise ConfigError(
                    f"Expected an ECDSA P-384 key for holder {name}, got {key.curve.name}."
                )
        if len(set(map(_encoded, self.roster.values()))) < m:
            raise ConfigError("Expected another key for every holder; two share one.")

    @cached_property
    def members(self) -> Members:
        """Names and numbers, without the keys."""
        return Members(tuple(sorted(self.roster)), self.dropouts, self.colluders)

    @property
    def names(self) -> tuple[str, ...]:
        """The holders in the order that all of them use."""
        return self.members.names

    @property
    def quorum(self) -> int:
        """Fewest holders in a sum; see `Members`."""
        return self.members.quorum

    @property
    def graph(self) -> Graph:
        """Who masks with whom."""
        return self.members.graph

    @property
    def tolerated(self) -> int:
        """t = d + c, how many shares of the noise are not counted on."""
        return self.dropouts + self.colluders

    @cached_property
    def digest(self) -> bytes:
        """What keys, rounds and query ids are bound to: run, roster, tolerances, graph."""
        members = [part for n in self.names for part in (n.encode(), _encoded(self.roster[n]))]
        graph = f"{self.graph.drawn} {self.graph.threshold} {self.graph.spare}"
        numbers = f"{self.dropouts} {self.colluders} {graph}".encode()
        return hashlib.sha256(statement("cohort", self.run.encode(), numbers, *members)).digest()

    def signed_by(self, name: str, signature: bytes, message: bytes) -> bool:
        """Whether a holder on the roster signed a message with its long-lived key."""
        if name not in self.roster:
            return False
        try:
            self.roster[name].verify(signature, message, _ECDSA)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class Advert:
    """A holder's key for one run, signed with its long-lived key.

    Attributes:
        name: whose.
        key: X25519, 32 bytes.
        signature: over the cohort's digest, the name and the key.
    """

    name: str
    key: bytes
    signature: bytes

    def check(self, cohort: Cohort) -> None:
        """Believe nothing that the holder itself did not say in this run to this cohort.

        Raises:
            ProtocolError: foreign holder, replaced key, or an advert of another run or cohort.
        """
        if not cohort.signed_by(
            self.name, self.signature, _advert_content(cohort, self.name, self.key)
        ):
            raise ProtocolError(
                f"The key of holder {self.name[:80]!r} is not signed by it for run {cohort.run}: "
                "replaced, replayed or not on this holder's roster."
            )


@dataclass(frozen=True)
class RunKey:
    """A holder's own key for one run; one for the whole run, never for two.

    Attributes:
        cohort: which run, with whom.
        secret: X25519, 32 bytes; stays on the holder's machine.
        advert: what its neighbours are told.
        drawn: whom this holder drew to share its secrets with; the server passes the messages on.
    """

    cohort: Cohort
    secret: bytes = field(repr=False)
    advert: Advert
    drawn: tuple[str, ...]

    @classmethod
    def make(cls, cohort: Cohort, name: str, signer: ec.EllipticCurvePrivateKey) -> Self:
        """A fresh key and fresh neighbours; store them before the advert leaves.

        Raises:
            ConfigError: the signing key is not the one that the roster has for this name.
        """
        on_roster = cohort.roster.get(name)
        if on_roster is None or _encoded(on_roster) != _encoded(signer.public_key()):
            raise ConfigError(
                f"Expected holder {name} on its own roster under its own key; add it there."
            )
        secret = X25519PrivateKey.generate()
        public = secret.public_key().public_bytes_raw()
        signature = sign(signer, _advert_content(cohort, name, public))
        advert = Advert(name, public, signature)
        drawn = cohort.graph.draw(name, cohort.names)
        return cls(cohort, secret.private_bytes_raw(), advert, drawn)

    def agree(self, adverts: Iterable[Advert]) -> "KeyBook":
        """The keys of this holder's neighbours, each checked.

        Args:
            adverts: its own, and those of all whom it drew or who drew it, as far as they
                advertised. Others do no harm: they become neighbours that get no share.

        Raises:
            ProtocolError: a key that its holder did not sign for this run, two keys of one
                holder, too few of the circle, or this holder's own key is not among them.
        """
        keys: dict[str, bytes] = {}
        for advert in adverts:
            advert.check(self.cohort)
            if keys.setdefault(advert.name, advert.key) != advert.key:
                raise ProtocolError(f"Holder {advert.name} has two keys in run {self.cohort.run}.")
        if keys.get(self.advert.name) != self.advert.key:
            raise ProtocolError(f"The keys of run {self.cohort.run} lack this holder's own.")
        there = len(keys.keys() & set(circle(self.advert.name, self.drawn)))
        if there < self.cohort.graph.threshold:
            raise ProtocolError(
                f"Expected keys of {self.cohort.graph.threshold} holders or more in this holder's "
                f"circle, got {there}."
            )
        keys = dict(sorted(keys.items()))
        return KeyBook(self.cohort, self.advert.name, self.secret, keys, self.drawn)


@dataclass(frozen=True)
class KeyBook:
    """What one holder needs to share secrets with its neighbours in a run.

    Attributes:
        cohort: which run, with whom.
        name: whose book this is.
        secret: its own X25519 key.
        keys: the public ones of its neighbours and its own, by name in order.
        drawn: whom it drew, whether they advertised or not.
    """

    cohort: Cohort
    name: str
    secret: bytes = field(repr=False)
    keys: Mapping[str, bytes]
    drawn: tuple[str, ...]

    @cached_property
    def others(self) -> tuple[str, ...]:
        """Its neighbours that have keys, in order."""
        return tuple(name for name in self.keys if name != self.name)

    @cached_property
    def circle(self) -> tuple[str, ...]:
        """This holder and those it drew, in the order of their shares."""
        return circle(self.name, self.drawn)

    @cached_property
    def _secrets(self) -> dict[str, bytes]:
        own = X25519PrivateKey.from_private_bytes(self.secret)
        try:
            return {
                name: own.exchange(X25519PublicKey.from_public_bytes(self.keys[name]))
                for name in self.others
            }
        except ValueError:
            raise ProtocolError("A holder advertised a key that no secret comes of.") from None

    def shared_with(self, name: str) -> bytes:
        """The run's secret of this pair; only ever derived from, never revealed."""
        return self._secrets[name]


_ECDSA = ec.ECDSA(hashes.SHA384())


def sign(signer: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    """A signature that `Cohort.signed_by` accepts."""
    return signer.sign(message, _ECDSA)


def _advert_content(cohort: Cohort, name: str, key: bytes) -> bytes:
    return statement("run key", cohort.digest, name.encode(), key)


def _encoded(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
