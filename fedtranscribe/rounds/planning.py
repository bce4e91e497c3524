"""How a plan is made: rows and noise, out of settings and the facts that holders tell."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedtranscribe.capabilities import Capabilities
from fedtranscribe.config import StudentSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.mechanisms import mean_rows_bound
from fedtranscribe.mechanisms.masked import masked_noise_std
from fedtranscribe.mechanisms.moments import moments_bound
from fedtranscribe.models.scattering import row_width
from fedtranscribe.privacy.accountant import epsilon_filter
from fedtranscribe.privacy.calibrate import (
    ROUNDING,
    EnsembleLayout,
    label_epsilon0,
    noise_std,
    row_mu,
    vote_eta,
)
from fedtranscribe.privacy.closed_forms import gaussian_epsilon, gaussian_mu
from fedtranscribe.privacy.forecasts import (
    Verdict,
    forecast,
    label_forecast,
    moments_forecast,
)
from fedtranscribe.privacy.noise_plan import NoisePlan, expect_tolerable
from fedtranscribe.privacy.published import dpsd_theorem1, dpsd_theorem2, published_sigma
from fedtranscribe.privacy.units import Adjacency, NoiseMode, RowAnswer, Unit
from fedtranscribe.privacy.zcdp import zcdp_rho
from fedtranscribe.query import Kind
from fedtranscribe.rounds.plan import Part, Plan, label_nats

KINDS = {"data": Kind.GRADIENT, "label": Kind.LABEL, "vote": Kind.VOTE}
"""What is asked for, by the setting `privacy`."""

# Rows: enough for the student, few enough for minutes on two cores.
_ROWS_PER_CLASS = 400
# Of μ², which adds up: the first question about moments only has to show which axes matter.
_FIRST_SHARE = 0.3
# Of μ², for teachers that say more than the sums do.
_EVEN = 0.5
_RANK = {Verdict.HOPELESS: 0, Verdict.POOR: 1, Verdict.FINE: 2}
_NO_ENSEMBLES = (
    "And it knows no ensembles: a record that reaches one of M teachers moves the mean of their "
    "rows by 1/M of what it counts, so that here it may print more than the sound figure."
)


@dataclass(frozen=True)
class Asked:
    """What a plan is made from, beside the facts of the holders.

    Attributes:
        settings: of the run.
        kind: what is asked for; of teachers, where there is a start.
        mode: who adds the noise.
        dropouts: that a masked sum is to bear; None: what all holders bear.
        by_formula: whether the noise is the published formula's, which is no guarantee.
        start: whether sums over the records are asked first.
    """

    settings: StudentSettings
    kind: Kind
    mode: NoiseMode = NoiseMode.LOCAL
    dropouts: int | None = None
    by_formula: bool = False
    start: bool = False


def make_plan(asked: Asked, roster: Mapping[str, Capabilities]) -> Plan:
    """Choose rows and noise for the holders that take part.

    The same settings and roster give the same plan, so that a run can be resumed.

    Raises:
        ConfigError: top-k beyond the classes, labels with noise of somebody else's, a unit that
            the kind cannot protect, or more rows than a holder allows per run.
    """
    make = {Kind.LABEL: _label_plan, Kind.MOMENTS: _moments_plan}.get(asked.kind, _rows_plan)
    plan = (_started_plan if asked.start else make)(asked, roster)
    least = min(roster.values(), key=lambda facts: facts.rows_per_run)
    if plan.rows > least.rows_per_run:
        raise ConfigError(
            f"Expected rows={plan.rows} <= {least.rows_per_run}, the limit of holder "
            f"{least.name} per run; ask for fewer."
        )
    return plan


def _rows_and_k(settings: StudentSettings, facts: Capabilities) -> tuple[int, int]:
    k = settings.top_k or facts.classes
    if k > facts.classes:
        raise ConfigError(f"Expected top-k={k} <= {facts.classes} classes; ask for fewer.")
    if k == 1:
        raise ConfigError("Expected top-k=1 >= 2: a set of one class tells nothing.")
    return settings.rows or _ROWS_PER_CLASS * facts.classes, k


# ---------------------------------------------------------------- votes and gradients


def _rows_plan(asked: Asked, roster: Mapping[str, Capabilities], share: float = 1.0) -> Plan:
    """`share` is that of the whole budget, in μ² or ρ."""
    settings, facts = asked.settings, next(iter(roster.values()))
    rows, k = _rows_and_k(settings, facts)
    unit, answer = Unit(settings.unit), RowAnswer(asked.kind.value)
    shards = min(holder.shards for holder in roster.values())
    layout = EnsembleLayout(len(roster) * shards, len(roster))
    spent, beta = settings.epsilon, _paper_beta(settings.epsilon)
    noise = _row_noise(asked, roster, rows, k, layout, share)
    if asked.by_formula:
        # It spends another ε than it says: forecast that one.
        mu = row_mu(noise.strength, layout, unit, answer, asked.mode)
        spent = gaussian_epsilon(mu * math.sqrt(rows), settings.delta)
    # The paper has no votes, but its formula knows a row by its norm and noise alone.
    published = dpsd_theorem1(noise.strength, beta, facts.classes, rows, 1, settings.delta)
    if layout.teachers > 1:
        published = replace(published, reason=f"{published.reason} {_NO_ENSEMBLES}")
    outlook = forecast(spent, settings.delta, layout, unit, answer, asked.mode, facts.classes)
    part = Part(asked.kind, rows, noise, k)
    return Plan((part,), roster, settings.delta, outlook, published)


def _row_noise(
    asked: Asked,
    roster: Mapping[str, Capabilities],
    rows: int,
    k: int,
    layout: EnsembleLayout,
    share: float,
) -> NoisePlan:
    settings, holders = asked.settings, len(roster)
    epsilon, delta, unit = settings.epsilon, settings.delta, Unit(settings.unit)
    answer = RowAnswer(asked.kind.value)
    if asked.by_formula:
        classes = next(iter(roster.values())).classes
        std = published_sigma(epsilon, delta, _paper_beta(epsilon), classes, rows)
        return NoisePlan(asked.mode, std, holders)
    if asked.mode is NoiseMode.SECAGG:
        failures = _failures(asked.dropouts, roster)
        bound = mean_rows_bound(layout.shards, answer, k)
        rho = share * zcdp_rho(epsilon, delta)
        std = masked_noise_std(rho, rows, bound, unit, holders, sum(failures))
        return NoisePlan(asked.mode, std, holders, *failures)
    std = noise_std(epsilon, delta, rows, layout, unit, answer, asked.mode)
    # μ goes with 1/std, and it is μ² that is shared out.
    return NoisePlan(asked.mode, std / math.sqrt(share), holders)


def _paper_beta(epsilon: float) -> float:
    """β as the paper sets it; it changes its formula only, since noise and rows both scale by β."""
    return 1e-3 if epsilon <= 1 else 5e-3


def _failures(dropouts: int | None, roster: Mapping[str, Capabilities]) -> tuple[int, int]:
    """How many holders may be missing from a masked sum, and how many may side with the server.

    Every holder's own policy is kept: as many colluders as the most careful one counts on, and no
    more drop-outs than the strictest one bears.

    Raises:
        ConfigError: more drop-outs are asked for than that, or too many for so few holders.
    """
    colluders = max(facts.colluders for facts in roster.values())
    strictest = min(roster.values(), key=lambda facts: facts.dropouts)
    most = min(strictest.dropouts, max(0, (len(roster) - colluders - 1) // 2))
    wanted = most if dropouts is None else dropouts
    if wanted > strictest.dropouts:
        raise ConfigError(
            f"Expected dropouts={wanted} <= {strictest.dropouts}, the limit of holder "
            f"{strictest.name}; ask for fewer."
        )
    expect_tolerable(len(roster), wanted, colluders)
    return wanted, colluders


# ---------------------------------------------------------------- labels


def _label_plan(asked: Asked, roster: Mapping[str, Capabilities]) -> Plan:
    settings = asked.settings
    rows, k = _rows_and_k(settings, next(iter(roster.values())))
    if asked.mode is not NoiseMode.LOCAL:
        raise ConfigError(
            f"Expected noise=local with privacy=label, got {asked.mode}: a label is private "
            "by itself."
        )
    if settings.unit == Unit.HOLDER and any(facts.shards > 1 for facts in roster.values()):
        raise ConfigError(
            "Expected one teacher per holder with privacy=label and unit=holder: a holder moves "
            "all of its votes; set shards=1, or privacy=vote."
        )
    # The ledger admits every label by its filter, so that is what the noise is calibrated to.
    target = settings.epsilon, settings.delta, rows
    shards = {facts.shards for facts in roster.values()}
    if asked.by_formula:
        strength = settings.epsilon
    elif shards == {1}:
        strength = label_epsilon0(*target, k, epsilon_filter)
    else:
        # Votes of an ensemble; with one voter they cost no more than that.
        strength = vote_eta(*target, epsilon_filter)
    nats = label_nats(strength, min(shards))
    part = Part(Kind.LABEL, rows, NoisePlan(NoiseMode.LOCAL, strength, len(roster)), k)
    outlook = label_forecast(nats, k, rows * len(roster))
    return Plan((part,), roster, settings.delta, outlook, dpsd_theorem2(strength))


# ---------------------------------------------------------------- moments


def _moments_plan(asked: Asked, roster: Mapping[str, Capabilities], share: float = 1.0) -> Plan:
    """Two questions share the budget: which axes matter, then sums by class on these."""
    settings, facts = asked.settings, next(iter(roster.values()))
    if settings.unit != Unit.RECORD:
        raise ConfigError(
            f"Expected unit=record with moments, got {settings.unit}: a sum over records hides no "
            "whole holder."
        )
    # Rows have an entry for the constant as well.
    width = row_width(facts.channels, facts.size)
    shares = ((None, _FIRST_SHARE * share), (facts.classes, (1 - _FIRST_SHARE) * share))
    parts = tuple(
        Part(Kind.MOMENTS, 1, _moments_noise(asked, roster, each, width, classes), width, classes)
        for classes, each in shares
    )
    declared = [holder.records for holder in roster.values()]
    records = sum(declared) if all(declared) else 0
    outlook = moments_forecast(records, facts.classes, width, parts[1].combined_std(len(roster)))
    return Plan(parts, roster, settings.delta, outlook, None)


# ---------------------------------------------------------------- a start, then teachers


def _started_plan(asked: Asked, roster: Mapping[str, Capabilities]) -> Plan:
    """Sums over the records first, then teachers with what is left; they may get nothing."""
    share, why = _teachers_share(asked, roster)
    if share == 0:
        return replace(_moments_plan(asked, roster), words=why)
    if asked.kind is Kind.LABEL:
        raise ConfigError(
            "Expected privacy=vote or privacy=data where teachers are asked after a start: labels "
            "have no noise that a share of the budget could set; or set teachers_share=0."
        )
    last = _rows_plan(asked, roster, share)
    if share == 1:
        return replace(last, words=why)
    first = _moments_plan(asked, roster, 1 - share)
    parts = (*first.parts, *last.parts)
    return Plan(parts, roster, asked.settings.delta, first.forecast, None, why)


def _teachers_share(asked: Asked, roster: Mapping[str, Capabilities]) -> tuple[float, str]:
    """Of the budget, in μ² (under masks ρ); with the reason, in words."""
    said = asked.settings.teachers_share
    without = [n for n, f in roster.items() if f.shards < 1 or asked.kind not in f.kinds]
    if said is not None:
        if said and without:
            raise ConfigError(
                f"Holder {without[0]} gives no {asked.kind} answers; set teachers_share=0, or have "
                "its operator serve teachers."
            )
        return said, f"teachers get {said:.0%} of the budget, as teachers_share says"
    if without or asked.kind is Kind.LABEL:
        why = f"holder {without[0]} has no teachers for it" if without else "labels cannot share it"
        return 0.0, f"the whole budget goes to sums over the records: {why}"
    sums, votes = _moments_plan(asked, roster).forecast, _rows_plan(asked, roster).forecast
    if _RANK[votes.verdict] <= _RANK[sums.verdict]:
        return 0.0, (
            "the whole budget goes to sums over the records, and no teacher is trained: asked "
            f"alone, sums would be {sums.verdict}, teachers {votes.verdict}"
        )
    return _EVEN, (
        f"teachers get {_EVEN:.0%} of the budget: asked alone, sums over the records would be "
        f"{sums.verdict}, teachers {votes.verdict}"
    )


def _moments_noise(
    asked: Asked,
    roster: Mapping[str, Capabilities],
    share: float,
    width: int,
    classes: int | None,
) -> NoisePlan:
    """Noise under which one answer costs its share of the budget under zero-out."""
    settings, holders, bound = asked.settings, len(roster), moments_bound(width, classes)
    if asked.mode is NoiseMode.SECAGG:
        failures = _failures(asked.dropouts, roster)
        rho = share * zcdp_rho(settings.epsilon, settings.delta)
        std = masked_noise_std(rho, 1, bound, Unit.RECORD, holders, sum(failures))
        return NoisePlan(asked.mode, std, holders, *failures)
    mu = math.sqrt(share) * gaussian_mu(settings.epsilon, settings.delta)
    tau = bound.moves[Unit.RECORD][Adjacency.ZERO_OUT] * (1 + ROUNDING) / mu
    per_holder = math.sqrt(holders) if asked.mode is NoiseMode.LOCAL else holders
    return NoisePlan(asked.mode, tau / per_holder, holders)
