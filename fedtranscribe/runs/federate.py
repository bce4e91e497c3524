"""One federated run from settings to result, over any transport."""

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from fedtranscribe.config import FederationSettings
from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.files import read_json, write_atomically
from fedtranscribe.models import pick_device
from fedtranscribe.noise.sources import NoiseSource
from fedtranscribe.privacy.run_ledger import Say
from fedtranscribe.privacy.units import Adjacency, NoiseMode, Unit
from fedtranscribe.questions.capabilities import Capabilities
from fedtranscribe.questions.question import Kind, is_sum
from fedtranscribe.results.allowed import expect_allowed
from fedtranscribe.results.parts import (
    Accuracy,
    AccuracyCurve,
    Answers,
    Federation,
    PublishedFigure,
    StatedGuarantee,
)
from fedtranscribe.results.progress import Report, ignore
from fedtranscribe.results.result import Result
from fedtranscribe.results.run_directory import RunDirectory
from fedtranscribe.rounds.plan import KINDS, Asked, Charged, Plan
from fedtranscribe.rounds.planning import make_plan
from fedtranscribe.rounds.roster import RosterReplies, against_start, enrol, starts
from fedtranscribe.rounds.server import Outcome
from fedtranscribe.rounds.transport import Transport
from fedtranscribe.runs.learning import (
    HeldOut,
    Learned,
    declared_teachers,
    expect_generator,
    finish_generator,
    learn,
    makes_generator,
    mixture_facts,
    needs_network,
    with_student,
)
from fedtranscribe.runs.student_side import build_student_side, public_features, public_images
from fedtranscribe.text import counted

log = logging.getLogger(__name__)

ROSTER = "roster.json"


def federate(
    settings: FederationSettings,
    transport: Transport,
    run: RunDirectory,
    *,
    expected: int,
    test: HeldOut | None,
    ensemble: Callable[[], dict[str, float]] = dict,
    report: Report = ignore,
    noise: NoiseSource | None = None,
) -> Result:
    """Enrol holders, fix the plan, run Algorithm 2, write networks and result.

    Args:
        settings: of the run.
        transport: reaches the holders.
        run: its folder; an interrupted run goes on from its checkpoint, and a finished one gets the
            generator that it lacks.
        expected: how many holders there should be.
        test: what the student is tested on, or None.
        ensemble: accuracies of the holders' teachers, where a simulation may know them.
        report: receives progress.
        noise: the server's own, for `central`; OS entropy unless a test says otherwise.
    """
    against_start(settings)
    if run.finished:
        roster = _stored_roster(run)  # only its generator is missing, and nobody is asked
    else:
        # A resumed run needs the transport to know its holders as well.
        roster = _roster(run, _enrolled(settings, transport.capabilities(), expected))
    plan = _plan(settings, roster, lambda words: log.info("%s", words))
    # Where this machine knows the records, its app has compared them before anybody was asked.
    facts, shapes = plan.facts, needs_network(settings, plan)
    public = public_images(settings, facts.channels, facts.size, None, shapes=shapes)

    def progress(stage: str, done: int, total: int) -> None:
        report({"stage": stage, "done": done, "total": total})

    learned = learn(
        settings,
        settings,
        plan,
        transport,
        run,
        public=public,
        test=test,
        others=ensemble,
        progress=progress,
        report=report,
        noise=noise,
    )
    if run.finished:
        result = Result.read(run.path)
    else:
        private = transport.private and (noise is None or noise.private)
        result = _result(settings, run, plan, learned, test, transport.payload, private=private)
        result.write(run.path)
    if makes_generator(settings, plan):
        names = None if test is None else test.images.class_names
        finish_generator(learned.method, run, progress, names)
    return result


def show_plan(
    settings: FederationSettings,
    capabilities: RosterReplies,
    *,
    expected: int,
    say: Say = lambda _: None,
) -> StatedGuarantee:
    """Say what a federated run would ask and cost; nobody is asked."""
    against_start(settings)
    plan = _plan(settings, _enrolled(settings, capabilities, expected), say)
    say(_asked(settings, plan))
    # What the server would make first is refused here as there.
    shape = plan.facts.channels, plan.facts.size
    public_images(settings, *shape, None, shapes=False)
    student, device = with_student(settings, plan), pick_device(settings.device)
    build_student_side(student, plan.facts.classes, *shape, None, device, fresh=False)
    whole = {name: [part.rows for part in plan.parts] for name in plan.roster}
    cost = _guarantee(settings, plan, whole, private=True)
    say(cost.cost)
    return cost


def _enrolled(
    settings: FederationSettings, capabilities: RosterReplies, expected: int
) -> dict[str, Capabilities]:
    return enrol(capabilities, settings, KINDS[settings.privacy], expected)


def _plan(settings: FederationSettings, roster: Mapping[str, Capabilities], say: Say) -> Plan:
    """The plan for a roster, said line by line and refused where it is hopeless."""
    mode, kind = NoiseMode(settings.noise), KINDS[settings.privacy]
    start, why_not = starts(settings, roster)
    plan = make_plan(Asked(settings, kind, mode, settings.dropouts, start=start), roster)
    expect_generator(settings, plan)
    for words in (why_not, plan.words, plan.forecast.words, f"trust: {plan.trust}"):
        if words:
            say(words)
    plan.refuse_if_hopeless(force=settings.force, insist="Set force=true")
    return plan


def _asked(settings: FederationSettings, plan: Plan) -> str:
    """How often each holder is asked, for what, and under which noise."""
    holders, asked, stds = len(plan.roster), [], []
    sums = [part.combined_std(holders) for part in plan.parts if is_sum(part.kind)]
    rounds = len(sums)
    if sums:
        asked.append(f"{counted(len(sums), 'noisy sum')} over its records")
        stds.append(f"{min(sums):.4g} to {max(sums):.4g} on the sums of all holders")
    if (part := plan.teachers) is not None:
        rounds += math.ceil(part.rows / settings.dpsd.round_rows)
        asked.append(f"{part.rows:,} rows of its teachers (privacy={settings.privacy})")
        if plan.noise_std is not None:
            stds.append(f"{part.combined_std(holders):.4g} on the mean row of all holders")
    noise = f", std {' and '.join(stds)}" if stds else ""
    return (
        f"each of {counted(holders, 'holder')} is asked for {' and '.join(asked)}, in "
        f"{counted(rounds, 'round')}; noise={plan.noise.mode}{noise}"
    )


def _result(
    settings: FederationSettings,
    run: RunDirectory,
    plan: Plan,
    learned: Learned,
    test: HeldOut | None,
    payload: int,
    *,
    private: bool,
) -> Result:
    outcome, curve = learned.outcome, learned.outcome.curve
    return Result(
        method=settings.method,
        run=run.run_id,
        rows=outcome.rows,
        guarantee=_guarantee(settings, plan, outcome.standing.rows, private=private),
        answers=Answers(
            privacy=settings.privacy if plan.teachers else Kind.MOMENTS.value,
            start=Kind.MOMENTS.value if plan.starts else None,
            noise_std=plan.noise_std,
            sums_stds=plan.sums_stds,
            signal=plan.forecast.signal,
            noise=plan.noise.mode.value,
        ),
        federation=_federation(plan, outcome, payload),
        data=settings.data,
        class_names=None if test is None else test.images.class_names,
        public_data=settings.public_data,
        mixture=mixture_facts(plan),
        features=public_features(settings),
        declared_teachers=declared_teachers(plan),
        logit_scale=learned.logit_scale,
        accuracy=learned.accuracy or Accuracy.of({}),
        confusion=learned.confusion,
        findings=learned.findings,
        curve=AccuracyCurve(rows=tuple(curve[0]), accuracy=tuple(curve[1])),
        settings=json.loads(settings.model_dump_json(exclude_none=True)),
    )


def _roster(run: RunDirectory, enrolled: dict[str, Capabilities]) -> dict[str, Capabilities]:
    """The run's roster: fixed by its first start, because the noise was planned for it."""
    path = run.path / ROSTER
    if not path.exists():
        by_name = {name: asdict(facts) for name, facts in enrolled.items()}
        expect_allowed(ROSTER, by_name)
        write_atomically(path, json.dumps(by_name, indent=2).encode())
        return enrolled
    roster = _stored_roster(run)
    for name, facts in roster.items():
        if name in enrolled and _sensitive(enrolled[name]) != _sensitive(facts):
            # With other shards the same noise would cost another ε than was planned and printed.
            raise ConfigError(
                f"Holder {name} has other shards, record ids or classes than when the run began; "
                "put its teachers and records back, or start a new run."
            )
    return roster


def _stored_roster(run: RunDirectory) -> dict[str, Capabilities]:
    path = run.path / ROSTER
    try:
        return {name: _capabilities(facts) for name, facts in read_json(path).items()}
    except (OSError, AttributeError, KeyError, TypeError, ValueError):
        raise StorageError(f"{path} is damaged; start a new run with another out.") from None


def _sensitive(facts: Capabilities) -> tuple[Any, ...]:
    """What sensitivity and shapes rest on; a holder's limits may change."""
    return facts.shards, facts.positional_ids, facts.classes, facts.channels, facts.size


def _capabilities(facts: dict[str, Any]) -> Capabilities:
    kinds = tuple(map(str, facts["kinds"]))
    typed = {
        "kinds": kinds,
        "noise": NoiseMode(facts["noise"]),
        "trainers": tuple(facts["trainers"]),
        "features": tuple(facts["features"]),
    }
    return Capabilities(**{**facts, **typed})


def _guarantee(
    settings: FederationSettings, plan: Plan, rows: Charged, *, private: bool
) -> StatedGuarantee:
    unit, published = Unit(settings.unit), plan.published

    def stated(unit: Unit, adjacency: Adjacency) -> float | None:
        found = plan.guarantee(rows, unit, adjacency)
        return found.epsilon if found else None

    headline = plan.guarantee(rows, unit, Adjacency.ZERO_OUT)
    return StatedGuarantee(
        epsilon=headline.epsilon if headline else None,
        delta=settings.delta,
        unit=unit,
        adjacency=Adjacency.ZERO_OUT,
        accountant=headline.accountant if headline else None,
        sound={adjacency: stated(unit, adjacency) for adjacency in Adjacency},
        units={unit: stated(unit, Adjacency.ZERO_OUT) for unit in Unit},
        published=published and PublishedFigure(epsilon=published.epsilon, reason=published.reason),
        private=private,
    )


def _federation(plan: Plan, outcome: Outcome, payload: int) -> Federation:
    return Federation(
        holders=len(plan.roster),
        shards={name: facts.shards for name, facts in plan.roster.items()},
        answered_rounds=outcome.standing.answers,
        abandoned_rows=outcome.standing.abandoned,
        left=outcome.standing.left,
        stopped=outcome.stopped,
        bytes=payload,
        trust=plan.trust,
    )
