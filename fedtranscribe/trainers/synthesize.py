"""One synthesis from settings to result, at the machine that has the data.

config.toml           the settings, resolved
denoiser.safetensors  the network of averaged weights: what may be released
images.png            samples by class
metrics.json          what it cost, what was trained, and accuracy on public test images
events.jsonl          what the ledger booked; absent where there is no guarantee
progress.jsonl        counts of steps
private/              checkpoint until the end, accuracy on a holder's own images

Order: plan and cost → trainer (checks the data) → ledger has room → run folder → booked → trained
→ committed → written. Every mistake that can be found before the ledger is touched is found before.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fedtranscribe.data import ImageSet
from fedtranscribe.errors import FedtranscribeError
from fedtranscribe.models.diffusion import load_synthesizer
from fedtranscribe.noise.sources import BitSource, NoiseSource
from fedtranscribe.privacy.accountant import epsilon
from fedtranscribe.privacy.budget import DEFAULT_LIMIT, Budget
from fedtranscribe.privacy.events import Together
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.run_ledger import open_for_run
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.results.figures import draw_images, figures_available
from fedtranscribe.results.parts import (
    OWN_LABELS,
    Accuracy,
    Diffusion,
    LedgerFacts,
    PrivateStart,
    PublishedFigure,
    StatedGuarantee,
)
from fedtranscribe.results.progress import Progress, Tracker, silent
from fedtranscribe.results.result import Result, ScoredResult, with_private_scores
from fedtranscribe.results.run_directory import RunDirectory, check_writable
from fedtranscribe.trainers.preparation import PreparedTraining, Say
from fedtranscribe.trainers.samples import ALL, chosen_labels
from fedtranscribe.trainers.training import OpenLedger, Trained, Training, forget_checkpoint

# Synthetic images and labels, held-out images, device, progress -> accuracy; None if it failed.
Judge = Callable[[Tensor, Tensor, ImageSet, torch.device, Progress], float | None]

NOT_PRIVATE = "NOT PRIVATE"

_GRID = 50


def show_plan(prepared: PreparedTraining, say: Say = lambda _: None) -> StatedGuarantee:
    """Say what a prepared synthesis would train and cost; nothing is spent or written.

    A ConfigError names images or labels that the method cannot take.
    """
    return _say_plan(prepared, prepared.trainer().caveats(), say)


def synthesize(
    prepared: PreparedTraining,
    out: Path,
    *,
    resume: bool = False,
    judge: Judge | None = None,
    progress: Progress = silent,
    say: Say = lambda _: None,
    noise: NoiseSource | None = None,
    bits: BitSource | None = None,
) -> ScoredResult:
    """Run a prepared synthesis, or go on with an interrupted one.

    Args:
        prepared: from `prepare`.
        out: the run's folder.
        resume: go on with the run in `out`.
        judge: measures samples on held-out images; None leaves that out.
        progress: shows long work.
        say: receives lines for the user.
        noise: OS entropy unless a test says otherwise.
        bits: OS entropy unless a test says otherwise, for the Poisson batches.

    Returns:
        The result, as written to `metrics.json`, with all accuracies.

    Raises:
        ConfigError: data that the method cannot take, other settings than the resumed run's, a
            checkpoint of another plan, memory ran out (names the setting to lower).
        BudgetExhaustedError: the data's ledger has no room; nothing was booked.
        StorageError, LedgerError: see their classes.
    """
    trainer = prepared.trainer(noise, bits)
    _say_plan(prepared, trainer.caveats(), say)
    if not figures_available():
        say("matplotlib is not installed: no figures; pip install 'fedtranscribe[plots]'")
    check_writable(out)
    run = RunDirectory.resume(out, prepared.settings) if resume else _begun(out, prepared, say)
    if prepared.digest is not None:
        run.bind_records(prepared.digest)
    if run.finished:
        say("this run was complete already; nothing was spent")
        forget_checkpoint(run)
        return with_private_scores(run.path, Result.read(run.path))
    track = Tracker(run.path, prepared.settings)
    open_ledger = partial(opened_ledger, prepared, run.run_id)
    training = Training(prepared, trainer, run, open_ledger, track)
    training.start()
    finished = False
    while not finished:
        finished = training.step()
        at = training.progress
        progress(at.stage, at.done, at.total)
    trained = training.finish()
    scores = _show(prepared, run, trained, judge, progress)
    accuracy = Accuracy.of(scores) if prepared.declared_public and scores else None
    described = describe(prepared, run, training.caveats, trained, open_ledger)
    result = described.model_copy(update={"accuracy": accuracy})
    result.write(run.path)
    forget_checkpoint(run)
    return with_private_scores(run.path, result)


def _begun(out: Path, prepared: PreparedTraining, say: Say) -> RunDirectory:
    """A new run, where the folder is free and the ledger has room; neither is left half begun."""
    run = RunDirectory.create(out, prepared.settings)
    try:
        if prepared.plan.release is not None:
            opened_ledger(prepared, run.run_id, say).close()
    except FedtranscribeError:
        run.abandon()
        raise
    return run


def opened_ledger(prepared: PreparedTraining, run: str, say: Say = lambda _: None) -> Ledger:
    """The ledger of the data, which has room for the run or has booked it; raises as that may."""
    settings, release = prepared.settings, prepared.plan.release
    assert release is not None
    adjacency = Adjacency(settings.adjacency)
    usual = Budget(DEFAULT_LIMIT, settings.delta, Unit.RECORD, adjacency)
    ids = prepared.split.train.ids_by
    return open_for_run(prepared.ledger, ids, run, settings.budget, usual, [release], say)


def _say_plan(prepared: PreparedTraining, caveats: tuple[str, ...], say: Say) -> StatedGuarantee:
    """What is trained, both figures and every caveat, before anything is spent."""
    steps = ", ".join(f"{stage} {count:,}" for stage, count in prepared.plan.steps.items())
    for line in (*prepared.plan.words, f"steps: {steps}", prepared.memory):
        say(line)
    for caveat in caveats:
        say(f"{NOT_PRIVATE}: {caveat}")
    cost = _guarantee(prepared, caveats)
    say(cost.cost)
    return cost


# ---------------------------------------------------------------- what came out


def _show(
    prepared: PreparedTraining,
    run: RunDirectory,
    trained: Trained,
    judge: Judge | None,
    progress: Progress,
) -> dict[str, float]:
    """Draw samples from the file that may be released, and measure them."""
    settings, plan = prepared.settings, prepared.plan
    model = load_synthesizer(trained.path).to(prepared.device)
    own = plan.conditional and settings.labels == "own"
    judged = settings.evaluate and judge is not None and own
    num = max(settings.samples, _GRID) if judged else _GRID
    labels = chosen_labels(ALL, num, model.classes, settings.seed)
    images = model.draw(labels, settings.seed, lambda done, total: progress("samples", done, total))
    if figures_available():
        names = prepared.split.train.class_names if own else None
        draw_images(images[:_GRID], labels[:_GRID], run.path / "images.png", names)
    if not judged:
        return {}
    assert judge is not None
    score = judge(images, labels, prepared.split.test, prepared.device, progress)
    scores = {} if score is None else {"downstream": score}
    # On a holder's own records accuracy is private; there it stays.
    run.write_scores(scores)
    return scores


def describe(
    prepared: PreparedTraining,
    run: RunDirectory,
    caveats: tuple[str, ...],
    trained: Trained,
    open_ledger: OpenLedger,
) -> Result:
    """All of `metrics.json` but accuracy; nothing of it depends on a private record."""
    settings, plan, split = prepared.settings, prepared.plan, prepared.split
    names, public = split.train.class_names, prepared.public
    return Result(
        method=plan.method,
        run=run.run_id,
        # One release, the network; none where nothing was booked.
        rows=int(plan.release is not None),
        guarantee=_guarantee(prepared, caveats),
        diffusion=_diffusion(prepared, trained),
        ledger=_ledger_facts(prepared, open_ledger),
        data=settings.data,
        data_id=split.train.data_id,
        class_names=names if names and plan.conditional else None,
        public_data=None if public is None else public.name,
        public_data_id=None if public is None else public.data_id,
        accuracy_on=(
            "held-out images of a public benchmark"
            if prepared.declared_public
            else "the holder's own held-out records: NOT private, do not release"
        ),
        settings=json.loads(settings.model_dump_json(exclude_none=True)),
    )


def _guarantee(prepared: PreparedTraining, caveats: tuple[str, ...]) -> StatedGuarantee:
    settings, published, stated = prepared.settings, prepared.plan.published, prepared.cost.stated
    private = stated is not None and not caveats
    return StatedGuarantee(
        epsilon=None if stated is None else stated.epsilon,
        delta=settings.delta,
        unit=Unit.RECORD,
        adjacency=Adjacency(settings.adjacency),
        accountant=None if stated is None else stated.accountant,
        sound=dict(prepared.cost.sound),
        published=published and PublishedFigure(epsilon=published.epsilon, reason=published.reason),
        private=private,
        stamp=None if private else f"{NOT_PRIVATE}: do not release as private",
        caveats=caveats,
    )


def _diffusion(prepared: PreparedTraining, trained: Trained) -> Diffusion:
    plan, facts = prepared.plan, prepared.facts
    return Diffusion(
        sigma=plan.settings.noise_multiplier,
        steps=dict(plan.steps),
        records=facts.records,
        classes=plan.classes if plan.conditional else 0,
        labels=_labels(prepared),
        channels=facts.channels,
        size=facts.size,
        unet=plan.settings.unet.value,
        sampling=asdict(plan.settings.sampling),
        sha256=trained.sha256,
        resolved=plan.to_json()["settings"],
        private_start=_private_start(prepared),
    )


def _private_start(prepared: PreparedTraining) -> PrivateStart | None:
    settings, plan = prepared.settings, prepared.plan
    if plan.start is None or plan.release is None:
        return None
    whole = plan.release.event(Unit.RECORD, Adjacency(settings.adjacency))
    assert isinstance(whole, Together)
    start, training = (epsilon([part], settings.delta) for part in whole.parts)
    return PrivateStart(**plan.start, epsilon_of_start=start, epsilon_of_training=training)


def _labels(prepared: PreparedTraining) -> str:
    """What the labels mean, as the card says it."""
    if not prepared.plan.conditional:
        return "none"
    if prepared.settings.labels == "own":
        return OWN_LABELS
    return (
        f"{prepared.settings.clusters} k-means clusters of the public images; a record's follows "
        "from that record alone, at no cost"
    )


def _ledger_facts(prepared: PreparedTraining, open_ledger: OpenLedger) -> LedgerFacts | None:
    """What the ledger has booked for all runs, and its limit; None where this one is not in it."""
    if prepared.plan.release is None:
        return None
    settings = prepared.settings
    with open_ledger() as ledger:
        return LedgerFacts.of(ledger, settings.delta, Unit.RECORD, Adjacency(settings.adjacency))
