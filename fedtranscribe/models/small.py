"""Small convolutional nets of our own, for teachers of few records and for students.

Three strided 3x3 convolutions (the first 5x5), each with GroupNorm, then one linear layer.
GroupNorm keeps no running statistics: a record cannot reach a teacher's answer through
another record's batch, and `torch.func.vmap` can train a stack of teachers at once.
The linear layer sees the whole map, not its mean: averaging over places cost
17 points of accuracy after training on 240 digits (93 % to 76 %).
"""

from math import ceil

from torch import nn

from fedtranscribe.models.classifier import Classifier, InputAdapter

# Channels of the three layers. Parameters and multiplications per image at 1x28x28 and
# 10 classes: 11 k and 0.2 M, 34 k and 0.6 M, 114 k and 2.1 M.
WIDTHS = {
    "cnn-small": (8, 16, 32),
    "cnn": (16, 32, 64),
    "cnn-wide": (32, 64, 128),
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
