"""Who takes part in a run, and what each holder has been charged."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any

from fedtranscribe.config import FederationSettings, RoundSettings, StudentSettings
from fedtranscribe.errors import ConfigError, ProtocolError, QuorumError
from fedtranscribe.models.backbones import Backbone
from fedtranscribe.models.fixed_features import FIXED, is_fixed
from fedtranscribe.privacy.units import NoiseMode, Unit
from fedtranscribe.questions.capabilities import Capabilities
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.refusals import RefusalCode

log = logging.getLogger(__name__)

Shape = tuple[int, int, int, bool]


RosterReplies = Mapping[str, Capabilities | RefusalCode | ProtocolError]
"""What holders said when they were asked who they are."""


def enrol(
    replies: RosterReplies, settings: FederationSettings, kind: Kind, expected: int
) -> dict[str, Capabilities]:
    """The holders that can take part, by name in sorted order; the others are logged.

    Where sums over the records may start the run and no holder would be left out by that, all
    holders that give sums take part; see `starts`.
    """
    replies = dict(sorted(replies.items()))
    shape = _common_shape(facts for facts in replies.values() if isinstance(facts, Capabilities))

    def unfit(kind: Kind) -> dict[str, object]:
        """Why each holder cannot take part; None if it can."""
        return {
            name: _unfit(facts, settings, kind, shape) if isinstance(facts, Capabilities) else facts
            for name, facts in replies.items()
        }

    why = unfit(Kind.MOMENTS if settings.start == "moments" else kind)
    with_sums = unfit(Kind.MOMENTS)
    if not against_start(settings) and not any(with_sums[n] for n in replies if not why[n]):
        why = with_sums
    for name, reason in why.items():
        if reason is not None:
            log.warning("holder %s does not take part: %s", name, reason)
    roster = {
        name: facts
        for name, facts in replies.items()
        if why[name] is None and isinstance(facts, Capabilities)
    }
    needed = quorum(settings, expected)
    if len(roster) < needed:
        raise QuorumError(
            f"Only {len(roster)} of {expected} holders can take part, quorum={needed}; see the "
            "log for the reasons, or set a smaller quorum."
        )
    return roster


def starts(settings: FederationSettings, roster: Mapping[str, Capabilities]) -> tuple[bool, str]:
    """Whether sums over the records start a run, and in words why not, where nobody asked for that.

    It follows from the settings and the roster alone, so that a resumed run decides the same.
    """
    if settings.start == "none":
        return False, ""
    why = against_start(settings)
    if not why:
        without = [name for name, facts in roster.items() if Kind.MOMENTS not in facts.kinds]
        why = f"holder {without[0]} allows no sums over its records" if without else ""
        if why and settings.features:
            raise ConfigError(f"Cannot use features={settings.features}: {why}.")
    return not why, f"no sums over the records are asked first: {why}" if why else ""


def against_start(settings: StudentSettings) -> str:
    """Why the settings leave no room for sums over the records; empty where they do."""
    why = ""
    if settings.start == "none":
        why = "start=none"
    elif settings.unit != Unit.RECORD:
        why = f"unit={settings.unit}, and a sum over records hides no whole holder"
    elif settings.student is not None and not is_fixed(settings.student):
        why = f"student={settings.student}, and sums teach students {' and '.join(FIXED)} only"
    if why and (settings.start == "moments" or settings.features):
        asked = f"features={settings.features}" if settings.features else "start=moments"
        raise ConfigError(f"{asked} cannot be combined with {why}; leave one of the two out.")
    return why


def quorum(settings: RoundSettings, holders: int) -> int:
    """Fewest answers that a round needs."""
    return settings.quorum or holders // 2 + 1


def _common_shape(roster: Iterable[Capabilities]) -> Shape | None:
    """What most holders' images and labels are; the first one on a tie."""
    shapes = Counter(_shape(facts) for facts in roster)
    return shapes.most_common(1)[0][0] if shapes else None


def _shape(facts: Capabilities) -> Shape:
    return facts.classes, facts.channels, facts.size, facts.multilabel


def _unfit(
    facts: Capabilities, settings: FederationSettings, kind: Kind, shape: Shape | None
) -> str | None:
    """Why a holder cannot take part; None if it can."""
    rows = min(settings.dpsd.round_rows, settings.rows or settings.dpsd.round_rows)
    if _shape(facts) != shape:
        return (
            f"its images are of (classes, channels, size, several labels) = {_shape(facts)}, "
            f"those of the others {shape}"
        )
    if kind not in facts.kinds:
        return f"it gives no {kind} answers"
    backbone = Backbone.parse(settings.student)
    if backbone is not None and backbone.pinned_name not in facts.features:
        return f"its policy does not allow features of {backbone.network} with these weights"
    if settings.noise == NoiseMode.CENTRAL and facts.noise is not NoiseMode.CENTRAL:
        return "its policy does not trust the server to add the noise; set noise=local"
    if settings.noise == NoiseMode.SECAGG:
        if facts.noise is NoiseMode.LOCAL:
            return "its policy allows no masked sums; set noise=local"
        if not facts.masks:
            return "it has no key or roster for masked sums; its policy file names them"
    if kind is not Kind.MOMENTS and rows > facts.rows_per_message:
        return f"round-rows={rows} is above its limit of {facts.rows_per_message} a message"
    if facts.shards < 1 and kind is not Kind.MOMENTS:
        return f"it has shards={facts.shards}"
    return None


# Asking again would change nothing.
_FINAL = frozenset(
    {
        *(RefusalCode.PROTOCOL, RefusalCode.MALFORMED, RefusalCode.POLICY),
        *(RefusalCode.QUOTA, RefusalCode.CONFLICT),
    }
)

Complaint = RefusalCode | ProtocolError | None
"""What a holder said instead of what was asked; None if it said nothing in time."""


@dataclass
class Standing:
    """Part of every checkpoint."""

    # rows that each holder may have been charged for, by part of the plan
    rows: dict[str, list[int]] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)  # rounds that each holder answered
    left: dict[str, str] = field(default_factory=dict)  # why a holder takes part no more
    abandoned: int = 0  # rows of masked rounds that were given up and asked anew
    # last (sequence, hash) of each holder's ledger, so that one put back is noticed
    heads: dict[str, list[Any]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON-able."""
        return deepcopy(asdict(self))

    def present(self, roster: Iterable[str]) -> list[str]:
        """Who still takes part."""
        return [name for name in roster if name not in self.left]

    def exhausted(self) -> list[str]:
        """Whose budget is spent."""
        return [name for name, why in self.left.items() if why == RefusalCode.BUDGET.value]

    def charge(self, name: str, spent: Sequence[int]) -> None:
        """Count rows as spent, by part."""
        before = self.rows.get(name, [0] * len(spent))
        self.rows[name] = [old + new for old, new in zip(before, spent, strict=True)]

    def count_answer(self, name: str) -> None:
        """Count a round as answered."""
        self.answers[name] = self.answers.get(name, 0) + 1

    def grown(self, name: str, head: tuple[int, str]) -> bool:
        """Whether the head of a holder's ledger is the one before, or follows it."""
        before, now = self.heads.get(name), list(head)
        follows = before is None or now == before or now[0] > before[0]
        if follows:
            self.heads[name] = now
        return follows

    def note(
        self,
        name: str,
        reply: Complaint,
        spent: Sequence[int],
        *,
        first: bool,
    ) -> None:
        """Keep a silent or failing holder, let go of one that refuses or talks nonsense.

        Only a refusal at first contact shows that nothing was booked; an earlier, lost message may
        have been charged, and a conflict proves that the id is known.

        Args:
            name: of the holder.
            reply: what it said instead of an answer; None if it said nothing in time.
            spent: rows of the query, by part.
            first: whether it was asked for the first time.
        """
        if reply is None:
            log.warning("holder %s did not answer in time", name)
        elif reply is RefusalCode.INTERNAL:
            log.warning("holder %s failed", name)
        elif reply is RefusalCode.BUDGET or reply in _FINAL:
            if not first or reply is RefusalCode.CONFLICT:
                self.charge(name, spent)
            self._let_go(name, str(reply))
        else:
            # It was charged for what it sent, whatever that was.
            self.charge(name, spent)
            self._let_go(name, str(reply))

    def _let_go(self, name: str, why: str) -> None:
        log.warning("holder %s no longer takes part: %s", name, why)
        self.left[name] = why
