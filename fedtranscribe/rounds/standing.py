"""How the holders of a run stand: what each may have been charged, and who takes part no more.

The rows that a holder was asked count as spent unless it said that it booked nothing, so that a
printed ε can only be too large.
"""

import logging
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any

from fedtranscribe.errors import ProtocolError
from fedtranscribe.refusals import RefusalCode

log = logging.getLogger(__name__)

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
    """Part of every checkpoint.

    Attributes:
        rows: rows that each holder may have been charged for, by part of the plan.
        answers: rounds that each holder answered.
        left: why a holder takes part no more.
        abandoned: rows of masked rounds that were given up and asked anew.
        heads: last (sequence, hash) of each holder's ledger, so that one put back is noticed.
    """

    rows: dict[str, list[int]] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    abandoned: int = 0
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

    def thank(self, name: str) -> None:
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
