"""Several equal networks run as one, in three ways that give the same logits.

An ensemble of small networks spends time on what is not arithmetic: a call per layer and teacher,
and on a GPU a kernel launch for each. Stacked, the teachers share those calls, and the first
convolution reads each image once for all of them.

Which way where (`pick_way`), from `benchmarks/results/inference.md`: on one CPU thread `GROUPED`
is 1.06 to 1.3 times as fast as the loop, and `VMAP`, which lowers to the same convolutions but
takes GroupNorm apart, needs half as long again as the loop. On CUDA `GROUPED` is taken for the
count of its launches, a dozen for fifty teachers; that was not measured. Other networks than ours
are large: they fill a device one at a time.

Guarantee:
    A shard's logits depend on its own weights and on public values only, on CPU bit for bit as
    tests show: how shards are put together follows from public counts, an empty shard keeps its
    place with weights of zero, and no layer adds over shards. Otherwise a record could move all
    other shards' rows by a rounding each, and no sensitivity has room for that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedtranscribe.models import Classifier, is_small
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
    """How much is run at once.

    Attributes:
        shards: networks side by side.
        rows: images.
    """

    shards: int
    rows: int


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
    """The weights of several shards, along a first dimension.

    Attributes:
        state: name -> [s, ...].
        there: bool [s]; False where a shard is empty.
    """

    state: State
    there: Tensor

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
