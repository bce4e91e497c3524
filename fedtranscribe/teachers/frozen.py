"""One frozen backbone that the heads of all shards share.

Hundreds of large networks cannot be trained in minutes on two cores. A linear head per shard on
frozen features can, and the features are computed once per image, whatever the number of shards.

With public weights the features are the input of the last layer. Without any, a deep random
network forgets what it saw: on the packaged digits ridge heads on the last features of a random
ResNet50 reach 14 % each and 38 % together, ridge heads on its first small map 47 % and 85 %. So
random backbones are tapped there.

Guarantee:
    Backbone and scaling are functions of the architecture, a public seed and public shapes (or of
    public weights), never of records: a head depends on its own shard alone.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtranscribe.data import draw_shapes
from fedtranscribe.models import Classifier

_TAP_SIDE = 8  # the first map at most this large
_POOLED_SIDE = 4
_SHAPES = 512
_BATCH = 128


class _Reached(Exception):  # noqa: N818 (no error: the tapped map is all that is needed)
    def __init__(self, found: Tensor) -> None:
        self.found = found


class FrozenBackbone(nn.Module):
    """Images [n, ch, s, s] in [0, 1] -> features [n, d], standardised on public shapes.

    Args:
        network: the classifier whose backbone is used; frozen.
        pretrained: whether its weights come from public training.
        seed: draws the public shapes.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, network: Classifier, *, pretrained: bool, seed: int) -> None:
        super().__init__()
        self.network = network.requires_grad_(False).eval()
        self._tap = None if pretrained else _first_small_map(network)
        rng = torch.Generator().manual_seed(seed)
        shapes = draw_shapes(_SHAPES, network.channels, network.size, rng).float() / 255
        if not pretrained:
            _settle_batch_norms(network, shapes)
        features = torch.cat([self._raw(part) for part in shapes.split(_BATCH)])
        self.register_buffer("mean", features.mean(0))
        self.register_buffer("scale", features.std(0).clamp_min(1e-6))

    @property
    def width(self) -> int:
        """How many features there are, d."""
        return len(self.mean)

    def forward(self, images: Tensor) -> Tensor:
        """Standardised features, cut at ten deviations so that no image can overflow a head."""
        return ((self._raw(images) - self.mean) / self.scale).clamp(-10, 10)

    @torch.no_grad()
    def _raw(self, images: Tensor) -> Tensor:
        if self._tap is None:
            return self.network.features(images)
        hook = self.network.backbone.get_submodule(self._tap).register_forward_hook(_stop)
        try:
            return self.network.features(images)
        except _Reached as reached:
            pooled = functional.adaptive_avg_pool2d(reached.found, _POOLED_SIDE)
            return pooled.flatten(1)
        finally:
            hook.remove()


def _stop(module: nn.Module, inputs: object, output: Tensor) -> None:
    raise _Reached(output)


def _first_small_map(network: Classifier) -> str | None:
    """Name of the first backbone module whose map is small; None where there is no such map."""
    found: list[str] = []

    def watch(name: str):
        def look(module: nn.Module, inputs: object, output: object) -> None:
            if not isinstance(output, Tensor) or output.ndim != 4:
                return
            if 1 < output.shape[-1] <= _TAP_SIDE:
                found.append(name)

        return look

    modules = dict(network.backbone.named_modules())
    hooks = [m.register_forward_hook(watch(name)) for name, m in modules.items() if name]
    try:
        with torch.no_grad():
            blank = torch.zeros(2, network.channels, network.size, network.size)
            network.features(blank)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


def _settle_batch_norms(network: Classifier, shapes: Tensor) -> None:
    """Running statistics of public shapes: as initialised, some networks give every image alike."""
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # plain averages over what follows
        norm.train()
    if norms:
        with torch.no_grad():
            for part in shapes.split(_BATCH):
                network.features(part)
    network.eval()
