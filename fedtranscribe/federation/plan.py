"""What a federated run will do, from public facts only and before any holder spends anything.

Noise is calibrated on the SUM over holders of their shard-averaged rows, for the smallest shard
count among them: who has more shards is protected better. See the privacy law, section 4.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedtranscribe.config import FederationSettings
from fedtranscribe.errors import ConfigError, HopelessPlanError
from fedtranscribe.exchange import AnswerKind, NoisePlan, expect_tolerable
from fedtranscribe.federation.capabilities import Capabilities
from fedtranscribe.federation.mechanism_choice import mechanism_of
from fedtranscribe.mechanisms.discrete import Grid, quantised_noise_std
from fedtranscribe.privacy.accountant import epsilon_filter, guarantee
from fedtranscribe.privacy.calibrate import (
    EnsembleLayout,
    NoiseMode,
    RowAnswer,
    label_epsilon0,
    noise_std,
    vote_eta,
)
from fedtranscribe.privacy.forecasts import Forecast, forecast, label_forecast
from fedtranscribe.privacy.published import Published, dpsd_theorem1, dpsd_theorem2
from fedtranscribe.privacy.release_plan import PrivacyPlan, Release
from fedtranscribe.privacy.units import Adjacency, Guarantee, Unit
from fedtranscribe.secagg import Members
from fedtranscribe.transcribe.plan import KINDS

_ROWS_PER_CLASS = 400
# Of M teachers that vote on a synthetic image about half agree.
_AGREEMENT = 0.5
_TRUST = {
    NoiseMode.LOCAL: "nobody: each holder's answers are private by themselves",
    NoiseMode.CENTRAL: "the server: it sees raw answers and adds the noise",
}


@dataclass(frozen=True)
class FederatedPlan:
    """Everything that decides the guarantee of a federated run.

    Attributes:
        kind: what is asked per row.
        rows: how many rows in all.
        k: classes per row's index set.
        noise: under which every query goes out.
        roster: the holders that take part, by name; fixed for the run.
        delta: at which ε is quoted.
        forecast: what can be learned at all.
        published: the paper's own figure for the same noise.
    """

    kind: AnswerKind
    rows: int
    k: int
    noise: NoisePlan
    roster: Mapping[str, Capabilities]
    delta: float
    forecast: Forecast
    published: Published

    def release(self, holder: str, rows: int) -> Release:
        """What so many answered rows give away about one holder's data."""
        facts = self.roster[holder]
        mechanism = mechanism_of(self.kind, self.noise, facts.shards, self.k)
        return mechanism.release(rows, positional_ids=facts.positional_ids)

    def guarantee(
        self, rows: Mapping[str, int], unit: Unit, adjacency: Adjacency
    ) -> Guarantee | None:
        """The weakest of the holders' guarantees; None where one has none.

        One record or holder is touched by its own holder's answers only, so the figures of
        several holders do not add up.
        """
        stated = []
        for holder, count in rows.items():
            if count == 0:
                continue
            release = self.release(holder, count)
            if adjacency not in release.costs.get(unit, {}):
                return None
            stated.append(guarantee(PrivacyPlan((release,), unit, adjacency, self.delta)))
        return max(stated, key=lambda g: g.epsilon, default=None)

    def refuse_if_hopeless(self, *, force: bool) -> None:
        """Stop before any holder spends anything.

        Raises:
            HopelessPlanError: nothing can be learned, and nobody insists.
        """
        if self.forecast.hopeless and not force:
            raise HopelessPlanError(
                f"{self.forecast.words} Set force=true to spend the budget anyway."
            )

    @property
    def trust(self) -> str:
        """Whom the holders have to trust, in words."""
        if self.noise.mode is NoiseMode.SECAGG:
            return (
                f"no server: answers are summed under masks, of which up to {self.noise.dropouts} "
                f"holders may be missing while {self.noise.colluders} tell the server all they know"
            )
        return _TRUST[self.noise.mode]

    @property
    def members(self) -> Members:
        """Who takes part in masked sums.

        Raises:
            ConfigError: too many failures for so few holders.
        """
        return Members(tuple(sorted(self.roster)), self.noise.dropouts, self.noise.colluders)

    @property
    def grid(self) -> Grid:
        """Where the values of masked sums lie."""
        return Grid.choose(self.noise.strength, self.noise.holders, self.noise.tolerated)

    def sharpness(self, answers: int) -> float:
        """Nats that a unit of agreement is worth, when so many holders answered."""
        if self.kind is AnswerKind.LABEL:
            s, shards = self.noise.strength, min(facts.shards for facts in self.roster.values())
            return s if shards == 1 else min(s * shards * _AGREEMENT, math.log(1e6))
        return self.mean_std(answers) ** -2

    def mean_std(self, answers: int) -> float:
        """Std of the noise per coordinate on the mean of so many holders' rows."""
        s, m = self.noise.strength, self.noise.holders
        if self.noise.mode is NoiseMode.CENTRAL:
            return m * s / answers
        if self.noise.mode is NoiseMode.SECAGG:
            return m * s / math.sqrt((m - self.noise.tolerated) * answers)
        return math.sqrt(m / answers) * s


def make_federated_plan(
    settings: FederationSettings, roster: Mapping[str, Capabilities]
) -> FederatedPlan:
    """Choose rows and noise for the holders that take part.

    The same settings and roster give the same plan, so that a run can be resumed.

    Raises:
        ConfigError: top-k beyond the classes, labels with central noise, or more rows than a
            holder allows per run.
    """
    plan = _make(settings, roster)
    least = min(roster.values(), key=lambda facts: facts.rows_per_run)
    if plan.rows > least.rows_per_run:
        raise ConfigError(
            f"Expected rows={plan.rows} <= {least.rows_per_run}, the limit of holder "
            f"{least.name} per run; ask for fewer."
        )
    return plan


def _make(settings: FederationSettings, roster: Mapping[str, Capabilities]) -> FederatedPlan:
    facts = next(iter(roster.values()))
    k = settings.top_k or facts.classes
    if k > facts.classes:
        raise ConfigError(f"Expected top-k={k} <= {facts.classes} classes; ask for fewer.")
    rows = settings.rows or _ROWS_PER_CLASS * facts.classes
    kind = KINDS[settings.privacy]
    if kind is AnswerKind.LABEL:
        return _label_plan(settings, roster, rows, k)
    unit, mode, answer = Unit(settings.unit), NoiseMode(settings.noise), RowAnswer(kind.value)
    shards = min(holder.shards for holder in roster.values())
    layout = EnsembleLayout(len(roster) * shards, len(roster))
    target = settings.epsilon, settings.delta, rows, layout, unit, answer
    if mode is NoiseMode.SECAGG:
        failures = _failures(settings, roster)
        std = quantised_noise_std(*target, k, sum(failures))
        noise = NoisePlan(mode, std, len(roster), *failures)
    else:
        std = noise_std(*target, mode)
        noise = NoisePlan(mode, std, len(roster))
    published = dpsd_theorem1(std, _paper_beta(settings.epsilon), k, rows, 1, settings.delta)
    return FederatedPlan(
        kind,
        rows,
        k,
        noise,
        roster,
        settings.delta,
        forecast(settings.epsilon, settings.delta, layout, unit, answer, mode, facts.classes),
        replace(published, reason=f"{published.reason} And it knows no ensembles."),
    )


def _failures(settings: FederationSettings, roster: Mapping[str, Capabilities]) -> tuple[int, int]:
    """How many holders may be missing from a masked sum, and how many may side with the server.

    Every holder's own policy is kept: as many colluders as the most careful one counts on, and no
    more drop-outs than the strictest one bears.

    Raises:
        ConfigError: more drop-outs are asked for than that, or too many for so few holders.
    """
    colluders = max(facts.colluders for facts in roster.values())
    strictest = min(roster.values(), key=lambda facts: facts.dropouts)
    most = min(strictest.dropouts, max(0, (len(roster) - colluders - 1) // 2))
    dropouts = most if settings.dropouts is None else settings.dropouts
    if dropouts > strictest.dropouts:
        raise ConfigError(
            f"Expected dropouts={dropouts} <= {strictest.dropouts}, the limit of holder "
            f"{strictest.name}; ask for fewer."
        )
    expect_tolerable(len(roster), dropouts, colluders)
    return dropouts, colluders


def _label_plan(
    settings: FederationSettings, roster: Mapping[str, Capabilities], rows: int, k: int
) -> FederatedPlan:
    if settings.noise != NoiseMode.LOCAL:
        raise ConfigError(
            f"Expected noise=local with privacy=label, got {settings.noise}: a label is private "
            "by itself."
        )
    if k < 2:
        raise ConfigError("Expected top-k=1 >= 2: a set of one class tells nothing.")
    if settings.unit == Unit.HOLDER and any(facts.shards > 1 for facts in roster.values()):
        raise ConfigError(
            "Expected one teacher per holder with privacy=label and unit=holder: a holder moves "
            "all of its votes; set shards=1, or privacy=vote."
        )
    target = settings.epsilon, settings.delta, rows
    shards = {facts.shards for facts in roster.values()}
    if shards == {1}:
        strength = nats = label_epsilon0(*target, k, epsilon_filter)
    else:
        # Votes of an ensemble; with one voter they cost no more than that.
        strength = vote_eta(*target, epsilon_filter)
        nats = strength * min(shards) * _AGREEMENT
    return FederatedPlan(
        AnswerKind.LABEL,
        rows,
        k,
        NoisePlan(NoiseMode.LOCAL, strength, len(roster)),
        roster,
        settings.delta,
        label_forecast(min(nats, 50.0), k, rows * len(roster)),
        dpsd_theorem2(strength),
    )


def _paper_beta(epsilon: float) -> float:
    """β as the paper sets it; it cancels, since noise and rows both scale by it."""
    return 1e-3 if epsilon <= 1 else 5e-3
