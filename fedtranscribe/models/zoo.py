"""torchvision's and timm's classifiers by their names, adapted to any task."""

import difflib
import importlib.util
import re
from math import ceil
from typing import Any

from torch import nn

from fedtranscribe.errors import UnknownArchitectureError, WeightsNotFoundError
from fedtranscribe.models.classifier import Classifier, InputAdapter

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
IMAGENET_CLASSES = 1000

# Five halvings of 32 leave one pixel; below that most of the zoo has nothing to pool.
_SMALLEST_SIDE = 32
# Filters learnt at 224 pixels find little in 32; 96 is what two cores can bear.
_SMALLEST_PRETRAINED_SIDE = 96
_USUAL_PRETRAINED_SIDE = 224
# torchvision states 224 for these although smaller inputs run through them.
_SMALLER_THAN_STATED = {"swin": 64, "alexnet": 64}
_PATCHES_PER_SIDE = 4
_SQUEEZENET_WIDTH = 512
_WITH_AUXILIARIES = ("googlenet", "inception_v3")
AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")
"""What the weights of auxiliary outputs start with, in torchvision's files."""


def build_zoo(
    name: str,
    classes: int,
    channels: int,
    size: int,
    pretrained: bool = False,
    side: int | None = None,
) -> Classifier:
    """A torchvision classifier without its last layer, and a new last layer of ours.

    Images are resized to the smallest side that the architecture works with (at least 32
    pixels, 96 with ImageNet weights; vision transformers get four patches a side, or 224 with
    ImageNet weights). A grey channel is repeated; any other channel count than 1 or 3
    gets a first convolution of its own. Auxiliary outputs are left out.
    """
    side = side or _working_side(name, size, pretrained)
    whole = _instance(name, side, pretrained)
    if name in _WITH_AUXILIARIES:
        _drop_auxiliaries(whole)
    head_path, last = _cut_head(name, whole)
    constants = IMAGENET_MEAN, IMAGENET_STD
    if channels not in (1, 3):
        _replace_first_convolution(whole, channels)
        constants = (0.5,) * channels, (0.5,) * channels
    adapter = InputAdapter(*constants, side, repeat=3 if channels == 1 else 1)
    head = nn.Linear(last.in_features, classes, bias=last.bias is not None)
    return Classifier(name, channels, size, adapter, whole, head, original_head=head_path)


def _instance(name: str, side: int, pretrained: bool) -> nn.Module:
    from torchvision import models

    options: dict[str, Any] = {}
    if name in _WITH_AUXILIARIES and not pretrained:  # the pretrained ones insist on their own
        options |= {"aux_logits": False, "init_weights": True}
    if name.startswith("vit_"):
        options["image_size"] = side
    try:
        weights = "DEFAULT" if pretrained else None
        return models.get_model(name, weights=weights, progress=False, **options)
    except (OSError, RuntimeError) as error:
        if not pretrained:
            raise
        raise WeightsNotFoundError(
            f"No ImageNet weights for {name!r} on this machine and none could be downloaded "
            f"({type(error).__name__}); connect to a network, or pass --teacher-weights FILE."
        ) from error


def _working_side(name: str, size: int, pretrained: bool) -> int:
    patch = re.fullmatch(r"vit_[a-z]+_(\d+)", name)
    if patch:
        step = int(patch[1])
        return 224 if pretrained else step * max(_PATCHES_PER_SIDE, ceil(size / step))
    if name.startswith("maxvit"):
        return 224  # its windows fit no other size
    smallest = _SMALLEST_PRETRAINED_SIDE if pretrained else _SMALLEST_SIDE
    return max(size, smallest, _stated_minimum(name))


def usual_side(name: str, size: int) -> int:
    """Pixels a side for images of `size` where weights are given: no more than most need."""
    return _working_side(name, min(size, _USUAL_PRETRAINED_SIDE), pretrained=True)


def _stated_minimum(name: str) -> int:
    from torchvision import models

    for family, side in _SMALLER_THAN_STATED.items():
        if name.startswith(family):
            return side
    return max(models.get_model_weights(name)["DEFAULT"].meta["min_size"])


def _cut_head(name: str, whole: nn.Module) -> tuple[str, nn.Linear]:
    """Take out the last layer; returns its path in the network and the layer."""
    if name.startswith("squeezenet"):
        # Its 1x1 convolution before the pooling becomes a linear layer after it.
        whole.set_submodule("classifier", nn.Sequential(nn.Dropout(), nn.AdaptiveAvgPool2d(1)))
        return "classifier.1", nn.Linear(_SQUEEZENET_WIDTH, IMAGENET_CLASSES)
    linear = [(p, m) for p, m in whole.named_modules() if isinstance(m, nn.Linear)]
    if not linear or linear[-1][1].out_features != IMAGENET_CLASSES:
        raise UnknownArchitectureError(f"Architecture {name!r} has no final linear layer.")
    whole.set_submodule(linear[-1][0], nn.Identity())
    return linear[-1]


def _drop_auxiliaries(whole: Any) -> None:
    whole.aux_logits = False
    for path in ("aux1", "aux2", "AuxLogits"):
        if hasattr(whole, path):
            setattr(whole, path, None)


def _replace_first_convolution(whole: Any, channels: int) -> None:
    path, old = next((p, m) for p, m in whole.named_modules() if isinstance(m, nn.Conv2d))
    new = nn.Conv2d(
        channels,
        old.out_channels,
        kernel_size=(old.kernel_size[0], old.kernel_size[1]),
        stride=(old.stride[0], old.stride[1]),
        padding=old.padding if isinstance(old.padding, str) else (old.padding[0], old.padding[1]),
        bias=old.bias is not None,
    )
    whole.set_submodule(path, new)
    if hasattr(whole, "transform_input"):
        whole.transform_input = False  # it rescales the three colours one by one


TIMM = "timm/"
"""Before the name of a network that the library timm makes."""


def expect_timm(network: str) -> None:
    """Refuse a network that timm does not make, or timm where it is not installed."""
    if importlib.util.find_spec("timm") is None:
        raise UnknownArchitectureError(
            f"{TIMM}{network} needs timm: pip install 'fedtranscribe[timm]'."
        )
    import timm

    if not timm.is_model(network):
        close = difflib.get_close_matches(network, timm.list_models(), n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "see timm.list_models()."
        raise UnknownArchitectureError(f"timm makes no network {network!r}; {hint}")
    try:
        timm.get_pretrained_cfg(network)
    except (RuntimeError, ValueError) as error:  # a tag after the dot that it does not know
        raise UnknownArchitectureError(f"timm makes no network {network!r}: {error}") from None


def timm_side(network: str) -> int:
    """Pixels a side that a network was made for."""
    expect_timm(network)
    import timm

    config = timm.get_pretrained_cfg(network)
    return 224 if config is None else int(config.input_size[-1])


def build_timm(
    network: str, channels: int, side: int
) -> tuple[InputAdapter, nn.Module, tuple[str, ...]]:
    """What brings images to its size, its layers, and what its last layer's weights start with."""
    expect_timm(network)
    import timm

    layers: Any = timm.create_model(network, pretrained=False, num_classes=0)
    config = layers.pretrained_cfg
    last = config.get("classifier") or ()
    names = (last,) if isinstance(last, str) else tuple(last)
    adapter = InputAdapter(config["mean"], config["std"], side, repeat=3 if channels == 1 else 1)
    return adapter, layers, tuple(f"{name}." for name in names)
