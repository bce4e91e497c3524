"""What has to be settled before a private training may spend anything: data, plan, figures."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fedtranscribe.config import SynthesizeSettings
from fedtranscribe.data import DataSplit, NamedData, is_published, load
from fedtranscribe.data.imageset import expect_single_labels
from fedtranscribe.data.memory import digest_of
from fedtranscribe.data.registry import ledger_of
from fedtranscribe.errors import ConfigError, PrivacyError
from fedtranscribe.models import pick_device
from fedtranscribe.models.diffusion import to_signed
from fedtranscribe.noise.sources import BitSource, NoiseSource, OsBits, OsNoise
from fedtranscribe.privacy.accountant import guarantee, sound_table
from fedtranscribe.privacy.ledger_place import LedgerPlace
from fedtranscribe.privacy.release_plan import PrivacyPlan
from fedtranscribe.privacy.units import Adjacency, Guarantee, Unit
from fedtranscribe.results.progress import check_tracking
from fedtranscribe.trainers.per_sample import Backend
from fedtranscribe.trainers.plan import DataFacts, TrainingPlan, plan_training
from fedtranscribe.trainers.private_start import MixtureStart, TrainerWithStart, mixture_start
from fedtranscribe.trainers.private_steps import memory_budget
from fedtranscribe.trainers.profiles import recipe_named
from fedtranscribe.trainers.public_images import Clusters, PublicImages, public_images
from fedtranscribe.trainers.stages import Trainer, TrainingInputs

Say = Callable[[str], None]


@dataclass(frozen=True)
class Cost:
    """What a training gives away."""

    stated: Guarantee | None  # the headline; None where there is no guarantee
    sound: dict[Adjacency, float]  # ε by adjacency; empty where there is no guarantee


@dataclass(frozen=True, eq=False)
class PreparedTraining:
    """A training whose public part is settled and has been found sound; nothing is spent."""

    settings: SynthesizeSettings  # what was asked for
    split: DataSplit  # PRIVATE records, and the held-out ones
    public: PublicImages | None  # public images to start from; None for no pre-training
    plan: TrainingPlan  # what is trained
    start: MixtureStart | None  # the private start before it; None without one
    cost: Cost  # what that gives away
    device: torch.device  # where
    digest: str | None = None  # of data in memory; None of data that have a name or a path

    @property
    def facts(self) -> DataFacts:
        """What is public about the private data."""
        return facts_of(self.settings.data, self.split)

    @property
    def declared_public(self) -> bool:
        """Whether figures on the held-out images may be told."""
        return is_published(self.settings.data)

    @property
    def ledger(self) -> LedgerPlace:
        """Where the ledger of the data lies; raises as `ledger_of`."""
        return ledger_of(self.split.train, self.settings.data, self.settings.ledger)

    @property
    def binding(self) -> str:
        """Hash of everything that decides the outcome, but for noise and coins."""
        return self.plan.digest(
            data=self.split.train.data_id,
            public=None if self.public is None else self.public.name,
            public_images=0 if self.public is None else len(self.public),
            seed=self.settings.seed,
            labels=self.settings.labels,
        )

    @property
    def memory(self) -> str:
        """What the training takes, in words: private and public images, and gradients of records.

        Images lie as bytes and as float32.
        """
        facts, start = self.facts, self.plan.start
        public_images = len(self.public) if self.public is not None else 0
        public_images += 0 if start is None else start["samples"]
        images = facts.dimensions * (5 * len(self.split.train) + 4 * public_images)
        if self.settings.physical_batch is None:
            most = f"at most {memory_budget(self.device) / 1e9:.1f} GB for gradients of records"
        else:
            most = f"gradients of {self.settings.physical_batch} records at a time"
        return (
            f"memory: {images / 1e9:.1f} GB for images, {most} (--physical-batch lowers it), and "
            "what the libraries take"
        )

    def trainer(self, noise: NoiseSource | None = None, bits: BitSource | None = None) -> Trainer:
        """Make the trainer; it checks images and labels, and computes nothing from them yet."""
        train, plan, seed = self.split.train, self.plan, self.settings.seed
        inputs = TrainingInputs(
            images=to_signed(train.images),
            labels=train.labels if plan.classes else None,
            public=None if self.public is None else self.public.images,
            noise=noise or OsNoise(),
            bits=bits or OsBits(),
            # Public batches only: what is drawn for a private record needs a secret of its own.
            rng=torch.Generator(self.device).manual_seed(seed),
            ids=train.ids,
            public_labels=None if self.public is None else self.public.labels,
            backend=Backend(self.settings.backend),
            physical_batch=self.settings.physical_batch,
        )
        recipe = recipe_named(plan.method)

        def make(inputs: TrainingInputs) -> Trainer:
            return recipe.trainer(plan, self.facts, inputs, seed, self.device)

        if self.start is None:
            trainer = make(inputs)
        else:
            trainer = TrainerWithStart(self.start, plan, train, inputs, seed, make)
        if trainer.release != self.plan.release:
            raise PrivacyError(
                "Expected the trainer to release what was planned, printed and will be booked; "
                "this is a bug, please report it. Nothing was spent."
            )
        return trainer


def prepare(
    settings: SynthesizeSettings,
    split: DataSplit | None = None,
    say: Say = lambda _: None,
    *,
    asked_by_server: bool = False,
) -> PreparedTraining:
    """Load and check everything public, choose the plan and find its noise."""
    check_tracking(settings)
    recipe = recipe_named(settings.method)
    device = pick_device(settings.device)
    digest = None if split is None or asked_by_server else digest_of(split)
    if split is None:
        split = load(settings.data, settings.data_root, settings.download, settings.own_data)
    expect_single_labels(split.train.multilabel, f"method={settings.method}")
    if not asked_by_server:
        for line in split.words:
            say(line)
    known = None if asked_by_server else split
    private = NamedData(settings.data, split.train.data_id, known)
    facts = facts_of(settings.data, split)
    start = mixture_start(settings, facts)
    named = settings.pretrain_data
    if named is None and start is None:
        named = recipe.public_data(settings, facts)
    if start is not None or named == "none":
        named = None
    public = None if named is None else public_images(named, settings, facts, private)
    if settings.labels == "kmeans":
        split, public = _clustered(settings, split, public)
        facts = facts_of(settings.data, split)
    if settings.noise:
        figure = "sound" if settings.calibrate_by == "sound" else "PUBLISHED"
        say(f"looking for the noise of ε = {settings.epsilon:g} by the {figure} figure")
    if start is None:
        plan = plan_training(recipe, settings, facts, 0 if public is None else len(public))
    else:
        after = start.samples, start.release
        plan = start.before(plan_training(recipe, settings, facts, *after))
    cost = _cost(settings, plan)
    return PreparedTraining(settings, split, public, plan, start, cost, device, digest)


def _clustered(
    settings: SynthesizeSettings, split: DataSplit, public: PublicImages | None
) -> tuple[DataSplit, PublicImages]:
    if public is None:
        raise ConfigError(
            "Expected public images for labels=kmeans, whose clusters they make; name some by "
            "--pretrain-data."
        )
    clusters = Clusters(public.images, settings.clusters, settings.seed)
    return clusters.relabelled(split), clusters.of_public(public)


def facts_of(data: str, split: DataSplit) -> DataFacts:
    """What is public about private data."""
    train = split.train
    records = len(set(train.ids))
    return DataFacts(data, records, train.classes, train.channels, train.size, train.positional)


def _cost(settings: SynthesizeSettings, plan: TrainingPlan) -> Cost:
    if plan.release is None:
        return Cost(None, {})
    events = (plan.release,)
    adjacency = Adjacency(settings.adjacency)
    stated = guarantee(PrivacyPlan(events, Unit.RECORD, adjacency, settings.delta))
    return Cost(stated, sound_table(events, Unit.RECORD, settings.delta))
