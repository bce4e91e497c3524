"""The running mean of a network's weights, which is what samples are drawn from."""

from functools import partial
from typing import Generic, TypeVar, cast

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from fedtranscribe.errors import ConfigError

Network = TypeVar("Network", bound=nn.Module)


class Ema(AveragedModel, Generic[Network]):
    """Exponential moving average of parameters and buffers; free post-processing of private ones.

    The k-th update after a start keeps min(decay, (1 + k) / (10 + k)), so that a short run is not
    an average over its initial weights.

    Args:
        network: whose weights are followed; copied, so make this before hooks are put on it.
        decay: kept share per update, in [0, 1).

    Raises:
        ConfigError: a decay outside [0, 1).
    """

    def __init__(self, network: Network, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"Expected ema_decay={decay} in [0, 1).")
        super().__init__(network, avg_fn=partial(_step, decay), use_buffers=True)
        self.eval().requires_grad_(False)
        self.restart(network)

    @property
    def network(self) -> Network:
        """The copy that holds the mean; evaluation mode, without gradients."""
        return cast(Network, self.module)

    def restart(self, network: nn.Module) -> None:
        """Forget everything before now."""
        self.n_averaged.zero_()
        self.update_parameters(network)  # the first one after none is taken as it is


def _step(decay: float, mean: Tensor, value: Tensor, averaged: Tensor | int) -> Tensor:
    if not mean.is_floating_point():
        return value
    done = int(averaged)
    return mean.lerp(value, 1 - min(decay, (1 + done) / (10 + done)))
