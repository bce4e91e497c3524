"""timm's networks without their last layer; the extra `timm` brings the library."""

import difflib
import importlib.util
from typing import Any

from torch import nn

from fedtranscribe.errors import UnknownArchitectureError
from fedtranscribe.models.classifier import InputAdapter

TIMM = "timm/"
"""Before the name of a network that the library timm makes."""


def expect_timm(network: str) -> None:
    """Refuse a network that timm does not make, or timm where it is not installed.

    Raises:
        UnknownArchitectureError: suggests close names, or the extra.
    """
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
    """Pixels a side that a network was made for.

    Raises:
        UnknownArchitectureError: see `expect_timm`.
    """
    expect_timm(network)
    import timm

    config = timm.get_pretrained_cfg(network)
    return 224 if config is None else int(config.input_size[-1])


def build_timm(
    network: str, channels: int, side: int
) -> tuple[InputAdapter, nn.Module, tuple[str, ...]]:
    """What brings images to its size, its layers, and what its last layer's weights start with.

    Args:
        network: timm's name.
        channels: 1 or 3, of the images.
        side: pixels that they are brought to.

    Raises:
        UnknownArchitectureError: see `expect_timm`.
    """
    expect_timm(network)
    import timm

    layers: Any = timm.create_model(network, pretrained=False, num_classes=0)
    config = layers.pretrained_cfg
    last = config.get("classifier") or ()
    names = (last,) if isinstance(last, str) else tuple(last)
    adapter = InputAdapter(config["mean"], config["std"], side, repeat=3 if channels == 1 else 1)
    return adapter, layers, tuple(f"{name}." for name in names)
