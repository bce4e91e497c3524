"""One federated run from settings to result, over any transport."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fedtranscribe.allowed import expect_allowed
from fedtranscribe.config import FederationSettings
from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.exchange import AnswerKind
from fedtranscribe.federation.capabilities import Capabilities
from fedtranscribe.federation.plan import FederatedPlan, make_federated_plan
from fedtranscribe.federation.roster import enrol
from fedtranscribe.federation.server import Outcome, Server
from fedtranscribe.federation.transport import Transport
from fedtranscribe.files import write_atomically
from fedtranscribe.mechanisms import NoiseSource
from fedtranscribe.methods.dpsd import DPSD
from fedtranscribe.privacy.calibrate import NoiseMode
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.reading import read_json
from fedtranscribe.result import Result
from fedtranscribe.result_parts import (
    Accuracy,
    AccuracyCurve,
    Answers,
    Federation,
    PublishedFigure,
    StatedGuarantee,
)
from fedtranscribe.tracking import Report, ignore
from fedtranscribe.transcribe.report import draw_curve, draw_images, figures_available
from fedtranscribe.transcribe.rundir import RunDirectory
from fedtranscribe.transcribe.session import (
    accuracy,
    build_student_side,
    pick_device,
    predict,
    public_images,
    sample_images,
    save_networks,
)

_GRID = 50


def federate(
    settings: FederationSettings,
    transport: Transport,
    run: RunDirectory,
    *,
    expected: int,
    test: ImageSet | None,
    declared_public: bool = True,
    ensemble: Callable[[], dict[str, float]] = dict,
    report: Report = ignore,
    noise: NoiseSource | None = None,
) -> Result:
    """Enrol holders, fix the plan, run Algorithm 2, write networks and result.

    Args:
        settings: of the run.
        transport: reaches the holders.
        run: its folder; an interrupted run goes on from its checkpoint.
        expected: how many holders there should be.
        test: held-out images, or None.
        declared_public: whether they belong to a published benchmark; accuracy on anybody's own
            records is measured once, at the end, and stays under `private/`.
        ensemble: accuracies of the holders' teachers, where a simulation may know them.
        report: receives progress.
        noise: the server's own, for `central`; OS entropy unless a test says otherwise.

    Returns:
        The result, as written to `metrics.json`.

    Raises:
        QuorumError, HopelessPlanError, ConfigError: before any holder has spent anything.
        QuorumError: in a round; the run can be resumed.
    """
    # A resumed run needs the transport to know its holders as well.
    roster = _roster(run, enrol(transport, settings, expected))
    plan = make_federated_plan(settings, roster)
    plan.refuse_if_hopeless(force=settings.force)
    stored, device = run.load_checkpoint(), pick_device(settings.device)
    facts = next(iter(roster.values()))
    # Where this machine knows the records, its app has compared them before anybody was asked.
    public = public_images(settings, facts.channels, facts.size, None)
    side = build_student_side(
        settings,
        facts.classes,
        facts.channels,
        facts.size,
        # What a checkpoint holds has been pre-trained already.
        None if stored else public,
        device,
        lambda stage, done, total: report({"stage": stage, "done": done, "total": total}),
    )

    def evaluate() -> float:
        assert test is not None
        return accuracy(side.student, test.images, test.labels)

    scores = run.read_scores()
    told = test is not None and declared_public
    if test is not None and stored is None:
        scores = {"public_set_alone": evaluate()}
        run.write_scores(scores)
    method = DPSD(
        side.student,
        side.generator,
        kind=plan.kind,
        sharpness=plan.sharpness(len(roster)),
        settings=settings.dpsd.model_copy(update={"rows": plan.rows, "top_k": settings.top_k}),
        rng=side.rng,
        run=run.run_id,
        public=public.images if public is not None else None,
    )
    server = Server(
        method,
        plan,
        transport,
        settings,
        run,
        evaluate=evaluate if told else None,
        report=report,
        noise=noise,
    )
    outcome = server.serve(stored)
    if test is not None:
        scores = ensemble() | scores | {"student": evaluate()}
        run.write_scores(scores)
    shown = Accuracy.of(scores if told else {})
    save_networks(run, side)
    if figures_available():
        images = sample_images(side.generator, _GRID, seed=0)
        draw_images(images, predict(side.student, images), run.path / "images.png")
        if told and outcome.curve[0]:
            lines = {k.replace("_", " "): v for k, v in shown.to_json().items() if k != "student"}
            draw_curve(*outcome.curve, lines, run.path / "accuracy.png")
    private = transport.private and (noise is None or noise.private)
    result = Result(
        method=settings.method,
        run=run.run_id,
        rows=outcome.rows,
        guarantee=_guarantee(settings, plan, outcome, private),
        answers=Answers(
            privacy=settings.privacy,
            noise_std=plan.noise.strength if plan.kind is not AnswerKind.LABEL else None,
            signal=plan.forecast.signal,
            noise=plan.noise.mode.value,
        ),
        federation=_federation(plan, outcome, transport.payload),
        data=settings.data,
        class_names=None if test is None else test.class_names,
        public_data=settings.public_data,
        accuracy=shown,
        curve=AccuracyCurve(rows=tuple(outcome.curve[0]), accuracy=tuple(outcome.curve[1])),
        settings=json.loads(settings.model_dump_json(exclude_none=True)),
    )
    result.write(run.path)
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
    kinds = tuple(AnswerKind(kind) for kind in facts["kinds"])
    typed = {
        "kinds": kinds,
        "noise": NoiseMode(facts["noise"]),
        "trainers": tuple(facts["trainers"]),
    }
    return Capabilities(**{**facts, **typed})


def _guarantee(
    settings: FederationSettings, plan: FederatedPlan, outcome: Outcome, private: bool
) -> StatedGuarantee:
    rows, unit, published = outcome.standing.rows, Unit(settings.unit), plan.published

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
        published=PublishedFigure(epsilon=published.epsilon, reason=published.reason),
        private=private,
    )


def _federation(plan: FederatedPlan, outcome: Outcome, payload: int) -> Federation:
    return Federation(
        holders=len(plan.roster),
        shards={name: facts.shards for name, facts in plan.roster.items()},
        answered_rounds=outcome.standing.answers,
        left=outcome.standing.left,
        stopped=outcome.stopped,
        bytes=payload,
        trust=plan.trust,
    )
