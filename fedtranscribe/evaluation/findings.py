"""What an audit finds: a lower bound beside the claimed ε, and ε in words."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedtranscribe.errors import AuditError, ConfigError
from fedtranscribe.privacy.accountant import delta_of
from fedtranscribe.privacy.events import Event, Gaussian
from fedtranscribe.privacy.units import Adjacency, Unit


@dataclass(frozen=True)
class Claim:
    """The sound guarantee that an attack is held against."""

    # sound ε; None where the run has no guarantee, so that nothing can contradict it
    epsilon: float | None
    delta: float  # δ
    unit: Unit = Unit.RECORD  # whose presence it hides
    adjacency: Adjacency = Adjacency.ADD_REMOVE  # against which change


@dataclass(frozen=True)
class Finding:
    """The result of one attack."""

    attack: str  # its name
    claim: Claim  # what it was held against
    lower: float  # ε that it certifies at the claim's δ; 0 where it certifies nothing
    confidence: float  # with which `lower` holds
    words: str  # what was done and what came of it, in one or two sentences
    figures: Mapping[str, Any] = field(default_factory=dict)  # everything else, JSON-able
    # whether it rests on private records, so that it must stay with their holder
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
    """Something that either holds or does not: bookkeeping rather than an attack."""

    name: str  # what was looked at
    ok: bool | None  # whether it holds; None where it could not be looked at
    words: str  # what was found
    # whether it rests on private records, so that it must stay with their holder
    private: bool = False

    def to_json(self) -> dict[str, Any]:
        """As it stands in `audit.json`."""
        return {"check": self.name, "ok": self.ok, "words": self.words}


def proved(lower: float) -> str:
    """The end of a sentence about an attack."""
    return f"which proves ε ≥ {lower:.3g}" if lower > 0 else "which proves nothing"


def expect_sound(findings: Sequence[Finding], checks: Iterable[Check] = ()) -> None:
    """Stop where an attack or a check contradicts what a run says about its privacy."""
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


FALSE_ALARMS = (0.001, 0.01, 0.1)
"""False positive rates at which an attack is quoted."""

_POINTS = 200
_LARGEST_EXPONENT = 700.0
"""e to this power is still a double."""


@dataclass(frozen=True)
class Risk:
    """What the best attack on one record could achieve."""

    advantage: float  # largest difference of true and false positive rate
    found: dict[float, float]  # false positive rate -> true positive rate
    source: str  # who found the figures

    @property
    def right(self) -> float:
        """Share of right guesses where a fair coin decided whether the record was used."""
        return (1 + self.advantage) / 2

    @property
    def words(self) -> str:
        """For a reader who does not think in ε."""
        rate = 0.01
        return (
            "If a fair coin decides whether one given record is used, an attacker guesses that "
            f"right in at most {_percent(self.right)} of cases, whatever they know and compute "
            f"({_percent(0.5)} is luck). An attacker who wrongly accuses only 1 in 100 records "
            f"that were not used finds at most {_percent(self.found[rate])} of those that were."
        )

    def to_json(self) -> dict[str, Any]:
        """As it stands in `audit.json`."""
        found = {f"{rate:g}": value for rate, value in self.found.items()}
        return {
            "advantage": self.advantage,
            "right_guesses": self.right,
            "true_positive_rate_at": found,
            "source": self.source,
            "words": self.words,
        }


def risk_of(claim: Claim, *events: Sequence[Event]) -> Risk | None:
    """The risk that a claim leaves; None where there is no claim.

    Args:
        claim: ε and δ.
        events: that cost them, a list for each holder: one record is touched by its own holder's
            answers only, so the worst of each figure counts. Where there are none, or too many for
            their whole profile, ε and δ alone are turned into a looser figure.
    """
    if claim.epsilon is None:
        return None
    risks = [_of_events(claim.epsilon, claim.delta, each) for each in events or ((),)]
    found = {rate: max(risk.found[rate] for risk in risks) for rate in FALSE_ALARMS}
    return replace(max(risks, key=lambda risk: risk.advantage), found=found)


def _of_events(epsilon: float, delta: float, events: Sequence[Event]) -> Risk:
    if events and all(isinstance(event, Gaussian) for event in events):
        return _of_gaussian(math.sqrt(sum(event.gdp_mu**2 for event in events)))
    curve = _curve(events, max(epsilon, 1.0) * 2) if events else None
    if curve is not None:
        return _of_profile(curve, "trade-off function of the run's events")
    return _of_profile(_pair_profile(epsilon, delta), "trade-off function of (ε, δ)")


def _curve(events: Sequence[Event], top: float) -> list[tuple[float, float]] | None:
    """Points of δ(ε) up to an ε; None where the events are too many or too costly for a grid.

    Their ε comes from a dominating Gaussian then, and ε and δ alone still bound every attack.
    """
    try:
        return [(e, delta_of(events, e)) for e in (top * i / _POINTS for i in range(_POINTS + 1))]
    except ConfigError:
        return None


def _of_gaussian(mu: float) -> Risk:
    try:
        from riskcal import analysis
    except ImportError:
        return _of_closed_form(mu)
    found = {rate: 1 - float(analysis.get_beta_from_gdp(mu, rate)) for rate in FALSE_ALARMS}
    advantage = float(analysis.get_advantage_from_gdp(mu))
    return Risk(advantage, found, f"riskcal, Gaussian of μ = {mu:.4g}")


def _of_closed_form(mu: float) -> Risk:
    from scipy.stats import norm

    found = {rate: float(norm.cdf(norm.ppf(rate) + mu)) for rate in FALSE_ALARMS}
    advantage = float(norm.cdf(mu / 2) - norm.cdf(-mu / 2))
    return Risk(advantage, found, f"closed form, Gaussian of μ = {mu:.4g}")


def _of_profile(curve: Sequence[tuple[float, float]], source: str) -> Risk:
    """From points of δ(ε); the first is ε = 0, where δ is the advantage."""
    found = {
        rate: min(1.0, *(_exp(epsilon) * rate + delta for epsilon, delta in curve))
        for rate in FALSE_ALARMS
    }
    return Risk(min(1.0, curve[0][1]), found, source)


def _pair_profile(epsilon: float, delta: float) -> list[tuple[float, float]]:
    """δ at 0 and at ε, as one pair implies them."""
    # e^-ε (1 − δ − α) from below: at ε = 0 the two lines meet at this advantage.
    advantage = 1 - 2 * (1 - delta) / (1 + _exp(epsilon))
    return [(0.0, advantage), (epsilon, delta)]


def _exp(epsilon: float) -> float:
    return math.exp(epsilon) if epsilon < _LARGEST_EXPONENT else math.inf


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
