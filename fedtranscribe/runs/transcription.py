"""One transcription from settings to result.

Order: data and the public part → plan and forecast → run folder → ledger → two moments, or
teachers and rounds → student and result → generator. Every mistake that can be found before the
ledger is touched is found before.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from joblib import cpu_count

from fedtranscribe.config import RoundSettings, TranscribeSettings
from fedtranscribe.data.registry import ledger_of
from fedtranscribe.errors import FedtranscribeError
from fedtranscribe.holder.answering import Holder
from fedtranscribe.models.ensemble import Ensemble
from fedtranscribe.models.teacher_training import train_teachers
from fedtranscribe.models.teachers import ensemble_accuracy
from fedtranscribe.privacy.accountant import guarantee, sound_table
from fedtranscribe.privacy.budget import DEFAULT_LIMIT, POSITION, Budget
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.release_plan import MechanismRelease, PrivacyPlan
from fedtranscribe.privacy.run_ledger import Say, open_for_run
from fedtranscribe.privacy.units import Adjacency, Guarantee, Unit
from fedtranscribe.questions.kinds import of_records, of_teachers
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.statistic import Statistic
from fedtranscribe.results.figures import figures_available
from fedtranscribe.results.parts import (
    AccuracyCurve,
    Answers,
    CountedGenerator,
    LedgerFacts,
    PublishedFigure,
    StatedGuarantee,
)
from fedtranscribe.results.progress import Progress, Tracker, silent
from fedtranscribe.results.result import Result, ScoredResult, with_private_scores
from fedtranscribe.results.run_directory import STUDENT, RunDirectory, check_writable
from fedtranscribe.runs.learning import (
    HeldOut,
    Learned,
    declared_teachers,
    finish_generator,
    learn,
    makes_generator,
    mixture_facts,
)
from fedtranscribe.runs.preparation import OWN, Prepared, make_manifest, words_of_a_long_sum
from fedtranscribe.runs.student_side import public_backbones, public_features
from fedtranscribe.runs.transports import OwnHolder


def transcribe(
    prepared: Prepared,
    out: Path,
    *,
    resume: bool = False,
    force: bool = False,
    progress: Progress = silent,
    say: Say = lambda _: None,
) -> ScoredResult:
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
    _say_plan(prepared, say, force=force)
    if not figures_available():
        say("matplotlib is not installed: no figures; pip install 'fedtranscribe[plots]'")
    check_writable(out)
    starting = RunDirectory.resume if resume else RunDirectory.create
    run = starting(out, prepared.settings)
    if prepared.digest is not None:
        run.bind_records(prepared.digest)
    wanted = makes_generator(prepared.settings, prepared.plan)
    if run.finished and not run.lacks_generator(wanted=wanted):
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
        return _run(prepared, run, ledger, progress, say)


def show_plan(
    prepared: Prepared, *, force: bool = False, say: Say = lambda _: None
) -> StatedGuarantee:
    """Say what a prepared transcription would ask and cost; nothing is spent or written.

    Args:
        prepared: from `prepare`.
        force: as for `transcribe`.
        say: receives lines for the user.

    Returns:
        What the run would cost, as its result states it.

    Raises:
        HopelessPlanError: nothing can be learned, and `force` was not given.
    """
    _say_plan(prepared, say, force=force)
    return _say_cost(prepared, say)


# ---------------------------------------------------------------- running


def _say_plan(prepared: Prepared, say: Say, *, force: bool) -> None:
    plan = prepared.plan
    for line in (*prepared.split.words, *prepared.words, *words_of_a_long_sum(prepared)):
        say(line)
    say(plan.forecast.words)
    plan.refuse_if_hopeless(force=force, insist="Add --force")


def _say_cost(prepared: Prepared, say: Say) -> StatedGuarantee:
    """Both figures, before anything is spent."""
    if prepared.before:
        own = _guaranteed(prepared.settings, prepared.releases)
        say(f"its answers cost ε = {own.epsilon:.4g}, and {_why_counted(prepared)}")
    stated = _guarantee(prepared, private=True)
    say(stated.cost)
    return stated


def _why_counted(prepared: Prepared) -> str:
    """Why the cost of the generator is part of the student's."""
    assert prepared.generator is not None
    seen, these = prepared.generator.data_id, prepared.split.train.data_id
    if seen is None:
        return "the generator's run does not say which data it saw: its cost is counted as well"
    if seen == these:
        return "the generator was trained on these data"
    return f"the generator was trained on {seen!r}, which shares records with {these!r}"


def _guaranteed(settings: TranscribeSettings, releases: tuple[MechanismRelease, ...]) -> Guarantee:
    """What releases cost in the run's unit, under zero-out."""
    unit = Unit(settings.unit)
    return guarantee(PrivacyPlan(releases, unit, Adjacency.ZERO_OUT, settings.delta))


def _open_ledger(prepared: Prepared, run: RunDirectory, say: Say) -> Ledger:
    settings = prepared.settings
    place = ledger_of(prepared.split.train, settings.data or "", settings.ledger)
    usual = Budget(DEFAULT_LIMIT, settings.delta, Unit(settings.unit), Adjacency.ZERO_OUT)
    positional = prepared.plan.facts.positional_ids
    ids = POSITION if positional else prepared.split.train.ids_by
    return open_for_run(place, ids, run.run_id, settings.budget, usual, prepared.releases, say)


def _run(
    prepared: Prepared, run: RunDirectory, ledger: Ledger, progress: Progress, say: Say
) -> ScoredResult:
    settings, split = prepared.settings, prepared.split
    statistics, others = _private_side(prepared, run, progress)
    positional = prepared.plan.facts.positional_ids
    holder = Holder(statistics, ledger, run.run_id, positional_ids=positional)
    track = Tracker(run.path, settings)

    def report(line: Mapping[str, Any]) -> None:
        progress(line["stage"], line["done"], line["total"])
        track(line)

    learned = learn(
        settings,
        RoundSettings(),
        prepared.plan,
        OwnHolder(OWN, holder),
        run,
        public=prepared.public,
        test=HeldOut(split.test, prepared.declared_public),
        others=others,
        progress=progress,
        report=report,
        events=lambda _: [
            release.to_json() for release in (*prepared.before, *ledger.releases(run.run_id))
        ],
    )
    if not run.finished:
        _result(prepared, run, holder, learned).write(run.path)
    scored = with_private_scores(run.path, Result.read(run.path))
    if makes_generator(settings, prepared.plan):
        if prepared.plan.teachers is None:  # otherwise it was trained along the way
            say(_student_words(scored, run.path, free=not prepared.plan.mixture))
        finish_generator(learned.method, run, progress, split.train.class_names)
    return scored


def _student_words(scored: ScoredResult, folder: Path, *, free: bool) -> str:
    """That the student can be used, while its generator is still trained."""
    score, note = scored.accuracy.get("student"), ""
    if score is not None:
        warning = ", NOT PRIVATE" if "student" in scored.not_private else ""
        note = f" ({score:.1%} right on held-out images{warning})"
    more = "; its generator costs nothing more" if free else ""
    return f"the student is finished{note}: {folder / STUDENT}{more}"


def _private_side(
    prepared: Prepared, run: RunDirectory, progress: Progress
) -> tuple[Mapping[str, Statistic[Any]], Callable[[], dict[str, float]]]:
    """What the holder computes answers from, and how good that is by itself."""
    test = prepared.split.test
    train, backbones = prepared.split.train, public_backbones(prepared.settings)
    sums = of_records(
        train,
        prepared.device,
        run.private,
        backbones=backbones,
        scratch_gib=prepared.settings.scratch_gib,
        progress=progress,
    )
    if prepared.plan.teachers is None:
        return sums, dict
    teachers = _teachers(prepared, run, progress)

    def others() -> dict[str, float]:
        if not prepared.declared_public:
            return {}
        return ensemble_accuracy([teachers], test.images, test.labels)

    return {**of_teachers(teachers), **(sums if prepared.plan.starts else {})}, others


def _teachers(prepared: Prepared, run: RunDirectory, progress: Progress) -> Ensemble:
    folder, mode = prepared.teacher_folder, prepared.mode
    if folder is None:
        assert mode is not None  # whoever has no teachers yet knows how to train them
        folder, train = run.private / "teachers", prepared.split.train
        manifest = make_manifest(prepared.settings, train, prepared.plan.facts.shards, mode)

        def show(done: int, total: int) -> None:
            progress("teachers on disjoint shards", done, total)

        train_teachers(
            train, manifest, folder, device=prepared.device, progress=show, workers=cpu_count()
        )
    return Ensemble(folder, prepared.device)


def _result(prepared: Prepared, run: RunDirectory, holder: Holder, learned: Learned) -> Result:
    settings, plan, releases = prepared.settings, prepared.plan, prepared.releases
    names = prepared.split.train.class_names
    curve = learned.outcome.curve
    return Result(
        method="moments" if settings.source == "moments" else "dpsd",
        run=run.run_id,
        rows=sum(release.rows for release in releases),
        guarantee=_guarantee(prepared, private=holder.private),
        answers=Answers(
            privacy=settings.privacy if plan.teachers else Kind.MOMENTS.value,
            start=Kind.MOMENTS.value if plan.starts and settings.source == "teachers" else None,
            noise_std=plan.noise_std,
            sums_stds=plan.sums_stds,
            signal=plan.forecast.signal,
            teachers=plan.facts.shards,
        ),
        ledger=LedgerFacts.of(
            holder.ledger, settings.delta, Unit(settings.unit), Adjacency.ZERO_OUT
        ),
        data=settings.data,
        class_names=names,
        public_data=settings.public_data if prepared.generator is None else None,
        generator=_generator(prepared),
        mixture=mixture_facts(plan),
        features=public_features(settings),
        declared_teachers=declared_teachers(plan),
        logit_scale=learned.logit_scale,
        accuracy=learned.accuracy,
        accuracy_on=(
            "held-out images of a public benchmark, declared public"
            if prepared.declared_public
            else "the holder's own held-out records: NOT private, do not release"
        ),
        confusion=learned.confusion,
        findings=learned.findings,
        curve=AccuracyCurve(rows=tuple(curve[0]), accuracy=tuple(curve[1])),
        settings=json.loads(settings.model_dump_json(exclude_none=True)),
    )


def _guarantee(prepared: Prepared, *, private: bool) -> StatedGuarantee:
    """What the student costs, with the generator that it learned from."""
    spent, published = (*prepared.before, *prepared.releases), prepared.plan.published
    stated = _guaranteed(prepared.settings, spent)
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
