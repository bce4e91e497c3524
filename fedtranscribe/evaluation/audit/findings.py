"""What an audit says: a lower bound with its confidence, always beside the ε that it tests."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedtranscribe.errors import AuditError
from fedtranscribe.privacy.units import Adjacency, Unit


@dataclass(frozen=True)
class Claim:
    """The sound guarantee that an attack is held against.

    Attributes:
        epsilon: sound ε; None where the run has no guarantee, so that nothing can contradict it.
        delta: δ.
        unit: whose presence it hides.
        adjacency: against which change.
    """

    epsilon: float | None
    delta: float
    unit: Unit = Unit.RECORD
    adjacency: Adjacency = Adjacency.ADD_REMOVE


@dataclass(frozen=True)
class Finding:
    """The result of one attack.

    Attributes:
        attack: its name.
        claim: what it was held against.
        lower: ε that it certifies at the claim's δ; 0 where it certifies nothing.
        confidence: with which `lower` holds.
        words: what was done and what came of it, in one or two sentences.
        figures: everything else, JSON-able.
        private: whether it rests on private records, so that it must stay with their holder.
    """

    attack: str
    claim: Claim
    lower: float
    confidence: float
    words: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    private: bool = True

    @property
    def contradicts(self) -> bool:
        """Whether more was found than the guarantee allows."""
        return self.claim.epsilon is not None and self.lower > self.claim.epsilon

    def to_json(self) -> dict[str, Any]:
        """As it stands in `audit.json`."""
        return {
            "attack": self.attack,
            "lower_bound": self.lower,
            "confidence": self.confidence,
            "epsilon": self.claim.epsilon,
            "delta": self.claim.delta,
            "unit": self.claim.unit.value,
            "adjacency": self.claim.adjacency.value,
            "contradicts": self.contradicts,
            "words": self.words,
            **self.figures,
        }


@dataclass(frozen=True)
class Check:
    """Something that either holds or does not: bookkeeping rather than an attack.

    Attributes:
        name: what was looked at.
        ok: whether it holds; None where it could not be looked at.
        words: what was found.
        private: whether it rests on private records, so that it must stay with their holder.
    """

    name: str
    ok: bool | None
    words: str
    private: bool = False

    def to_json(self) -> dict[str, Any]:
        """As it stands in `audit.json`."""
        return {"check": self.name, "ok": self.ok, "words": self.words}


def proved(lower: float) -> str:
    """The end of a sentence about an attack."""
    return f"which proves ε ≥ {lower:.3g}" if lower > 0 else "which proves nothing"


def expect_sound(findings: Sequence[Finding], checks: Iterable[Check] = ()) -> None:
    """Stop where an attack or a check contradicts what a run says about its privacy.

    Raises:
        AuditError: names every contradiction, with both figures.
    """
    wrong = [
        f"{finding.attack}: at least ε = {finding.lower:.4g} with confidence "
        f"{finding.confidence:g}, where ε = {finding.claim.epsilon:.4g} is claimed"
        for finding in findings
        if finding.contradicts
    ]
    wrong += [f"{check.name}: {check.words}" for check in checks if check.ok is False]
    if wrong:
        raise AuditError(
            f"The audit contradicts the guarantee ({'; '.join(wrong)}). "
            "Do not release this run, and report it: either the guarantee is wrong, or the "
            "figures, the data or the ledger are not those of the run."
        )
