"""What has to be settled before a transcription may spend anything: data, plan, places."""

import hashlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.config import build as build_settings
from fedtranscribe.data import (
    DataSplit,
    ImageSet,
    NamedData,
    expect_public,
    is_published,
    load,
    share_records,
)
from fedtranscribe.data.imageset import VOTES, expect_single_labels
from fedtranscribe.data.memory import digest_of
from fedtranscribe.data.registry import lasting
from fedtranscribe.errors import ConfigError, ModelMismatchError
from fedtranscribe.models import build, pick_device
from fedtranscribe.models.backbones import Backbone
from fedtranscribe.models.ensemble import Ensemble
from fedtranscribe.models.fixed_features import UnitFeatures, coefficient_count, features_for
from fedtranscribe.models.teachers import Manifest, load_manifest
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import NoiseMode
from fedtranscribe.questions.capabilities import Capabilities
from fedtranscribe.questions.moments import Moments, MomentsQuery
from fedtranscribe.questions.question import Kind, is_sum
from fedtranscribe.questions.record_rows import BATCH
from fedtranscribe.questions.records import count_ids
from fedtranscribe.results.progress import Progress, check_tracking
from fedtranscribe.rounds.plan import Asked, Plan
from fedtranscribe.rounds.planning import make_plan
from fedtranscribe.runs.learning import expect_generator, needs_network
from fedtranscribe.runs.picking import (
    TEACHER,
    TrainingMode,
    could_start,
    default_shards,
    kind_of,
    picked_words,
    training_mode,
    with_source,
)
from fedtranscribe.runs.student_side import (
    load_weights,
    public_backbones,
    public_images,
    with_features,
)
from fedtranscribe.trainers.samples import ExistingGenerator, open_generator

OWN = "own"
"""One machine is a federation of one holder; this is its name."""

# From a diffusion model on two cores: some minutes, once.
_SAMPLES = 2_000


@dataclass
class Prepared:
    """A transcription whose public part is settled and has been found sound; nothing is spent.

    Attributes:
        settings: of the run, with everything picked that nobody named.
        device: where networks run.
        split: the records, private.
        public: images that the student starts from, or None.
        teacher_folder: of given teachers; None where they are trained, or not asked.
        plan: of the run.
        mode: how teachers are trained; None where there are none.
        generator: that was given, whose samples all rows are.
        first_plan: what the same settings would plan with sums over the records first; None where
            there is no such choice.
        digest: of data in memory; None of data that have a name or a path.
    """

    settings: TranscribeSettings
    device: torch.device
    split: DataSplit
    public: ImageSet | None
    teacher_folder: Path | None
    plan: Plan
    mode: TrainingMode | None = None
    generator: ExistingGenerator | None = None
    first_plan: Plan | None = None
    digest: str | None = None

    @property
    def before(self) -> tuple[MechanismRelease, ...]:
        """What the student has cost before the first query: the training of its generator.

        Guarantee:
            The costs of the generator and of the answers add up wherever one record may have paid
            both: where the two data sets share records by their ids (`share_records`), or where it
            is not known which data the generator saw. Of `digits` and `mnist`, say, a record of
            `digits` is a record of `mnist` as well. The total is what a record of both sets has
            paid, and so of the smaller one; any other record has paid less. How a path was spelled
            plays no part. A copy of the data under another data id is not recognised.
        """
        if self.generator is None:
            return ()
        seen = self.generator.data_id
        if seen is not None and not share_records(seen, self.split.train.data_id):
            return ()
        return self.generator.releases

    @property
    def releases(self) -> tuple[MechanismRelease, ...]:
        """What the whole run will give away."""
        return self.plan.releases(OWN)

    @property
    def words(self) -> tuple[str, ...]:
        """What was picked and what it trades, a line each."""
        return picked_words(self.settings, self.plan, self.mode, self.first_plan)

    @property
    def declared_public(self) -> bool:
        """Whether accuracy on the held-out images may be told."""
        return is_published(self.settings.data or "")


def existing_generator(
    settings: TranscribeSettings, progress: Progress
) -> ExistingGenerator | None:
    """Samples of the run that `settings.generator` names, with its cost; None if it names none.

    Args:
        settings: what was asked for.
        progress: shows how many samples are drawn.

    Raises:
        StorageError, ModelError: as `open_generator`.
    """
    if settings.generator is None:
        return None
    show = partial(progress, "samples of the generator")
    return open_generator(settings.generator, _SAMPLES, pick_device(settings.device), show)


def prepare(
    settings: TranscribeSettings,
    generator: ExistingGenerator | None = None,
    split: DataSplit | None = None,
) -> Prepared:
    """Load and check everything public, and choose the plan.

    Args:
        settings: what was asked for.
        generator: all rows are its samples, and the student starts from them.
        split: the data, where they are in memory; otherwise they are loaded by name.

    Raises:
        FedtranscribeError: any bad input; nothing has been written or spent.
    """
    check_tracking(settings)
    device = pick_device(settings.device)
    settings = with_source(settings)
    folder = Path(settings.teacher) if settings.teacher else None
    if folder is not None and not folder.is_dir():
        folder = None
    manifest = load_manifest(folder) if folder else None
    settings = settings.model_copy(update=_data_of(settings, manifest))
    assert settings.data is not None  # _data_of fills it in
    digest = None if split is None else digest_of(split)
    if split is None:
        split = load(settings.data, settings.data_root, settings.download, settings.own_data)
    private = NamedData.of(settings.data, split)
    if generator is not None and generator.public is not None:
        expect_public(
            "the generator's pretrain_data", generator.public, private, "choose another generator."
        )
    train = split.train
    settings = with_features(settings, train.size)
    if settings.source == "moments" or settings.start == "moments":
        student = features_for(settings.student, train.channels)
        settings = settings.model_copy(update={"student": student})
    student = build(settings.student_architecture, train.classes, train.channels, train.size)
    load_weights(student, settings)
    kind = kind_of(settings)
    # Images of one id are one record. Under zero-out and replace their number may change, that of
    # ids does not.
    counted = count_ids(train.ids)
    shards, mode = 0, None
    if kind is not Kind.MOMENTS:
        expect_single_labels(train.multilabel, VOTES)
        shards, mode = _ensemble(settings, split, counted, folder, manifest, device)
        if shards > counted:
            raise ConfigError(
                f"Expected shards={shards} <= {counted} records; ask for fewer shards."
            )
    start = kind is not Kind.MOMENTS and settings.start == "moments"
    sums = (*filter(is_sum, Kind), *settings.questions)
    records = settings.declared or counted
    vouched = _vouched(settings, manifest)
    kinds = sums if kind is Kind.MOMENTS else (kind, *sums * start)
    facts = _facts(train, records, shards, kinds, vouched)
    asked = Asked(settings, kind, by_formula=settings.calibrate_by == "published", start=start)
    plan = make_plan(asked, {OWN: facts})
    expect_generator(settings, plan)
    first_plan = None
    if kind is not Kind.MOMENTS and could_start(settings):
        with_sums = _facts(train, records, shards, (kind, *sums), vouched)
        first_plan = make_plan(replace(asked, start=True), {OWN: with_sums})
    if generator is None:
        shapes = needs_network(settings, plan)
        public = public_images(settings, facts.channels, facts.size, private, shapes=shapes)
    else:
        public = generator.samples
        if (public.channels, public.size) != (facts.channels, facts.size):
            raise ConfigError(
                f"The generator gives {public.channels}x{public.size}x{public.size} images, the "
                f"private data have {facts.channels}x{facts.size}x{facts.size}; take another one."
            )
        # They come from the private records' own distribution: nothing else teaches as much.
        whole = settings.dpsd.model_copy(update={"public_share": 1.0})
        settings = settings.model_copy(update={"dpsd": whole})
    prepared = Prepared(
        settings, device, split, public, folder, plan, mode, generator, first_plan, digest
    )
    return replace(prepared, plan=replace(plan, before=prepared.before))


def _ensemble(
    settings: TranscribeSettings,
    split: DataSplit,
    records: int,
    folder: Path | None,
    manifest: Manifest | None,
    device: torch.device,
) -> tuple[int, TrainingMode]:
    """How many teachers there are or will be, and how they are trained; checks given ones."""
    facts = split.train
    if folder is None or manifest is None:
        assert settings.teacher is not None  # with_source fills it in
        if Backbone.parse(settings.teacher):
            raise ConfigError(
                f"Expected --teacher as a network that teachers learn, got {settings.teacher}: "
                "only a student is linear in public features."
            )
        # Unknown names, missing weights and missing networks are found here, before any work.
        shape = facts.classes, facts.channels, facts.size
        build(settings.teacher, *shape, weights=settings.teacher_weights)
        shards = settings.shards or default_shards(settings.declared or records)
        return shards, training_mode(settings.teacher, settings.teacher_weights)
    ensemble = Ensemble(folder, device)
    ensemble.check(facts.classes, facts.channels, facts.size)
    ensemble.verify()
    if manifest.data_id != split.train.data_id:
        raise ModelMismatchError(
            f"The teachers in {folder} were trained on {manifest.data_id!r}, not on "
            f"{split.train.data_id!r}: their ledger is that of {manifest.data_id!r}; "
            "leave out --data."
        )
    manifest.expect_ids(split.train.ids_by, folder)
    if settings.shards not in (None, manifest.shards):
        raise ConfigError(
            f"The teachers in {folder} were trained on shards={manifest.shards}, not "
            f"{settings.shards}; leave out --shards, or train others."
        )
    return manifest.shards, manifest.mode


def make_manifest(
    settings: TranscribeSettings, images: ImageSet, shards: int, mode: str
) -> Manifest:
    """Describe the teachers to be trained on `images`.

    Raises:
        ConfigError: a number that no manifest may state.
    """
    # Public randomness: which shard a record falls into needs no secrecy, only independence of
    # all other records.
    key = hashlib.blake2b(f"{images.data_id}/{settings.seed}".encode(), digest_size=16).hexdigest()
    return build_settings(
        Manifest,
        {
            "architecture": settings.teacher or TEACHER,
            "mode": mode,
            "classes": images.classes,
            "channels": images.channels,
            "size": images.size,
            "shards": shards,
            "data": None if settings.data is None else lasting(settings.data),
            "data_root": str(settings.data_root.resolve()) if settings.data_root else None,
            "data_id": images.data_id,
            "record_ids": "positional" if images.positional else "persistent",
            "key": key,
            "seed": settings.seed,
            "weights": settings.teacher_weights,
            "weights_declared_by": settings.teacher_weights_declared_by,
            "ids_made": images.ids_by,
            "own_data": settings.own_data,
            "settings": settings.teachers.model_dump(),
        },
    )


def _vouched(settings: TranscribeSettings, manifest: Manifest | None) -> dict[str, Any]:
    """On whose word the teachers rest, and whether records are known by row number only."""
    if manifest is None:
        return {"weights_declared_by": settings.teacher_weights_declared_by or ""}
    return {**manifest.declarations, "positional_ids": manifest.record_ids == "positional"}


def _facts(
    images: ImageSet, records: int, shards: int, kinds: tuple[str, ...], vouched: dict[str, Any]
) -> Capabilities:
    """What is public about the private data, and no limits but the ledger's.

    Guarantee:
        A plan names `records` and is fixed by it: shares, components and noise follow. Under
        zero-out and replace the number of records never changes, and may be counted. Under
        add-remove the sound ε is that of a plan which would have named the same number for the
        neighbour; where that is not enough, the number is declared without counting.
    """
    positional = images.positional or vouched.get("positional_ids", False)
    return Capabilities(
        **{**vouched, "positional_ids": positional},
        name=OWN,
        classes=images.classes,
        channels=images.channels,
        size=images.size,
        shards=shards,
        records=records,
        kinds=kinds,
        noise=NoiseMode.LOCAL,
        rows_per_message=sys.maxsize,
        rows_per_run=sys.maxsize,
        multilabel=images.multilabel,
    )


def _data_of(settings: TranscribeSettings, manifest: Manifest | None) -> dict[str, Any]:
    """Given teachers bring their own data; otherwise the packaged digits."""
    if manifest is None:
        return {"data": settings.data or "digits"}
    if settings.data is not None and lasting(settings.data) != lasting(manifest.data):
        return {}
    root = settings.data_root or (Path(manifest.data_root) if manifest.data_root else None)
    # They are read as they were when the teachers learned from them, but for what is said now.
    declared = settings.own_data.model_dump(exclude_defaults=True)
    return {"data": manifest.data, "data_root": root, **manifest.own_data.model_dump(), **declared}


_MANY = 50_000


_MAPS = 2  # the second question of moments maps features differently


_GIB = 2**30


def words_of_a_long_sum(prepared: Prepared) -> Iterator[str]:
    """About how long features of many records take on this machine, and how much disk.

    One block of black images is timed; no record is looked at. How many images a record has is
    not a public fact, so the estimate is that of one image each.
    """
    facts, settings = prepared.plan.facts, prepared.settings
    asked = prepared.plan.teachers is None or prepared.plan.starts
    if not asked or facts.records < _MANY:
        return
    features = features_for(settings.student, facts.channels)
    numbers = coefficient_count(features, facts.channels, facts.size)
    room = 4 * numbers * facts.records / _GIB
    again = room > settings.scratch_gib
    seconds = _seconds_per_record(prepared, features) * facts.records
    hours = seconds * (_MAPS if again else 1) / 3600
    spent = f"{hours:.1f} hours" if hours >= 1 else f"{max(1, round(60 * hours))} minutes"
    stored = (
        f"kept on disk, {room:.1f} GiB, until the run ends"
        if not again
        else f"computed {_MAPS} times: they would take {room:.1f} GiB of disk, more than "
        f"--scratch-gib {settings.scratch_gib:g}"
    )
    yield (
        f"features of {facts.records:,} records, at one image each, take about {spent} on this "
        f"machine; {stored}"
    )


def _seconds_per_record(prepared: Prepared, features: str) -> float:
    facts = prepared.plan.facts
    shape = facts.channels, facts.size, facts.size
    black = torch.zeros(BATCH, *shape, dtype=torch.uint8)
    labels = torch.zeros(BATCH, dtype=torch.int64)
    images = ImageSet("black", "black", black, labels, facts.classes)
    student = build(features, facts.classes, facts.channels, facts.size).backbone
    assert isinstance(student, UnitFeatures)
    query = MomentsQuery(
        "timing", Kind.MOMENTS, student.centre, student.map, features, facts.classes
    )
    backbones = public_backbones(prepared.settings)
    sums = Moments(images, prepared.device, backbones=backbones)
    sums.values(query)  # the first time is slower
    began = time.perf_counter()
    sums.values(query)
    return (time.perf_counter() - began) / BATCH
