"""The server's side of secure aggregation: keys once per run, then four messages per query.

What it has heard is stored after every stage, so that a round which was interrupted goes on where
it stood: holders say the same again or nothing, and a set of survivors that was once sent out for
signature is the only one there can be. Nothing that is stored opens a vector.
"""

import json
import logging
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from torch import Tensor

from fedtranscribe.config import RoundSettings
from fedtranscribe.errors import ProtocolError, QuorumError
from fedtranscribe.files import write_atomically
from fedtranscribe.noise.mask_keys import Advert
from fedtranscribe.noise.secagg import Task
from fedtranscribe.noise.secagg_server import MaskingServer
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.questions import masked_messages as masked
from fedtranscribe.questions import messages as wire
from fedtranscribe.questions.messages import Message
from fedtranscribe.questions.query_messages import Envelope
from fedtranscribe.questions.question import Query
from fedtranscribe.questions.refusals import Refusal, RefusalCode
from fedtranscribe.rounds.plan import Part, Plan
from fedtranscribe.rounds.roster import Complaint
from fedtranscribe.rounds.round_state import (
    Named,
    RoundProgress,
    VectorFile,
    of_another_version,
    read_json,
)
from fedtranscribe.rounds.transport import Transport

log = logging.getLogger(__name__)

T = TypeVar("T")
# Until a holder has opened a round it may have booked nothing; from then on a refusal is about
# this round, and not about the holder.
_BEFORE_CHARGE = frozenset({wire.SECAGG_KEY, wire.SECAGG_OPEN})
_STUCK = (
    "Resume the run when more of them are back, with abandon=true if this round cannot be fixed."
)


class Watch(Protocol):
    """Keeps count of what a run's holders did."""

    def count_failure(
        self, name: str, complaint: Complaint, query: Query | None, *, charged: bool
    ) -> None:
        """A holder gave no answer; `charged` says whether it may have booked the query.

        It cannot have booked anything where there is no query yet.
        """
        ...

    def keep(self) -> None:
        """A stage is through, and will not be repeated: store who has left."""
        ...

    def grown(self, name: str, head: tuple[int, str]) -> bool:
        """Whether the head of a holder's ledger follows the one before."""
        ...


class MaskedSum:
    """Asks a cohort for masked sums."""

    def __init__(
        self,
        plan: Plan,
        transport: Transport,
        settings: RoundSettings,
        run: str,
        folder: Path,
        watch: Watch,
    ) -> None:
        self._plan = plan
        self._members = plan.members
        self._transport = transport
        self._settings = settings
        self._run = run
        self._keys_file = folder / "secagg-keys.json"
        self._round_file = folder / "secagg-round.json"
        self._vector_file = folder / "secagg-vectors.bin"
        self._server: MaskingServer | None = None
        self._watch = watch
        self._query: Query | None = None

    def began(self, query_id: str) -> bool:
        """Whether holders may have been asked this query already."""
        return RoundProgress.load(self._round_file, query_id) is not None

    def settle(self, query: Query, part: Part, present: Sequence[str]) -> tuple[Tensor, list[str]]:
        """The noisy sum over the survivors of a round, float64 [rows, width], and who they are."""
        grid, self._query = part.grid(self._plan.facts), query
        task = Task(query.id, query.digest(), query.rows * query.width, grid.word)
        now = RoundProgress.load(self._round_file, query.id) or RoundProgress(query.id)
        vectors = VectorFile(self._vector_file, self._members.names, task.size, now.vectors)
        if not now.sent:
            now.save(self._round_file)
            now.sent = self._open(query, part.noise, list(present))
            now.save(self._round_file)
            self._watch.keep()
        if not now.survivors:
            self._mask(task, now, vectors)
            self._watch.keep()
        if len(now.signatures) < self._members.quorum:
            self._sign(now)
            self._watch.keep()
        self._reveal(now)
        try:
            total = self._knowing.unmask(task, now.sent, now.survivors, vectors, now.revealed)
        except ProtocolError as error:
            raise QuorumError(f"{error} {_STUCK}") from None
        return grid.decode(total).reshape(query.rows, query.width), now.survivors

    # ---------------------------------------------------------------- stages

    @property
    def _knowing(self) -> MaskingServer:
        """The server's steps, who knows whom the holders drew; they have keys by now."""
        if self._server is None:
            self._server = MaskingServer(
                self._members, {n: d for n, (_, d) in self._keys().items()}
            )
        return self._server

    def _keys(self) -> dict[str, tuple[Advert, list[str]]]:
        """What is stored of stage 0."""
        stored = read_json(self._keys_file)
        try:
            return {
                name: (Advert(name, *map(b64decode, each["advert"])), each["drawn"])
                for name, each in stored.items()
            }
        except (TypeError, KeyError, ValueError):
            raise of_another_version(self._keys_file) from None

    def _adverts(self, present: list[str]) -> dict[str, Advert]:
        """Stage 0: the keys of the run, asked for once and for good."""
        if not self._keys_file.exists():
            self._ask_keys(present)
        return {name: advert for name, (advert, _) in self._keys().items()}

    def _ask_keys(self, present: list[str]) -> None:
        def ask(number: int, name: str) -> Message:
            return masked.ask_key(number, self._run, self._members)

        def read(content: Message, name: str) -> tuple[Advert, list[str]]:
            advert, drawn = masked.read_advert(content)
            if advert.name != name:
                raise ProtocolError(f"Holder {name} sent the key of {advert.name[:80]!r}.")
            allowed = set(drawn) & set(self._members.names) - {name}
            if not len(allowed) == len(drawn) == self._members.graph.drawn:
                raise ProtocolError(f"Holder {name} drew other holders than it may.")
            return advert, drawn

        # Who is missing here is missing for the whole run, so everybody is waited for.
        replies = self._ask(wire.SECAGG_KEY, present, ask, read, enough=len(present))
        self._expect(replies, "sent a key")
        packed = {
            name: {
                "advert": [b64encode(part).decode() for part in (advert.key, advert.signature)],
                "drawn": drawn,
            }
            for name, (advert, drawn) in replies.items()
        }
        write_atomically(self._keys_file, json.dumps(packed).encode())

    def _open(self, query: Query, noise: NoisePlan, present: list[str]) -> dict[str, Named]:
        adverts = self._adverts(present)
        server = self._knowing

        def ask(number: int, name: str) -> Message:
            envelope = Envelope(query, noise, self._run, number)
            return masked.ask_open(envelope, server.adverts(name, adverts))

        def read(content: Message, name: str) -> Named:
            sealed, head = masked.read_sealed(content, query.id)
            if not self._watch.grown(name, head):
                raise ProtocolError("a ledger that went back")
            if set(sealed) != server.neighbours[name]:
                raise ProtocolError(f"Holder {name} sent shares for other holders.")
            return sealed

        asked = [name for name in present if name in adverts]
        sent = self._ask(wire.SECAGG_OPEN, asked, ask, read)
        self._expect(sent, "sent shares")
        return sent

    def _mask(self, task: Task, now: RoundProgress, vectors: VectorFile) -> None:
        inboxes = self._knowing.inboxes(now.sent)

        def ask(number: int, name: str) -> Message:
            return masked.ask_mask(number, self._run, now.query, inboxes[name])

        def read(content: Message, name: str) -> Named:
            vector, tags = masked.read_masked(content, now.query)
            if len(vector) != task.size:
                raise ProtocolError(f"Holder {name} sent a masked vector of another size.")
            vectors.put(name, vector)
            return tags

        waiting = [name for name in now.sent if name not in now.tags]
        now.tags |= self._ask(
            wire.SECAGG_MASK,
            waiting,
            ask,
            read,
            enough=self._members.quorum - len(now.tags),
        )
        vectors.sync()
        now.vectors = sorted(now.tags)
        now.save(self._round_file)
        self._expect(now.vectors, "sent masked vectors")
        now.survivors = list(self._knowing.survivors(now.vectors))
        # From here on there is no other set.
        now.save(self._round_file)

    def _sign(self, now: RoundProgress) -> None:
        """Ask every survivor that has not signed; a late one helps as well as another."""

        def ask(number: int, name: str) -> Message:
            tags = self._knowing.tags(now.tags, now.survivors, name)
            return masked.ask_sign(number, self._run, now.query, now.survivors, tags)

        now.signatures |= self._ask(
            wire.SECAGG_SIGN,
            [name for name in now.survivors if name not in now.signatures],
            ask,
            lambda content, name: masked.read_signature(content, now.query),
            enough=self._members.quorum - len(now.signatures),
        )
        now.save(self._round_file)
        self._expect(now.signatures, "signed")

    def _reveal(self, now: RoundProgress) -> None:
        def ask(number: int, name: str) -> Message:
            signatures = self._knowing.signatures(now.signatures, name)
            return masked.ask_reveal(number, self._run, now.query, signatures)

        for again in (False, True):
            if again:
                self._sign(now)
            now.revealed |= self._ask(
                wire.SECAGG_REVEAL,
                [name for name in now.signatures if name not in now.revealed],
                ask,
                lambda content, name: masked.read_shares(content, now.query),
                enough=self._members.quorum - len(now.revealed),
            )
            now.save(self._round_file)
            enough = len(now.revealed) >= self._members.quorum
            if enough and not self._knowing.closed(now.sent, now.survivors, now.revealed):
                break
        self._expect(now.revealed, "revealed their shares")

    # ---------------------------------------------------------------- small parts

    def _ask(
        self,
        message_type: str,
        names: list[str],
        make: Callable[[int, str], Message],
        read: Callable[[Message, str], T],
        *,
        enough: int | None = None,
    ) -> dict[str, T]:
        """What holders said, in the order of their names; asked again until they are enough."""
        needed = min(len(names), self._members.quorum if enough is None else enough)
        answers: dict[str, T] = {}
        refused: set[str] = set()
        early = message_type in _BEFORE_CHARGE
        query = None if message_type == wire.SECAGG_KEY else self._query
        for attempt in range(self._settings.retries + 1):
            waiting = [name for name in names if name not in answers and name not in refused]
            if not waiting or (attempt and len(answers) >= needed):
                break
            if attempt:
                time.sleep(self._settings.retry_after * 2 ** (attempt - 1))
                log.warning("asking again for %s: %s", message_type, ", ".join(waiting))
            replies = self._transport.exchange(message_type, waiting, make)
            for name in waiting:
                reply = _read_reply(name, replies.get(name), read)
                if not isinstance(reply, Nothing):
                    answers[name] = reply
                    continue
                if reply.final:
                    refused.add(name)
                complaint = reply.complaint
                if not early and complaint is RefusalCode.CONFLICT:
                    complaint = RefusalCode.INTERNAL
                self._watch.count_failure(name, complaint, query, charged=attempt > 0 or not early)
        return dict(sorted(answers.items()))

    def _expect(self, present: Sized, what: str) -> None:
        if len(present) < self._members.quorum:
            raise QuorumError(
                f"Only {len(present)} of {len(self._members.names)} holders {what}, a masked sum "
                f"needs {self._members.quorum}. Nothing of it is revealed. {_STUCK}"
            )


@dataclass(frozen=True)
class Nothing:
    """No answer, and why."""

    complaint: Complaint

    @property
    def final(self) -> bool:
        """Whether asking again would change nothing."""
        return self.complaint not in (None, RefusalCode.INTERNAL)


def _read_reply(
    name: str, content: Message | None, read: Callable[[Message, str], T]
) -> T | Nothing:
    if content is None:
        return Nothing(None)
    try:
        return read(content, name)
    except Refusal as refusal:
        return Nothing(refusal.code)
    except ProtocolError as error:
        return Nothing(error)
