"""How a plan is made: rows and noise, from settings and what holders state."""

import math
from collections.abc import Mapping
from dataclasses import replace

from fedtranscribe.config import StudentSettings
from fedtranscribe.data.imageset import VOTES, expect_single_labels
from fedtranscribe.errors import ConfigError
from fedtranscribe.privacy.accountant import epsilon_filter
from fedtranscribe.privacy.calibrate import (
    EnsembleLayout,
    label_epsilon0,
    mean_sensitivity,
    vote_eta,
)
from fedtranscribe.privacy.closed_forms import gaussian_epsilon
from fedtranscribe.privacy.forecasts import Verdict, forecast, label_forecast
from fedtranscribe.privacy.published import dpsd_theorem1, dpsd_theorem2, published_sigma
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import Adjacency, NoiseMode, RowAnswer, Unit
from fedtranscribe.questions.capabilities import Capabilities
from fedtranscribe.questions.kinds import question_of
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.rows import row_noise
from fedtranscribe.rounds.plan import KINDS, Asked, Part, Plan, label_nats
from fedtranscribe.rounds.sums_planning import sums_noise, sums_plan

__all__ = ["KINDS", "Asked", "make_plan"]

# Rows: enough for the student, few enough for minutes on two cores.
_ROWS_PER_CLASS = 400
# Of μ², for teachers that say more than the sums do.
_EVEN = 0.5
# Of the ε that a plan may state beyond the one that was asked for.
_ROUNDED = 1 + 1e-6
_RANK = {Verdict.HOPELESS: 0, Verdict.POOR: 1, Verdict.FINE: 2}
_NO_ENSEMBLES = (
    "And it knows no ensembles: a record that reaches one of M teachers moves the mean of their "
    "rows by 1/M of what it counts, so that here it may print more than the sound figure."
)


def make_plan(asked: Asked, roster: Mapping[str, Capabilities]) -> Plan:
    """Choose rows and noise for the holders that take part.

    The same settings and roster give the same plan, so that a run can be resumed.

    Raises:
        ConfigError: top-k beyond the classes, labels with noise of somebody else's, a unit that
            the kind cannot protect, more rows than a holder allows per run, or noise that no number
            could carry.
    """
    several = any(facts.multilabel for facts in roster.values())
    if asked.kind is not Kind.MOMENTS and (not asked.start or asked.settings.teachers_share):
        expect_single_labels(several, VOTES)
    questions = _questions(asked, roster)
    if questions:
        asked = replace(asked, left=1 - asked.settings.ask_share)
    make = {Kind.LABEL: _label_plan, Kind.MOMENTS: sums_plan}.get(asked.kind, _rows_plan)
    plan = (_two_part_plan if asked.start else make)(asked, roster)
    if asked.settings.descent_rounds and not plan.starts:
        raise ConfigError(
            f"Expected descent_rounds=0 without sums over the records first, got "
            f"{asked.settings.descent_rounds}; add start=moments, or leave it out."
        )
    if several and asked.settings.balanced:
        raise ConfigError(
            "Expected balanced=false with task=multilabel: each class has its own threshold. "
            "Leave it out."
        )
    if asked.settings.balanced and plan.teachers is not None:
        raise ConfigError(
            "Expected balanced=false where teachers are asked: only sums over records weigh "
            "classes. Leave it out, or ask no teachers."
        )
    plan = replace(plan, parts=(*plan.parts, *questions))
    least = min(roster.values(), key=lambda facts: facts.rows_per_run)
    if plan.rows > least.rows_per_run:
        raise ConfigError(
            f"Expected rows={plan.rows} <= {least.rows_per_run}, the limit of holder "
            f"{least.name} per run; ask for fewer."
        )
    for part in plan.parts:
        for facts in roster.values():
            part.mechanism(facts)  # refuses noise that cannot be added
    if asked.mode is NoiseMode.SECAGG:
        _expect_larger_delta(plan)
    return plan if asked.by_formula else _expect_affordable(plan, asked.settings)


def _questions(asked: Asked, roster: Mapping[str, Capabilities]) -> tuple[Part, ...]:
    """A part for each question of another package; all together have a share of the budget."""
    settings = asked.settings
    if not settings.questions:
        return ()
    several = any(facts.multilabel for facts in roster.values())
    expect_single_labels(several, "ask=…, a question of another package")
    if asked.by_formula or asked.kind is Kind.LABEL:
        raise ConfigError(
            "Expected no ask=… where the noise is the published formula's, or with privacy=label: "
            "it has no share that questions could get."
        )
    parts = []
    for kind in settings.questions:
        question = question_of(kind)
        without = next((name for name, f in roster.items() if kind not in f.kinds), None)
        if without is not None:
            raise ConfigError(
                f"Holder {without} does not allow the question {kind!r}; leave it out of ask=…, "
                "or have its operator add it to the kinds of its policy."
            )
        bound = question.bound(next(iter(roster.values())))
        if Unit(settings.unit) not in bound.moves:
            raise ConfigError(
                f"Expected a unit that the question {kind!r} hides, got {settings.unit}."
            )
        share = settings.ask_share / len(settings.questions)
        parts.append(Part(kind, 1, sums_noise(asked, roster, share, bound), bound.width))
    return tuple(parts)


def _expect_larger_delta(plan: Plan) -> None:
    """Refuse a δ to which what a sparse graph of masks leaves to chance would add."""
    graph = plan.members.graph
    if not graph.negligible(plan.delta, len(plan.roster)):
        raise ConfigError(
            f"Expected a larger delta={plan.delta:g} with masks between {len(plan.roster)} "
            f"holders: {graph.words}, and that must add less than a thousandth to delta."
        )


def _expect_affordable(plan: Plan, settings: StudentSettings) -> Plan:
    """Hold what the whole plan books against the ε that was asked for."""
    # Holders of which the same is known book the same.
    alike = {(facts.shards, facts.positional_ids): name for name, facts in plan.roster.items()}
    rows, unit = [part.rows for part in plan.parts], Unit(settings.unit)
    for name in alike.values():
        stated = plan.guarantee({name: rows}, unit, Adjacency.ZERO_OUT)
        if stated is not None and stated.epsilon > settings.epsilon * _ROUNDED:
            raise ConfigError(
                f"Expected a plan of epsilon={settings.epsilon:g}, but all that holder "
                f"{name} would answer costs {stated.epsilon:.6g} at delta="
                f"{settings.delta:g}; ask with a larger delta."
            )
    return plan


def _rows_and_k(settings: StudentSettings, facts: Capabilities) -> tuple[int, int]:
    k = settings.top_k or facts.classes
    if k > facts.classes:
        raise ConfigError(f"Expected top-k={k} <= {facts.classes} classes; ask for fewer.")
    if k == 1:
        raise ConfigError("Expected top-k=1 >= 2: a set of one class says nothing.")
    return settings.rows or _ROWS_PER_CLASS * facts.classes, k


# ---------------------------------------------------------------- votes and gradients


def _rows_plan(asked: Asked, roster: Mapping[str, Capabilities], share: float = 1.0) -> Plan:
    """`share` is that of the whole budget, in μ² or ρ."""
    settings, facts = asked.settings, next(iter(roster.values()))
    rows, k = _rows_and_k(settings, facts)
    unit, answer = Unit(settings.unit), RowAnswer(asked.kind)
    shards = min(holder.shards for holder in roster.values())
    layout = EnsembleLayout(len(roster) * shards, len(roster))
    spent, beta = settings.epsilon, _paper_beta(settings.epsilon)
    noise = _row_noise(asked, roster, rows, k, layout, share * asked.left)
    if asked.by_formula:
        # It spends another ε than it says: forecast that one.
        mu = mean_sensitivity(layout, unit, answer, asked.mode) / noise.strength
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
    answer = RowAnswer(asked.kind)
    if asked.by_formula:
        classes = next(iter(roster.values())).classes
        std = published_sigma(epsilon, delta, _paper_beta(epsilon), classes, rows)
        return NoisePlan(asked.mode, std, holders)
    failures = asked.failures(roster) if asked.mode is NoiseMode.SECAGG else (0, 0)
    return row_noise(epsilon, delta, rows, k, layout, unit, answer, asked.mode, failures, share)


def _paper_beta(epsilon: float) -> float:
    """β as the paper sets it; it changes its formula only, since noise and rows both scale by β."""
    return 1e-3 if epsilon <= 1 else 5e-3


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


# ---------------------------------------------------------------- a start, then teachers


def _two_part_plan(asked: Asked, roster: Mapping[str, Capabilities]) -> Plan:
    """Sums over the records first, then teachers with what is left; they may get nothing."""
    share, why = _teachers_share(asked, roster)
    if share == 0:
        plan = sums_plan(asked, roster)
        return replace(plan, words="; ".join(filter(None, (why, plan.words))))
    if asked.kind is Kind.LABEL:
        raise ConfigError(
            "Expected privacy=vote or privacy=data where teachers are asked after a start: labels "
            "have no noise that a share of the budget could set; or set teachers_share=0."
        )
    last = _rows_plan(asked, roster, share)
    if share == 1:
        return replace(last, words=why)
    first = sums_plan(asked, roster, 1 - share)
    parts, words = (*first.parts, *last.parts), "; ".join(filter(None, (why, first.words)))
    return replace(first, parts=parts, words=words)


def _teachers_share(asked: Asked, roster: Mapping[str, Capabilities]) -> tuple[float, str]:
    """Of the budget, in μ² (under masks ρ); with the reason, in words."""
    share = asked.settings.teachers_share
    if any(facts.multilabel for facts in roster.values()):
        return 0.0, "the whole budget goes to sums over the records: images have several labels"
    without = [n for n, f in roster.items() if f.shards < 1 or asked.kind not in f.kinds]
    if share is not None:
        if share and without:
            raise ConfigError(
                f"Holder {without[0]} gives no {asked.kind} answers; set teachers_share=0, or have "
                "its operator serve teachers."
            )
        return share, f"teachers get {share:.0%} of the budget, as teachers_share sets it"
    if without or asked.kind is Kind.LABEL:
        why = f"holder {without[0]} has no teachers for it" if without else "labels cannot share it"
        return 0.0, f"the whole budget goes to sums over the records: {why}"
    sums, votes = sums_plan(asked, roster).forecast, _rows_plan(asked, roster).forecast
    if _RANK[votes.verdict] <= _RANK[sums.verdict]:
        return 0.0, (
            "the whole budget goes to sums over the records, and no teacher is trained: asked "
            f"alone, sums would be {sums.verdict}, teachers {votes.verdict}"
        )
    return _EVEN, (
        f"teachers get {_EVEN:.0%} of the budget: asked alone, sums over the records would be "
        f"{sums.verdict}, teachers {votes.verdict}"
    )
