"""What every classifier here looks like, our own small ones, and where they run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import functional

from fedtranscribe.errors import ConfigError

SIDE_SEEN = 64
"""Pixels a side that our own features look at, at most; finer texture is averaged away."""


def parts(images: Tensor, size: int) -> Sequence[Tensor]:
    """So many images each; all at once while a network is exported, whose batches have any size.

    Args:
        images: [n, ...].
        size: of a part, but for the last one.
    """
    return [images] if torch.compiler.is_exporting() else images.split(size)


def shrunk(images: Tensor) -> Tensor:
    """Larger images averaged to `SIDE_SEEN` pixels a side; others as they are.

    Args:
        images: float [n, ch, s, s].
    """
    if images.shape[-1] <= SIDE_SEEN:
        return images
    return F.adaptive_avg_pool2d(images, SIDE_SEEN)


class InputAdapter(nn.Module):
    """Images in [0, 1] -> what a backbone was made for: size, channels, constant scaling.

    The scaling uses constants, never statistics of the data set: those would be a release.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], size: int, repeat: int = 1
    ) -> None:
        super().__init__()
        self.size = size
        self.repeat = repeat
        # Constants of the code, so no part of the weights.
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """float [n, channels, s, s] in [0, 1] -> float [n, channels * repeat, size, size]."""
        if x.shape[-1] != self.size:
            x = functional.interpolate(
                x, size=(self.size, self.size), mode="bilinear", align_corners=False
            )
        if self.repeat > 1:
            x = x.expand(-1, self.repeat, -1, -1)
        return (x - self.mean) / self.std


class Classifier(nn.Module):
    """Images in [0, 1] -> logits, with the activations before the last layer in reach.

    Attributes:
        architecture: the name it was built from.
        classes: how many logits it gives.
        channels: channels of its input.
        size: pixels a side of its input.
        original_head: where torchvision keeps the last layer, None for nets of ours.
        multilabel: whether each logit is that of having a class, whatever the others are.
    """

    multilabel = False

    def __init__(
        self,
        architecture: str,
        channels: int,
        size: int,
        adapter: InputAdapter,
        backbone: nn.Module,
        head: nn.Linear,
        original_head: str | None = None,
    ) -> None:
        super().__init__()
        self.architecture = architecture
        self.classes = head.out_features
        self.channels = channels
        self.size = size
        self.original_head = original_head
        self.adapter = adapter
        self.backbone = backbone
        self.head = head

    def features(self, x: Tensor) -> Tensor:
        """Input of the last linear layer, float [n, d]: the activations of DPSD Eq. 8."""
        return self.backbone(self.adapter(x))

    def forward(self, x: Tensor) -> Tensor:
        """float [n, channels, size, size] in [0, 1] -> logits [n, classes]."""
        return self.head(self.features(x))

    @property
    def takes_thresholds(self) -> bool:
        """Whether a probability from which on a class is named means anything."""
        return self.multilabel or self.classes == 2

    @property
    def groups(self) -> int:
        """Kinds of images that a generator beside it tells apart; see `groups_of`."""
        return self.classes + self.multilabel


def probabilities_of(logits: Tensor, *, multilabel: bool) -> Tensor:
    """How likely each class is, [n, classes]: one of them, or each for itself."""
    return logits.sigmoid() if multilabel else logits.softmax(-1)


# Channels of each layer. Parameters and multiplications per image at 1x28x28 and 10 classes: 11 k
# and 0.2 M, 34 k and 0.6 M, 114 k and 2.3 M, 400 k and 3.4 M. The fourth layer is for images of 64
# pixels and more: it halves them once more before the last layer looks at them.
WIDTHS = {
    "cnn-small": (8, 16, 32),
    "cnn": (16, 32, 64),
    "cnn-wide": (32, 64, 128),
    "cnn-deep": (32, 64, 128, 256),
}
_GROUPS = 4


def is_small(name: str) -> bool:
    """Whether `name` is one of our own nets, which a stack of teachers can share vmap for."""
    return name in WIDTHS


def build_small(name: str, classes: int, channels: int, size: int) -> Classifier:
    """One of `WIDTHS` for square images of `size` pixels a side.

    Weights come from torch's current generator; `build` fixes it.
    """
    layers: list[nn.Module] = []
    before, side = channels, size
    for depth, width in enumerate(WIDTHS[name]):
        kernel = 5 if depth == 0 else 3
        layers += [
            nn.Conv2d(before, width, kernel, stride=2, padding=kernel // 2),
            nn.GroupNorm(_GROUPS, width),
            nn.ReLU(),
        ]
        before, side = width, ceil(side / 2)
    layers.append(nn.Flatten())
    adapter = InputAdapter([0.5] * channels, [0.5] * channels, size)
    head = nn.Linear(before * side * side, classes)
    return Classifier(name, channels, size, adapter, nn.Sequential(*layers), head)


@contextmanager
def fixed_randomness(seed: int) -> Iterator[None]:
    """Draw initial weights from `seed` alone, and leave the global generator as it was.

    torch's layers know no generator of their own, hence the detour.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def xavier_(module: nn.Module) -> None:
    """Xavier-uniform weights and zero biases in place, as DPSD sets up both of its networks."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def pick_device(name: str) -> torch.device:
    """Turn `auto`, `cpu`, `cuda`, `cuda:1`, `mps` into a device that works."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        raise ConfigError(
            f"--device {name} is not available on this machine; use --device cpu or auto."
        ) from None
    return device
