"""Where a run's ε went, and its result in words for a reader who has to decide."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from fedtranscribe.errors import ConfigError
from fedtranscribe.evaluation.audit_checks import THE_HOLDER, HolderEvents, epsilon_of
from fedtranscribe.evaluation.report_facts import RunFacts
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, Unit

# A label's ε takes a second to find.
_MOST_POINTS = 10


@dataclass(frozen=True)
class Line:
    """What some holders had given away after so many rows."""

    holders: tuple[str, ...]  # that this line stands for; those that gave the same are one
    unit: Unit  # whose presence ε hides
    rows: tuple[int, ...]  # answered so far
    epsilon: tuple[float, ...]  # sound, at each

    @property
    def label(self) -> str:
        """For a legend."""
        if self.holders == (THE_HOLDER,):
            return f"per {self.unit.value}"
        n = len(self.holders)
        whose = self.holders[0] if n == 1 else f"each of {n} holders"
        return f"{whose}, per {self.unit.value}"


_SUMS = {
    "moments": "moments of the records' features, for the student",
    "loss-gradients": "gradients of the student's loss",
    "block-products": "means and covariances of images, for the generator",
    "band-energies": "texture of images, for the generator",
}


@dataclass(frozen=True)
class Share:
    """What questions of one kind took of a run's budget."""

    kind: str  # in words
    answers: int  # how many
    share: float  # of the whole, in zero-concentrated DP, which adds up exactly; between 0 and 1
    epsilon: float  # sound, had nothing else been answered


def asked_sums(holder_events: HolderEvents) -> bool:
    """Whether holders answered sums over their records: questions of one answer each."""
    return any(release.rows == 1 for releases in holder_events.values() for release in releases)


def shares(
    holder_events: HolderEvents, unit: Unit, adjacency: Adjacency, delta: float
) -> list[Share]:
    """What each kind of question took, in the order asked, at the holder that gave most away."""
    costs: dict[str, float] = {}
    for holder, releases in holder_events.items():
        events = [release.costs.get(unit, {}).get(adjacency) for release in releases]
        if any(event is None for event in events):
            return []
        costs[holder] = sum(event.zcdp_rho for event in events if event is not None)
    if not costs:
        return []
    holder = max(costs, key=costs.__getitem__)
    found = []
    for kind, group in groupby(holder_events[holder], key=lambda release: _kind(release.mechanism)):
        some = tuple(group)
        cost = sum(release.event(unit, adjacency).zcdp_rho for release in some)
        epsilon = epsilon_of(some, unit, adjacency, delta)
        if epsilon is None or costs[holder] == 0:
            return []
        answers = sum(release.rows for release in some)
        found.append(Share(kind, answers, cost / costs[holder], epsilon))
    return found if len(found) > 1 else []


def _kind(mechanism: str) -> str:
    """In words; names begin with the place of the noise."""
    _, _, name = mechanism.partition("-")
    return _SUMS.get(name, mechanism)


def lines(
    holder_events: HolderEvents, adjacency: Adjacency, delta: float, marks: Sequence[int]
) -> list[Line]:
    """Every holder's ε per unit, while rows were answered."""
    alike: list[tuple[tuple[MechanismRelease, ...], list[str]]] = []
    for holder, releases in holder_events.items():
        same = next((names for other, names in alike if other == releases), None)
        if same is None:
            alike.append((releases, [holder]))
        else:
            same.append(holder)
    found = []
    for releases, names in alike:
        so_far = _so_far(releases, marks)
        for unit in Unit:
            epsilons = [epsilon_of(some, unit, adjacency, delta) for _, some in so_far]
            known = [e for e in epsilons if e is not None]
            if known and len(known) == len(epsilons):
                rows = tuple(n for n, _ in so_far)
                found.append(Line(tuple(names), unit, rows, tuple(known)))
    return found


def _so_far(
    releases: tuple[MechanismRelease, ...], marks: Sequence[int]
) -> list[tuple[int, tuple[MechanismRelease, ...]]]:
    """Rows, and what they had cost: after each release, or at the marks within a single one."""
    if len(releases) == 1:
        whole = releases[0]
        ends = [mark for mark in marks if 0 < mark < whole.rows]
        try:
            parts = [(n, (whole.with_rows(n),)) for n in _thinned(ends)]
        except ConfigError:
            # Its events count something else than rows, such as steps of DP-SGD.
            parts = []
        return [*parts, (whole.rows, releases)]
    places = _thinned(range(1, len(releases)))
    cuts = [releases[:place] for place in [*places, len(releases)]]
    return [(sum(release.rows for release in cut), cut) for cut in cuts]


def _thinned(places: Sequence[int]) -> list[int]:
    step = max(1, -(-len(places) // _MOST_POINTS))
    return list(places[step - 1 :: step]) if step > 1 else list(places)


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
class ReportVerdict:
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


def judge(facts: RunFacts) -> ReportVerdict:
    """The verdict on a run."""
    contradicted = facts.audit.get("sound") is False
    stated = facts.result.guarantee
    if stated.epsilon is None:
        return ReportVerdict(
            f"NOT PRIVATE: method {facts.method} gives no guarantee for this unit.",
            "Nothing limits what this run reveals about the records it was learned from.",
            _usefulness(facts),
        )
    if stated.private is None:
        return ReportVerdict(
            "NOT PRIVATE: the run does not say where its noise came from.",
            "Without that no figure of privacy holds.",
            ("It was made by an older version, or changed by hand. Repeat it.",),
        )
    if not stated.private:
        return ReportVerdict(
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
        return ReportVerdict(banner, f"Claimed, but contradicted: {headline}", sentences)
    return ReportVerdict(None, headline, sentences)


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
    if facts.is_public:
        return "What can be learned from its images has not been measured: run an evaluation."
    return (
        "What can be learned from its images, tested on the holder's own records, is not shown "
        "here: no ε covers it."
    )


def _compared(facts: RunFacts) -> str:
    """What an accuracy is to be held against."""
    found = [f"{name}: {100 * value:.1f}\u00a0%" for name, value in facts.baselines.items()]
    return f" ({'; '.join(found)})" if found else ""
