"""One federated run from settings to result, over any transport."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fedtranscribe.allowed import expect_allowed
from fedtranscribe.capabilities import Capabilities
from fedtranscribe.config import FederationSettings
from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.files import write_atomically
from fedtranscribe.mechanisms import NoiseSource
from fedtranscribe.privacy.calibrate import NoiseMode
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.query import Kind
from fedtranscribe.reading import read_json
from fedtranscribe.rounds.plan import Plan
from fedtranscribe.rounds.planning import KINDS, Asked, make_plan
from fedtranscribe.rounds.roster import enrol
from fedtranscribe.rounds.transport import Transport
from fedtranscribe.runs.learning import Learned, HeldOut, learn
from fedtranscribe.tracking import Report, ignore
from fedtranscribe.transcribe.rundir import RunDirectory
from fedtranscribe.transcribe.session import public_images


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
) -> dict[str, Any]:
    """Enrol holders, fix the plan, run Algorithm 2, write networks and result.

    Args:
        settings: of the run.
        transport: reaches the holders.
        run: its folder; an interrupted run goes on from its checkpoint.
        expected: how many holders there should be.
        test: what the student is tested on, or None.
        ensemble: accuracies of the holders' teachers, where a simulation may know them.
        report: receives progress.
        noise: the server's own, for `central`; OS entropy unless a test says otherwise.

    Returns:
        The result, as written to `metrics.json`.

    Raises:
        QuorumError, HopelessPlanError, ConfigError: before any holder has spent anything.
        QuorumError: in a round; the run can be resumed.
    """
    mode, kind = NoiseMode(settings.noise), KINDS[settings.privacy]
    # A resumed run needs the transport to know its holders as well.
    roster = _roster(run, enrol(transport, settings, kind, expected))
    plan = make_plan(Asked(settings, kind, mode, settings.dropouts), roster)
    plan.refuse_if_hopeless(force=settings.force, insist="Set force=true")
    # Where this machine knows the records, its app has compared them before anybody was asked.
    public = public_images(settings, plan.facts.channels, plan.facts.size, None)
    learned = learn(
        settings,
        settings,
        plan,
        transport,
        run,
        public=public,
        test=test,
        others=ensemble,
        progress=lambda stage, done, total: report({"stage": stage, "done": done, "total": total}),
        report=report,
        noise=noise,
    )
    private = transport.private and (noise is None or noise.private)
    result = _result(settings, plan, learned, transport.payload, run, private)
    names = None if test is None else test.images.class_names
    result["class_names"] = names and list(names)
    run.write_metrics(result)
    return result


def _roster(run: RunDirectory, enrolled: dict[str, Capabilities]) -> dict[str, Capabilities]:
    """The run's roster: fixed by its first start, because the noise was planned for it."""
    path = run.path / "roster.json"
    if not path.exists():
        told = {name: asdict(facts) for name, facts in enrolled.items()}
        expect_allowed("roster.json", told)
        write_atomically(path, json.dumps(told, indent=2).encode())
        return enrolled
    try:
        roster = {name: _capabilities(facts) for name, facts in read_json(path).items()}
    except (OSError, AttributeError, KeyError, TypeError, ValueError):
        raise StorageError(f"{path} is damaged; start a new run with another out.") from None
    for name, facts in roster.items():
        if name in enrolled and _sensitive(enrolled[name]) != _sensitive(facts):
            # With other shards the same noise would cost another ε than was planned and printed.
            raise ConfigError(
                f"Holder {name} has other shards, record ids or classes than when the run began; "
                "put its teachers back, or start a new run."
            )
    return roster


def _sensitive(facts: Capabilities) -> tuple[Any, ...]:
    """What sensitivity and shapes rest on; a holder's limits may change."""
    return facts.shards, facts.positional_ids, facts.classes, facts.channels, facts.size


def _capabilities(facts: dict[str, Any]) -> Capabilities:
    kinds = tuple(Kind(kind) for kind in facts["kinds"])
    typed = {
        "kinds": kinds,
        "noise": NoiseMode(facts["noise"]),
        "trainers": tuple(facts["trainers"]),
    }
    return Capabilities(**{**facts, **typed})


def _result(
    settings: FederationSettings,
    plan: Plan,
    learned: Learned,
    payload: int,
    run: RunDirectory,
    private: bool,
) -> dict[str, Any]:
    outcome, unit = learned.outcome, Unit(settings.unit)
    standing = outcome.standing

    def stated(unit: Unit, adjacency: Adjacency) -> float | None:
        found = plan.guarantee(standing.rows, unit, adjacency)
        return found.epsilon if found else None

    headline = plan.guarantee(standing.rows, unit, Adjacency.ZERO_OUT)
    return {
        "method": settings.method,
        "epsilon": headline.epsilon if headline else None,
        "delta": settings.delta,
        "unit": unit.value,
        "adjacency": Adjacency.ZERO_OUT.value,
        "accountant": headline.accountant if headline else None,
        "noise_std": plan.noise_std,
        "signal": plan.forecast.signal,
        "sound": {a.value: stated(unit, a) for a in Adjacency},
        "units": {u.value: stated(u, Adjacency.ZERO_OUT) for u in Unit},
        "published": plan.published and {
            "epsilon": plan.published.epsilon,
            "reason": plan.published.reason,
        },
        "private": private,
        "noise": plan.noise.mode.value,
        "trust": plan.trust,
        "privacy": settings.privacy,
        "rows": outcome.rows,
        "holders": len(plan.roster),
        "shards": {name: facts.shards for name, facts in plan.roster.items()},
        "answered_rounds": standing.answers,
        "left": standing.left,
        "stopped": outcome.stopped,
        "bytes": payload,
        "run": run.run_id,
        "data": settings.data,
        "public_data": settings.public_data,
        "accuracy": learned.scores or {},
        "curve": {"rows": outcome.curve[0], "accuracy": outcome.curve[1]},
        "settings": json.loads(settings.model_dump_json(exclude_none=True)),
    }
