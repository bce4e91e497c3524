"""What every classifier here looks like: adapter, backbone, head."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class InputAdapter(nn.Module):
    """Images in [0, 1] -> what a backbone was made for: size, channels, constant scaling.

    The scaling uses constants, never statistics of the data set: those would be a release.

    Args:
        mean: per channel of the output.
        std: per channel of the output.
        size: pixels a side of the output; smaller and larger images are resized.
        repeat: how many times a grey channel is repeated (1: leave channels alone).
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
    """

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
