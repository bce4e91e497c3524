"""Asking an ensemble of teachers, whose weights stay in memory where they fit."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from fedtranscribe.capabilities import Facts
from fedtranscribe.errors import (
    ConfigError,
    CorruptWeightsError,
    ModelMismatchError,
    StorageError,
)
from fedtranscribe.models import Classifier, build, is_small, load_state, restore
from fedtranscribe.models.registry import expect_classifier
from fedtranscribe.teachers.frozen import FrozenBackbone
from fedtranscribe.teachers.manifest import Manifest, load_manifest
from fedtranscribe.teachers.stacked import (
    LOOP_ROWS,
    Stacked,
    Way,
    keep_freed_memory,
    pick_way,
    portion,
    run_heads,
    run_stacked,
)
from fedtranscribe.teachers.training import load_backbone, shard_file

HELD_MIB = 512
"""Weights of more MiB than this are read from disk again for every query: 3,900 shards of `cnn`."""

_HEADS = 64  # heads in one matrix product


class Ensemble:
    """`Teachers` that are networks, opened from a folder made by `train_teachers`.

    Weights are read at the first query, and kept where all shards' together fit `held_mib`.
    Both that and how shards are put together follow from the public count of shards.

    Args:
        folder: teacher folder.
        device: where to run them.
        way: how to run whole networks; by default what suits the device. Heads on a frozen
            backbone are one matrix product, whatever the way.
        held_mib: most MiB of weights to keep in memory; 0 reads them for every query.

    Raises:
        StorageError, ModelError: no manifest, or training was interrupted.
        ConfigError: a way that this architecture cannot be run in.
    """

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        *,
        way: Way | None = None,
        held_mib: float = HELD_MIB,
    ) -> None:
        self.folder = folder
        self.device = device
        self.manifest: Manifest = load_manifest(folder)
        if not self.manifest.complete:
            raise StorageError(
                f"Training of the teachers in {folder} was interrupted; run it again to finish."
            )
        m = self.manifest
        _expect_weights(m, folder)
        self.way = way or pick_way(m.architecture, device)
        _expect_way(self.way, m)
        if device.type == "cpu":
            keep_freed_memory()
        self._network: nn.Linear | Classifier
        self._backbone: FrozenBackbone | None = None
        if m.mode == "heads":
            self._backbone = load_backbone(m, folder).to(device)
            self._network = nn.Linear(self._backbone.width, m.classes).to(device)
            self._step, self._rows = _HEADS, LOOP_ROWS
        else:
            self._network = build(m.architecture, m.classes, m.channels, m.size)
            self._network.to(device).eval()
            at_once = portion(self.way, self._network, m.shards, device)
            self._step, self._rows = at_once.shards, at_once.rows
        values = self._network.state_dict().values()
        self._holds = m.shards * sum(v.nbytes for v in values) <= held_mib * 2**20
        self._held: list[Stacked] | None = None

    @property
    def shards(self) -> int:
        """How many disjoint shards there are, empty ones included."""
        return self.manifest.shards

    @property
    def facts(self) -> Facts:
        """What is public about them."""
        m, declared = self.manifest, self.manifest.declarations
        return Facts(
            classes=m.classes,
            channels=m.channels,
            size=m.size,
            shards=m.shards,
            positional_ids=m.record_ids == "positional",
            shards_declared_by=declared["shards_declared_by"],
            weights_declared_by=declared["weights_declared_by"],
        )

    def check(self, classes: int, channels: int, size: int) -> None:
        """Refuse data of another shape, before anything is spent.

        Raises:
            ModelMismatchError: names both shapes.
        """
        have = (self.manifest.classes, self.manifest.channels, self.manifest.size)
        if have != (classes, channels, size):
            raise ModelMismatchError(
                f"The teachers in {self.folder} expect {have[0]} classes of {have[1]}x{have[2]}x"
                f"{have[2]} images, the data have {classes} classes of {channels}x{size}x{size}; "
                "use the data they were trained on, or train teachers on these."
            )

    def logits(self, images: Tensor) -> Iterator[Tensor]:
        """Every shard's logits on uint8 images [n, ch, s, s]: float32 [1, n, classes] each.

        An empty shard's logits are NaN, which every mechanism answers as a zero row.
        """
        features = None if self._backbone is None else self._features(self._backbone, images)
        for stacked in self._parts():
            yield from self._answers(stacked, images, features).split(1)

    def verify(self) -> None:
        """Load every shard once, from disk.

        Raises:
            CorruptWeightsError: a file is truncated, foreign, or holds NaN.
        """
        self._held = None
        blank = torch.zeros(1, self.manifest.channels, self.manifest.size, self.manifest.size)
        for shard, logits in enumerate(self.logits(blank.to(torch.uint8))):
            present = shard_file(self.folder, shard).exists()
            if present and not bool(torch.isfinite(logits).all()):
                raise CorruptWeightsError(
                    f"{shard_file(self.folder, shard)} gives non-finite outputs; "
                    "train that shard again."
                )

    def _parts(self) -> Iterator[Stacked]:
        """All shards in order, several to a stack."""
        first = range(0, self.shards, self._step)
        parts = (self._load(range(at, min(at + self._step, self.shards))) for at in first)
        if not self._holds:
            yield from parts
            return
        if self._held is None:
            self._held = list(parts)
        yield from self._held

    def _load(self, shards: range) -> Stacked:
        stacked = Stacked.empty(self._network, len(shards), self.device)
        for place, shard in enumerate(shards):
            path = shard_file(self.folder, shard)
            if path.exists():
                restore(self._network, load_state(path), path)
                stacked.put(place, self._network)
        return stacked

    def _answers(self, stacked: Stacked, images: Tensor, features: Tensor | None) -> Tensor:
        if isinstance(self._network, nn.Linear):
            assert features is not None  # heads have a backbone
            return run_heads(stacked, features)
        return run_stacked(self.way, self._network, stacked, images, self._rows, self.device)

    @torch.no_grad()
    def _features(self, backbone: FrozenBackbone, images: Tensor) -> Tensor:
        parts = images.split(self._rows)
        return torch.cat([backbone(part.to(self.device).float() / 255) for part in parts])


def _expect_weights(manifest: Manifest, folder: Path) -> None:
    """Hold the manifest against the first shard's file, before any network is made by it."""
    m = manifest
    files = (shard_file(folder, shard) for shard in range(m.shards))
    path = next((file for file in files if file.exists()), None)
    if path is None:  # all shards are empty
        return
    state = load_state(path)
    if m.mode == "full":
        expect_classifier(m.architecture, m.classes, m.channels, m.size, state, path)
    elif "weight" not in state or state["weight"].shape[:1] != (m.classes,):
        raise ModelMismatchError(
            f"{path} is no head for the {m.classes} classes of the manifest next to it; train the "
            "teachers again."
        )


def _expect_way(way: Way, manifest: Manifest) -> None:
    stackable = manifest.mode == "heads" or is_small(manifest.architecture)
    if way is not Way.LOOP and not stackable:
        raise ConfigError(
            f"Expected way='loop' for teachers of {manifest.architecture!r}, got {way.value!r}: "
            "only our own small networks run side by side; leave it out."
        )
