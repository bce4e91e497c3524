"""The running mean of a network's weights, which is what samples are drawn from."""

import copy
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from fedtranscribe.errors import ConfigError

Network = TypeVar("Network", bound=nn.Module)


class Ema(Generic[Network]):
    """Exponential moving average of parameters and buffers; free post-processing of private ones.

    The k-th update after a start keeps min(decay, (1 + k) / (10 + k)), so that a short run is not
    an average over its initial weights.

    Args:
        network: whose weights are followed; copied, so make this before hooks are put on it.
        decay: kept share per update, in [0, 1).

    Attributes:
        network: the copy that holds the mean; evaluation mode, without gradients.
        updates: since the last start.

    Raises:
        ConfigError: a decay outside [0, 1).
    """

    def __init__(self, network: Network, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"Expected ema_decay={decay} in [0, 1).")
        self.network: Network = copy.deepcopy(network).eval().requires_grad_(False)
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Take one step towards the network's weights."""
        self.updates += 1
        kept = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for mean, value in _pairs(self.network, network):
            if mean.is_floating_point():
                mean.lerp_(value, 1 - kept)
            else:
                mean.copy_(value)

    @torch.no_grad()
    def restart(self, network: nn.Module) -> None:
        """Forget everything before now."""
        self.updates = 0
        for mean, value in _pairs(self.network, network):
            mean.copy_(value)

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs."""
        return {"network": self.network.state_dict(), "updates": self.updates}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()`."""
        self.network.load_state_dict(state["network"])
        self.updates = state["updates"]


def _pairs(mean: nn.Module, network: nn.Module) -> list[tuple[Tensor, Tensor]]:
    values = network.state_dict()
    return [(tensor, values[name]) for name, tensor in mean.state_dict().items()]
