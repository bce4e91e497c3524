"""A run's result in words, for a reader who has to decide something."""

from dataclasses import dataclass

from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.report.facts import RunFacts

UNITS = {
    Unit.RECORD: "one record (an image and its label; all images of one id, where ids repeat)",
    Unit.HOLDER: "one data holder with all of its records",
}
CHANGES = {
    Adjacency.ZERO_OUT: "it is replaced by an empty one",
    Adjacency.REPLACE: "it is replaced by any other one",
    Adjacency.ADD_REMOVE: "it is added or removed, and nothing else changes",
}

# By the share of right guesses with even odds: what ε means depends on δ and mechanism.
_STRONG, _MODERATE = 0.65, 0.85


@dataclass(frozen=True)
class Verdict:
    """What stands on top of a page.

    Attributes:
        banner: why the run must not be taken for private; None if it may be.
        headline: in one sentence.
        sentences: that explain it.
        good: whether the guarantee holds and no audit contradicts it.
    """

    banner: str | None
    headline: str
    sentences: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether there is nothing to be warned of."""
        return self.banner is None


def judge(facts: RunFacts) -> Verdict:
    """The verdict on a run."""
    contradicted = facts.audit.get("sound") is False
    stated = facts.result.guarantee
    if stated.epsilon is None:
        return Verdict(
            f"NOT PRIVATE: method {facts.method} gives no guarantee for this unit.",
            "Nothing limits what this run reveals about the records it was learned from.",
            _usefulness(facts),
        )
    if stated.private is None:
        return Verdict(
            "NOT PRIVATE: the run does not say where its noise came from.",
            "Without that no figure of privacy holds.",
            ("It was made by an older version, or changed by hand. Repeat it.",),
        )
    if not stated.private:
        return Verdict(
            "NOT PRIVATE: the noise came from a seed.",
            "Anyone who knows the seed can remove the noise, so no figure of privacy holds.",
            ("Runs like this are for tests. Repeat it without a seed for the noise.",),
        )
    sentences = (*_meaning(facts), *_trust(facts), *_audited(facts), *_usefulness(facts))
    headline = (
        f"{_strength(facts)} for every {facts.unit.value}: ε\u00a0=\u00a0{facts.epsilon:.4g} at "
        f"δ\u00a0=\u00a0{tiny(facts.delta)}."
    )
    if contradicted:
        banner = "AN AUDIT CONTRADICTS THE GUARANTEE: do not release this run."
        return Verdict(banner, f"Claimed, but contradicted: {headline}", sentences)
    return Verdict(None, headline, sentences)


def tiny(delta: float) -> str:
    """δ as people write it: 1e-5, not 1e-05."""
    return f"{delta:g}".replace("e-0", "e-")


def _strength(facts: RunFacts) -> str:
    right = facts.risk.right if facts.risk is not None else 1.0
    if right <= _STRONG:
        return "A strong guarantee"
    return "A moderate guarantee" if right <= _MODERATE else "A weak guarantee"


def _meaning(facts: RunFacts) -> tuple[str, ...]:
    if facts.risk is None:
        return ()
    words = facts.risk.words
    if facts.unit is Unit.HOLDER:
        words = words.replace("one given record", "one given holder").replace(
            "100 records", "100 holders"
        )
    return (words,)


def _trust(facts: RunFacts) -> tuple[str, ...]:
    federation = facts.result.federation
    trust = None if federation is None else federation.trust
    return (f"Who had to be trusted: {trust}.",) if trust else ()


def _audited(facts: RunFacts) -> tuple[str, ...]:
    found = facts.audit.get("findings") or []
    if not found:
        return ("No attack has been tried yet.",)
    best = max(found, key=lambda finding: finding["lower_bound"])
    if best["contradicts"]:
        return (
            f"The attack “{best['attack']}” proves at least ε = {best['lower_bound']:.3g} where "
            f"{best['epsilon']:.3g} is claimed.",
        )
    if len(found) == 1:
        return ("One attack was tried on it, and what it found lies within the guarantee.",)
    return (f"{len(found)} attacks were tried on it; what they found lies within the guarantee.",)


def _usefulness(facts: RunFacts) -> tuple[str, ...]:
    if facts.diffusion:
        return (_taught(facts),)
    score = facts.scores.get("student")
    if score is None:
        return (
            "The student's accuracy on the holder's own records is not shown here: no ε covers it.",
        )
    return (
        f"The student labels {100 * score:.1f} % of held-out images of {facts.data} correctly"
        f"{_compared(facts)}.",
    )


def _taught(facts: RunFacts) -> str:
    if facts.taught is not None:
        return (
            f"A CNN trained on its images alone labels {100 * facts.taught:.1f} % of held-out "
            f"images of {facts.data} correctly{_compared(facts)}."
        )
    if facts.told:
        return "What can be learned from its images has not been measured: run an evaluation."
    return (
        "What can be learned from its images, tested on the holder's own records, is not shown "
        "here: no ε covers it."
    )


def _compared(facts: RunFacts) -> str:
    """What an accuracy is to be held against."""
    found = [f"{name}: {100 * value:.1f}\u00a0%" for name, value in facts.baselines.items()]
    return f" ({'; '.join(found)})" if found else ""
