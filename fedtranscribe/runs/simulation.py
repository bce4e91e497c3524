"""One machine plays server and all holders: the Flower apps under `simulations/` are this.

Simulated holders are parts of one data set, by a public Dirichlet partition. Each trains its own
teachers on its first message, or when they are asked, where sums may leave them nothing. It keeps
its own ledger beside them, and answers through the very node and protocol that a deployed holder
uses. A Flower node may play several holders, so that any number of nodes will do.

Guarantee:
    As `node.py`. But the user of a simulation holds all the data, and every run starts new
    ledgers: a simulation studies a federation, it protects nobody.
"""

import fcntl
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fedtranscribe.config import FederationSettings, TranscribeSettings
from fedtranscribe.config.facts import Facts
from fedtranscribe.data import DataSplit, ImageSet, dirichlet_partition, load
from fedtranscribe.data.partitions import holder_name, part_id
from fedtranscribe.files import write_atomically
from fedtranscribe.holder.masking import Masking, RoundStore
from fedtranscribe.holder.node import Node
from fedtranscribe.holder.policy import HolderPolicy
from fedtranscribe.holder.trainings import Trainings
from fedtranscribe.models import pick_device
from fedtranscribe.models.ensemble import Ensemble
from fedtranscribe.models.teacher_training import train_teachers
from fedtranscribe.models.teachers import Manifest
from fedtranscribe.noise.key_files import SUFFIX, Identity, new_pair
from fedtranscribe.noise.sources import BitSource, NoiseSource
from fedtranscribe.privacy.ledger import Ledger
from fedtranscribe.privacy.run_ledger import Say
from fedtranscribe.privacy.units import NoiseMode, Unit
from fedtranscribe.questions.kinds import of_records, of_teachers
from fedtranscribe.questions.moments import Moments
from fedtranscribe.questions.question import Kind
from fedtranscribe.results.parts import StatedGuarantee
from fedtranscribe.rounds.roster import against_start
from fedtranscribe.runs.federate import show_plan as show_federated
from fedtranscribe.runs.picking import training_mode
from fedtranscribe.runs.pooled import largest
from fedtranscribe.runs.preparation import make_manifest
from fedtranscribe.runs.single_node import TRAINERS, asked_of, training_holders
from fedtranscribe.runs.student_side import public_backbones
from fedtranscribe.text import counted
from fedtranscribe.trainers.synthesize import show_plan as show_training

log = logging.getLogger(__name__)

_LEDGER = "ledger.sqlite"

# What simulated holders bear in masked sums, unless the settings say otherwise.
_DROPOUTS, _COLLUDERS = 1, 1


def load_data(settings: FederationSettings) -> DataSplit:
    """The records that the simulated holders share out."""
    split = load(settings.data, settings.data_root, settings.download, settings.own_data)
    for note in split.notes:
        log.warning("%s", note)
    return split


def partitions(settings: FederationSettings, train: ImageSet) -> list[ImageSet]:
    """Each holder's records, under a data id of its own."""
    parts = dirichlet_partition(
        train, settings.holders, settings.alpha, settings.seed, least=settings.shards
    )
    return [replace(part, data_id=part_id(part.data_id, i)) for i, part in enumerate(parts)]


def policy_of(settings: FederationSettings) -> HolderPolicy:
    """A simulated holder allows what the run was set up for, and not a row more."""
    return HolderPolicy(
        epsilon=settings.epsilon,
        delta=settings.delta,
        unit=Unit(settings.unit),
        kinds=(*Kind, *settings.questions),
        trainers=(settings.method,) if settings.method in TRAINERS else (),
        noise=NoiseMode(settings.noise),
        dropouts=_DROPOUTS if settings.dropouts is None else settings.dropouts,
        colluders=_COLLUDERS if settings.colluders is None else settings.colluders,
    )


def open_holder(
    settings: FederationSettings,
    part: ImageSet,
    number: int,
    folder: Path,
    *,
    policy: HolderPolicy | None = None,
    noise: NoiseSource | None = None,
    bits: BitSource | None = None,
    moments: Moments | None = None,
) -> Node:
    """Open a holder's node, with its teachers trained unless they may never be asked."""
    policy = policy or policy_of(settings)
    open_ledger = partial(Ledger.open, folder / _LEDGER, part.data_id, policy.budget)
    if settings.method in TRAINERS:
        trainings = _trainings(settings, part, folder, policy, noise, bits)
        return Node(
            holder_name(number), {}, trainings.facts, policy, open_ledger, trainings=trainings
        )
    device, backbones = pick_device(settings.device), public_backbones(settings)
    teachers = _teachers(settings, part, number, folder, backbones.names)
    if against_start(settings) or settings.teachers_share:
        teachers.train()
    sums = of_records(part, device, folder, moments, backbones=backbones)
    return Node(
        holder_name(number),
        {**({} if part.multilabel else of_teachers(teachers)), **sums},
        lambda: teachers.facts,
        policy,
        open_ledger,
        noise=noise,
        bits=bits,
        masking=_masking(settings, number, folder) if settings.noise == NoiseMode.SECAGG else None,
    )


def show_plan(
    settings: FederationSettings, parts: list[ImageSet], say: Say = lambda _: None
) -> StatedGuarantee:
    """Say what a private simulation would ask and cost; nobody is asked, nothing is written."""
    policy, names = policy_of(settings), [holder_name(i) for i in range(len(parts))]
    records = ", ".join(f"{len(part):,}" for part in parts)
    say(
        f"{counted(len(parts), 'holder')} with records: {records}; each has a new ledger, with "
        f"room for ε = {policy.epsilon:g} ({policy.unit})"
    )
    nowhere = Path()  # nothing is written there
    if settings.method in TRAINERS:
        trainings = {
            name: _trainings(settings, part, nowhere, policy)
            for name, part in zip(names, parts, strict=True)
        }
        roster = {
            name: policy.capabilities(name, own.facts(), (), masks=False, trains=True)
            for name, own in trainings.items()
        }
        costs = []
        for name in training_holders(roster, settings):
            say(f"{name} trains a network of its own:")
            own = trainings[name]
            costs.append(show_training(own.prepare(own.settings(asked_of(settings))), say))
        if len(costs) == 1:
            return costs[0]
        cost = largest(costs)
        say(f"no record is with two holders, so the largest ε counts: {cost.epsilon:.4g}")
        return cost
    backbones, masks = public_backbones(settings), settings.noise == NoiseMode.SECAGG
    roster = {}
    for number, (name, part) in enumerate(zip(names, parts, strict=True)):
        facts = _teachers(settings, part, number, nowhere, backbones.names).facts
        roster[name] = policy.capabilities(
            name, facts, (*Kind, *settings.questions), masks=masks, trains=False
        )
    return show_federated(settings, roster, expected=settings.holders, say=say)


def _trainings(
    settings: FederationSettings,
    part: ImageSet,
    folder: Path,
    policy: HolderPolicy,
    noise: NoiseSource | None = None,
    bits: BitSource | None = None,
) -> Trainings:
    ledger = folder / _LEDGER
    return Trainings(
        lambda: part,
        ledger,
        partial(Ledger.open, ledger, part.data_id, policy.budget),
        folder / "trainings",
        settings.device,
        least_seconds=0.0,
        noise=noise,
        bits=bits,
    )


def _teachers(
    settings: FederationSettings,
    part: ImageSet,
    number: int,
    folder: Path,
    features: tuple[str, ...],
) -> "TrainedWhenAsked":
    mode = settings.teacher_mode
    if mode == "auto":
        mode = training_mode(settings.teacher, None)
    described = TranscribeSettings(
        teacher=settings.teacher,
        data=part.name,
        # Each holder's teachers start from weights of their own, as strangers' would.
        seed=settings.seed * 1_000 + number,
        teachers=settings.teachers,
    )
    manifest = make_manifest(described, part, settings.shards, mode)
    device = pick_device(settings.device)
    return TrainedWhenAsked(part, manifest, folder / "teachers", device, features)


class TrainedWhenAsked:
    """A simulated holder's teachers; see `teachers.Teachers`."""

    def __init__(
        self,
        part: ImageSet,
        manifest: Manifest,
        folder: Path,
        device: torch.device,
        features: tuple[str, ...] = (),
    ) -> None:
        self._features = features
        self._part = part
        self._manifest = manifest
        self._folder = folder
        self._device = device
        self._trained: Ensemble | None = None

    @property
    def facts(self) -> Facts:
        """What is public about them, and how many records the holder declares."""
        return replace(
            self._part.facts,
            shards=self._manifest.shards,
            records=len(self._part),
            features=self._features,
        )

    def logits(self, images: Tensor) -> Iterator[Tensor]:
        """Logits of every shard in turn."""
        return self.train().logits(images)

    def train(self) -> Ensemble:
        """The networks, trained if they are not there yet."""
        if self._trained is None:
            train_teachers(
                self._part,
                self._manifest,
                self._folder,
                device=self._device,
                progress=lambda done, total: None,
            )
            self._trained = Ensemble(self._folder, self._device)
        return self._trained


def _masking(settings: FederationSettings, number: int, folder: Path) -> Masking:
    """A simulated holder's part in masked sums; the first one makes the keys of all."""
    keys = folder.parent / "keys"
    keys.mkdir(parents=True, exist_ok=True)
    with (keys / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in map(holder_name, range(settings.holders)):
            if not (keys / f"{name}{SUFFIX}").exists():
                secret, public = new_pair()
                write_atomically(keys / name, secret)
                write_atomically(keys / f"{name}{SUFFIX}", public)
    identity = Identity.read(holder_name(number), keys / holder_name(number), keys)
    return Masking(identity, RoundStore(folder / f"{_LEDGER}.rounds"))


def holders_folder(run: Path) -> Path:
    """Where the simulated holders keep their own; never part of a release."""
    return run / "private" / "holders"
