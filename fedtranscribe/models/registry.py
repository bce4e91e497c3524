"""One name -> a classifier for the task at hand."""

from pathlib import Path

from fedtranscribe.config.catalogue import NETWORKS, torchvision_networks, unknown_network
from fedtranscribe.errors import (
    ConfigError,
    CorruptWeightsError,
    ModelMismatchError,
    WeightsNotFoundError,
)
from fedtranscribe.models.backbones import Backbone
from fedtranscribe.models.classifier import Classifier, build_small, fixed_randomness
from fedtranscribe.models.fixed_features import build_linear, is_fixed
from fedtranscribe.models.weights import State, expect_fit, load_state, restore
from fedtranscribe.models.zoo import AUXILIARY, build_zoo

IMAGENET = "imagenet"

_ANY_SIDE = 32  # names of layers do not depend on it


def available() -> list[str]:
    """Names that `build` knows: our small nets, then torchvision's where it is installed."""
    return [*NETWORKS, *torchvision_networks()]


def build(
    name: str,
    classes: int,
    channels: int,
    size: int,
    *,
    weights: str | Path | None = None,
    seed: int = 0,
    products: int = 0,
) -> Classifier:
    """A classifier for images [n, channels, size, size] in [0, 1], in training mode.

    Args:
        name: one of `available()`, or of a `Backbone`, for a linear classifier on its features.
        classes: how many logits.
        channels: 1 for grey, 3 for colour; other counts work too.
        size: pixels a side.
        weights: None for fresh ones; "imagenet" for torchvision's, with a fresh last layer; a
            file of ours, or of torchvision's own layout, for all layers.
        seed: fixes fresh weights.
        products: of a linear classifier on fixed features, see `unit_rows_of`.

    Raises:
        ConfigError: a count below its minimum, or images that the features cannot have.
        UnknownArchitectureError: no such name; the message suggests close ones.
        WeightsNotFoundError: the weights are neither here nor to be fetched.
        CorruptWeightsError: the file is truncated, holds NaN or another network.
        ModelMismatchError: the file was made for other classes, images or widths.
    """
    for label, value, least in (("classes", classes, 2), ("channels", channels, 1)):
        if value < least:
            raise ConfigError(f"Expected {label}={value} >= {least}.")
    if size < 8:
        raise ConfigError(f"Expected image size={size} >= 8 pixels.")
    with fixed_randomness(seed):
        if Backbone.parse(name):
            model = build_linear(name, classes, channels, size, products)
        elif name in NETWORKS:
            if weights == IMAGENET:
                raise WeightsNotFoundError(
                    f"There are no ImageNet weights for our own {name!r}; "
                    f"choose a torchvision architecture or leave them out."
                )
            if is_fixed(name):
                model = build_linear(name, classes, channels, size, products)
            else:
                model = build_small(name, classes, channels, size)
        elif name in torchvision_networks():
            model = build_zoo(name, classes, channels, size, pretrained=weights == IMAGENET)
        else:
            raise unknown_network(name)
    if weights is not None and weights != IMAGENET:
        _load(model, Path(weights))
    return model


def expect_classifier(
    name: str, classes: int, channels: int, size: int, state: State, path: Path, products: int = 0
) -> None:
    """Hold what somebody says of a classifier against the weights in its file.

    The layers of our own networks grow with the images, and are all looked at. Of torchvision's
    only the last layer can be of any size.

    Args:
        name: of the architecture.
        classes: how many logits.
        channels: of its images.
        size: pixels a side.
        state: of the file.
        path: of the file, for the message.
        products: see `build`.

    Raises:
        CorruptWeightsError: other layers than the architecture has.
        ModelMismatchError: the same layers in other shapes.
    """
    if name in NETWORKS or Backbone.parse(name):
        shape = classes, channels, size
        expect_fit(lambda: build(name, *shape, products=products), state, path)
        return
    head = state.get("head.weight")
    shape = None if head is None else tuple(head.shape)
    if shape is None or shape[:1] != (classes,):
        raise ModelMismatchError(
            f"Expected a last layer of {classes} classes in {str(path)!r}, got shape {shape}; "
            "train or fetch it again."
        )


def class_count(name: str, path: Path) -> int:
    """How many classes a network in a file tells apart, by its last layer.

    Args:
        name: of its architecture.
        path: of its weights, in torchvision's layout or ours.

    Raises:
        UnknownArchitectureError: no such architecture.
        ModelError: the file is absent or damaged, or holds other layers.
    """
    state, network = load_state(path), build(name, 2, 3, _ANY_SIDE)
    ours = _in_our_layout(state, network.original_head)
    head = ours.get("head.weight")
    if ours.keys() != network.state_dict().keys() or head is None or len(head) < 2:
        raise CorruptWeightsError(
            f"{str(path)!r} holds another network than {name}; give the weights of this "
            "architecture."
        )
    return len(head)


def _load(model: Classifier, path: Path) -> None:
    state = _in_our_layout(load_state(path), model.original_head)
    head = state.get("head.weight")
    if head is not None and len(head) != model.classes:
        raise ModelMismatchError(
            f"Weights {str(path)!r} are for {len(head)} classes, the data have {model.classes}; "
            f"give weights trained on these classes."
        )
    restore(model, state, path)


def _in_our_layout(state: State, original_head: str | None) -> State:
    """Rename torchvision's keys; its last layer becomes `head`, the rest `backbone`.

    squeezenet's files do not fit and are refused: its last convolution is rectified before the
    pooling, so no linear head gives the same answers.
    """
    if original_head is None or any(key.startswith("backbone.") for key in state):
        return state
    renamed: State = {}
    for key, tensor in state.items():
        if key.startswith(AUXILIARY):
            continue
        layer, _, kind = key.rpartition(".")
        if layer == original_head:
            renamed[f"head.{kind}"] = tensor
        else:
            renamed[f"backbone.{key}"] = tensor
    return renamed
