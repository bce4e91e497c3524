"""Asking an ensemble of teachers, whose equal networks run as one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedtranscribe.config.facts import Facts
from fedtranscribe.errors import ConfigError, CorruptWeightsError, ModelMismatchError, StorageError
from fedtranscribe.models import Classifier, build, is_small, load_state, restore
from fedtranscribe.models.registry import expect_classifier
from fedtranscribe.models.teacher_training import FrozenFeatures, load_backbone, shard_file
from fedtranscribe.models.teachers import Manifest, load_manifest
from fedtranscribe.models.weights import State

# Rows that a network sees at once in a loop: 4 times faster on CPU than 1,000 for small networks.
LOOP_ROWS = 250

# Stacked, the largest map may have so many bytes: on CPU, few enough to stay in cache.
_CPU_BYTES = 3 * 2**20
_GPU_BYTES = 256 * 2**20
# More teachers at once leave too few rows for a convolution to be fast.
_CPU_SHARDS = 5
_GPU_SHARDS = 50


class Way(StrEnum):
    """How the networks of several shards are run."""

    LOOP = "loop"
    """One after the other; any network."""
    GROUPED = "grouped"
    """Channels of all shards side by side: grouped convolutions and norms; our small nets."""
    VMAP = "vmap"
    """`torch.func.vmap` over stacked weights; our small nets."""


def pick_way(architecture: str, device: torch.device) -> Way:
    """The way to run an ensemble there; the reasons stand at the top of this module."""
    known = device.type in ("cpu", "cuda")
    return Way.GROUPED if known and is_small(architecture) else Way.LOOP


def keep_freed_memory() -> None:
    """Have the C library keep the memory of freed maps for the next layer.

    glibc gives back what is freed at the end of its heap beyond twice the largest block that was
    ever freed. Of layers that free equal maps in turn, each then begins with page faults, and in
    a fresh process an ensemble may take half as long again. One larger block, never touched, sets
    that bound to 24 MiB for good; other C libraries take no notice.
    """
    torch.empty(4 * _CPU_BYTES, dtype=torch.uint8)


@dataclass(frozen=True)
class Portion:
    """How much is run at once."""

    shards: int  # networks side by side
    rows: int  # images


def portion(way: Way, network: Classifier, shards: int, device: torch.device) -> Portion:
    """As much as keeps activations within a bound; a function of public values.

    Args:
        way: how it is run.
        network: one of the equal networks.
        shards: how many there are, empty ones included.
        device: where.
    """
    if way is Way.LOOP:
        return Portion(1, LOOP_ROWS)
    on_cpu = device.type == "cpu"
    most = min(shards, _CPU_SHARDS if on_cpu else _GPU_SHARDS)
    allowed = _CPU_BYTES if on_cpu else _GPU_BYTES
    return Portion(most, max(1, allowed // (most * _largest_map(network))))


def _largest_map(network: Classifier) -> int:
    """Bytes of one image's largest map: the first, since each layer halves the next's size."""
    first = next(layer for layer in network.backbone.modules() if isinstance(layer, nn.Conv2d))
    return 4 * first.out_channels * ceil(network.size / first.stride[0]) ** 2


@dataclass(frozen=True)
class Stacked:
    """The weights of several shards, along a first dimension."""

    state: State  # name -> [s, ...]
    there: Tensor  # bool [s]; False where a shard is empty

    @classmethod
    def empty(cls, network: nn.Module, shards: int, device: torch.device) -> "Stacked":
        """Places for so many networks like `network`, all of them still empty."""
        places = {
            name: torch.zeros(shards, *value.shape, dtype=value.dtype, device=device)
            for name, value in network.state_dict().items()
        }
        return cls(places, torch.zeros(shards, dtype=torch.bool))

    def put(self, place: int, network: nn.Module) -> None:
        """Copy a network's weights to one place."""
        for name, value in network.state_dict().items():
            self.state[name][place].copy_(value)
        self.there[place] = True


@torch.no_grad()
def run_stacked(
    way: Way, network: Classifier, stacked: Stacked, images: Tensor, rows: int, device: torch.device
) -> Tensor:
    """Logits of all shards in a stack.

    Args:
        way: how; all give the same to float32 rounding.
        network: what the weights belong to; its own weights are not used.
        stacked: the weights, on `device`.
        images: uint8 [n, ch, size, size].
        rows: images at once.
        device: where to run.

    Returns:
        float32 [s, n, classes] on the CPU; NaN for empty shards.
    """
    if not bool(stacked.there.any()):
        return torch.full((len(stacked.there), len(images), network.classes), torch.nan)
    run = _RUNS[way]
    parts = [
        run(network, stacked.state, part.to(device).float() / 255).cpu()
        for part in images.split(rows)
    ]
    return _blank_empty(torch.cat(parts, 1), stacked)


@torch.no_grad()
def run_heads(stacked: Stacked, features: Tensor) -> Tensor:
    """As `run_stacked`, for linear heads on features [n, d] that all of them share."""
    weight, bias = stacked.state["weight"], stacked.state["bias"]
    logits = F.linear(features, weight.flatten(0, 1), bias.flatten())
    return _blank_empty(logits.unflatten(1, bias.shape).transpose(0, 1).cpu(), stacked)


def _blank_empty(logits: Tensor, stacked: Stacked) -> Tensor:
    return logits.masked_fill(~stacked.there[:, None, None], torch.nan)


def _loop(network: Classifier, state: State, images: Tensor) -> Tensor:
    shards = len(state["head.bias"])
    of_shard = ({name: value[s] for name, value in state.items()} for s in range(shards))
    return torch.stack([functional_call(network, own, (images,)) for own in of_shard])


def _vmap(network: Classifier, state: State, images: Tensor) -> Tensor:
    return vmap(lambda own: functional_call(network, own, (images,)))(state)


def _grouped(network: Classifier, state: State, images: Tensor) -> Tensor:
    """Maps are [n, s·channels, h, w]: a shard's channels are one group of every convolution."""
    shards = len(state["head.bias"])
    maps = network.adapter(images)
    groups = 1  # the first convolution reads the images, which all shards share
    for name, layer in network.backbone.named_children():
        if isinstance(layer, nn.Conv2d):
            weight, bias = _side_by_side(state, name)
            maps = F.conv2d(maps, weight, bias, layer.stride, layer.padding, groups=groups)
            groups = shards
        elif isinstance(layer, nn.GroupNorm):
            maps = F.group_norm(
                maps, shards * layer.num_groups, *_side_by_side(state, name), layer.eps
            )
        elif isinstance(layer, nn.ReLU):
            maps = maps.relu_()
        elif isinstance(layer, nn.Flatten):
            maps = maps.unflatten(1, (shards, -1)).flatten(2)
        else:
            raise TypeError(f"No grouped form of {type(layer).__name__}; write it here.")
    # [n, s, d] x [s, d, classes], one product per shard.
    return torch.baddbmm(
        state["head.bias"].unsqueeze(1), maps.transpose(0, 1), state["head.weight"].mT
    )


def _side_by_side(state: State, layer: str) -> tuple[Tensor, Tensor]:
    """A backbone layer's weight and bias, [s, channels, ...] -> [s·channels, ...]."""
    weight, bias = state[f"backbone.{layer}.weight"], state[f"backbone.{layer}.bias"]
    return weight.flatten(0, 1), bias.flatten()


_RUNS: dict[Way, Callable[[Classifier, State, Tensor], Tensor]] = {
    Way.LOOP: _loop,
    Way.GROUPED: _grouped,
    Way.VMAP: _vmap,
}


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
        self._backbone: FrozenFeatures | None = None
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
        """Refuse data of another shape, before anything is spent."""
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
        """Load every shard once, from disk."""
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
    def _features(self, backbone: FrozenFeatures, images: Tensor) -> Tensor:
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
