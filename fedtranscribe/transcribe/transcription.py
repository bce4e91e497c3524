"""One transcription from settings to result.

Order: data and the public part → plan and forecast → run folder → ledger → two moments, or
teachers and rounds → result. Every mistake that can be found before the ledger is touched is found
before.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.data import ImageSet
from fedtranscribe.errors import FedtranscribeError, HopelessPlanError
from fedtranscribe.holder import Holder
from fedtranscribe.methods.dpsd import DPSD
from fedtranscribe.moments_holder import MomentsHolder
from fedtranscribe.privacy.accountant import guarantee, sound_table
from fedtranscribe.privacy.budget import DEFAULT_LIMIT, Budget
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import PrivacyPlan, Release
from fedtranscribe.privacy.units import Adjacency, Guarantee, Unit
from fedtranscribe.result import Result, Shown, with_private_scores
from fedtranscribe.result_parts import (
    Accuracy,
    AccuracyCurve,
    Answers,
    CountedGenerator,
    PublishedFigure,
    StatedGuarantee,
)
from fedtranscribe.teachers import Teachers, train_teachers
from fedtranscribe.tracking import Tracker
from fedtranscribe.transcribe.booking import Say, find_ledger, ledger_facts, open_for_run
from fedtranscribe.transcribe.moments import MomentsPlan, learn_from_moments
from fedtranscribe.transcribe.plan import Plan
from fedtranscribe.transcribe.preparation import Prepared, make_manifest
from fedtranscribe.transcribe.report import draw_curve, draw_images, figures_available
from fedtranscribe.transcribe.rundir import (
    RunDirectory,
    check_writable,
)
from fedtranscribe.transcribe.session import (
    Curve,
    Progress,
    StudentSide,
    accuracy,
    build_student_side,
    ensemble_accuracy,
    predict,
    run_rounds,
    sample_images,
    save_networks,
    silent,
)

_GRID = 50


def transcribe(
    prepared: Prepared,
    out: Path,
    *,
    resume: bool = False,
    force: bool = False,
    progress: Progress = silent,
    say: Say = lambda _: None,
) -> Shown:
    """Run a prepared transcription, or go on with an interrupted one.

    Args:
        prepared: from `prepare`.
        out: the run's folder.
        resume: go on with the run in `out`.
        force: run even though the forecast is hopeless.
        progress: shows long work.
        say: receives lines for the user.

    Returns:
        The result, as written to `metrics.json`, with all accuracies.

    Raises:
        HopelessPlanError: nothing can be learned, and `force` was not given.
        StorageError, LedgerError, PrivacyError: see their classes.
    """
    plan = prepared.plan
    for line in plan.words:
        say(line)
    say(plan.forecast.words)
    if plan.forecast.hopeless and not force:
        raise HopelessPlanError(f"{plan.forecast.words} Add --force to spend the budget anyway.")
    if not figures_available():
        say("matplotlib is not installed: no figures; pip install 'fedtranscribe[plots]'")
    check_writable(out)
    starting = RunDirectory.resume if resume else RunDirectory.create
    run = starting(out, prepared.settings)
    if run.finished:
        say("this run was complete already; nothing was spent")
        return with_private_scores(run.path, Result.read(run.path))
    _say_cost(prepared, say)
    try:
        ledger = _open_ledger(prepared, run, say)
    except FedtranscribeError:
        if not resume:
            run.abandon()
        raise
    with ledger:
        if isinstance(plan, MomentsPlan):
            return _run_on_moments(prepared, plan, run, ledger, progress)
        return _run_on_answers(prepared, plan, run, ledger, progress)


# ---------------------------------------------------------------- running


def _say_cost(prepared: Prepared, say: Say) -> None:
    """Both figures, before anything is spent."""
    published, stated = prepared.plan.published, _stated(prepared, prepared.releases)
    if prepared.before:
        own = _guaranteed(prepared.settings, prepared.releases)
        say(f"its answers cost ε = {own.epsilon:.4g}, and {_why_counted(prepared)}")
    formula = "no published formula counts moments"
    if published is not None:
        formula = f"the published formula prints {published.epsilon:.4g}, which is no guarantee"
    say(
        f"this run costs ε = {stated.epsilon:.4g} ({stated.unit}, {stated.adjacency}, "
        f"δ = {stated.delta:g}, {stated.accountant}); {formula}"
    )


def _why_counted(prepared: Prepared) -> str:
    """Why the cost of the generator is part of the student's."""
    assert prepared.generator is not None
    seen, these = prepared.generator.data_id, prepared.split.train.data_id
    if seen is None:
        return "the generator's run does not say which data it saw: its cost is counted as well"
    if seen == these:
        return "the generator was trained on these data"
    return f"the generator was trained on {seen!r}, which shares records with {these!r}"


def _stated(prepared: Prepared, releases: tuple[Release, ...]) -> Guarantee:
    """The headline: what the student has cost, with the generator that it learned from."""
    return _guaranteed(prepared.settings, (*prepared.before, *releases))


def _guaranteed(settings: TranscribeSettings, releases: tuple[Release, ...]) -> Guarantee:
    """What releases cost in the run's unit, under zero-out."""
    unit = Unit(settings.unit)
    return guarantee(PrivacyPlan(releases, unit, Adjacency.ZERO_OUT, settings.delta))


def _teachers(prepared: Prepared, plan: Plan, run: RunDirectory, progress: Progress) -> Teachers:
    folder = prepared.teacher_folder
    if folder is None:
        folder, train = run.private / "teachers", prepared.split.train
        manifest = make_manifest(prepared.settings, train, plan.shards, plan.mode)

        def show(done: int, total: int) -> None:
            progress("teachers on disjoint shards", done, total)

        train_teachers(train, manifest, folder, device=prepared.device, progress=show)
    return Teachers(folder, prepared.device)


def _open_ledger(prepared: Prepared, run: RunDirectory, say: Say) -> Ledger:
    settings = prepared.settings
    place = find_ledger(prepared.split.train, settings.data or "", settings.ledger)
    usual = Budget(DEFAULT_LIMIT, settings.delta, Unit(settings.unit), Adjacency.ZERO_OUT)
    return open_for_run(place, run.run_id, settings.budget, usual, prepared.releases, say)


def _run_on_moments(
    prepared: Prepared, plan: MomentsPlan, run: RunDirectory, ledger: Ledger, progress: Progress
) -> Shown:
    settings, train = prepared.settings, prepared.split.train
    side = _student_side(prepared, prepared.public, progress)
    holder = MomentsHolder(train, ledger, run.run_id, device=prepared.device)
    track = Tracker(run.path, settings)

    def report(answers: int) -> None:
        so_far = _stated(prepared, prepared.releases[:answers]).epsilon
        track({"stage": "moments", "done": answers, "total": 2, "epsilon": so_far})

    learn_from_moments(side, plan, holder, run, settings, progress, report)
    run.write_events([release.to_json() for release in ledger.releases(run.run_id)])
    run.write_scores({"student": _accuracy(prepared, side)})
    return _finish(prepared, run, holder, side, Curve())


def _run_on_answers(
    prepared: Prepared, plan: Plan, run: RunDirectory, ledger: Ledger, progress: Progress
) -> Shown:
    settings, test = prepared.settings, prepared.split.test
    positional = prepared.split.train.positional
    teachers = _teachers(prepared, plan, run, progress)
    holder = Holder(teachers, plan.mechanism, ledger, run.run_id, positional_ids=positional)
    stored = run.load_checkpoint()
    # What a checkpoint holds has been pre-trained already.
    side = _student_side(prepared, None if stored else prepared.public, progress)
    if stored is None:
        run.write_scores({"public_set_alone": _accuracy(prepared, side)})
    method = DPSD(
        side.student,
        side.generator,
        kind=plan.kind,
        sharpness=plan.sharpness,
        settings=settings.dpsd.model_copy(update={"rows": plan.rows, "top_k": settings.top_k}),
        rng=side.rng,
        run=run.run_id,
        public=prepared.public.images if prepared.public is not None else None,
    )
    track = Tracker(run.path, settings)

    def report(line: Mapping[str, Any]) -> None:
        so_far = (holder.release(line["done"]),)
        track({**line, "epsilon": _stated(prepared, so_far).epsilon})

    curve = run_rounds(
        method,
        holder,
        run,
        stored,
        (lambda: _accuracy(prepared, side)) if prepared.declared_public else None,
        progress,
        report,
        before=prepared.before,
    )
    scores = run.read_scores() | {"student": _accuracy(prepared, side)}
    if prepared.declared_public:
        scores |= ensemble_accuracy([teachers], test.images, test.labels)
    run.write_scores(scores)
    return _finish(prepared, run, holder, side, curve)


def _student_side(prepared: Prepared, public: ImageSet | None, progress: Progress) -> StudentSide:
    facts, settings = prepared.facts, prepared.settings
    shape = facts.classes, facts.channels, facts.size
    return build_student_side(settings, *shape, public, prepared.device, progress)


def _accuracy(prepared: Prepared, side: StudentSide) -> float:
    test = prepared.split.test
    return accuracy(side.student, test.images, test.labels)


def _finish(
    prepared: Prepared,
    run: RunDirectory,
    holder: Holder | MomentsHolder,
    side: StudentSide,
    curve: Curve,
) -> Shown:
    """Write networks, figures and result."""
    save_networks(run, side)
    told = Accuracy.of(run.read_scores()) if prepared.declared_public else None
    _figures(run, side, curve, {} if told is None else told.to_json())
    result = _result(prepared, run, holder, curve, told)
    result.write(run.path)
    return with_private_scores(run.path, result)


def _result(
    prepared: Prepared,
    run: RunDirectory,
    holder: Holder | MomentsHolder,
    curve: Curve,
    accuracy: Accuracy | None,
) -> Result:
    settings, plan, releases = prepared.settings, prepared.plan, prepared.releases
    names = prepared.split.train.class_names
    return Result(
        method="moments" if settings.source == "moments" else "dpsd",
        run=run.run_id,
        rows=sum(release.rows for release in releases),
        guarantee=_guarantee(prepared, holder.noise.private),
        answers=Answers(
            privacy="moments" if settings.source == "moments" else settings.privacy,
            noise_std=plan.noise_std,
            signal=plan.forecast.signal,
            teachers=plan.shards,
        ),
        ledger=ledger_facts(holder.ledger, settings.delta, Unit(settings.unit), Adjacency.ZERO_OUT),
        data=settings.data,
        class_names=names,
        public_data=settings.public_data if prepared.generator is None else None,
        generator=_generator(prepared),
        accuracy=accuracy,
        accuracy_on=(
            "held-out images of a published benchmark, declared public"
            if prepared.declared_public
            else "the holder's own held-out records: NOT private, do not release"
        ),
        curve=AccuracyCurve(rows=tuple(curve.rows), accuracy=tuple(curve.accuracy)),
        settings=json.loads(settings.model_dump_json(exclude_none=True)),
    )


def _guarantee(prepared: Prepared, private: bool) -> StatedGuarantee:
    """What the student cost, with the generator that it learned from."""
    stated, published = _stated(prepared, prepared.releases), prepared.plan.published
    spent = [*prepared.before, *prepared.releases]
    return StatedGuarantee(
        epsilon=stated.epsilon,
        delta=stated.delta,
        unit=stated.unit,
        adjacency=stated.adjacency,
        accountant=stated.accountant,
        sound=dict(sound_table(spent, stated.unit, stated.delta)),
        published=published and PublishedFigure(epsilon=published.epsilon, reason=published.reason),
        private=private,
    )


def _generator(prepared: Prepared) -> CountedGenerator | None:
    if prepared.generator is None:
        return None
    own = _guaranteed(prepared.settings, prepared.releases)
    return CountedGenerator(
        run=prepared.generator.run,
        data_id=prepared.generator.data_id,
        counted=bool(prepared.before),
        epsilon_of_answers=own.epsilon,
    )


def _figures(run: RunDirectory, side: StudentSide, curve: Curve, scores: dict[str, float]) -> None:
    if not figures_available():
        return
    images = sample_images(side.generator, _GRID, seed=0)
    labels = predict(side.student, images)
    draw_images(images, labels, run.path / "images.png")
    if curve.rows:
        lines = {name.replace("_", " "): v for name, v in scores.items() if name != "student"}
        draw_curve(curve.rows, curve.accuracy, lines, run.path / "accuracy.png")
