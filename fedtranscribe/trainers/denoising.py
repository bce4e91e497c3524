"""How a network learns to predict noise: rows, losses, ordinary steps, and averaged weights."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.schedule import Schedule
from fedtranscribe.models.unet import Denoiser
from fedtranscribe.trainers.records import Draws


def noise_losses(denoiser: Denoiser, x_t: Tensor, t: Tensor, labels: Tensor, z: Tensor) -> Tensor:
    """The squared error of the guess of z for each row [n], as a mean over pixels."""
    return (denoiser(x_t, t, labels) - z).square().flatten(1).mean(1)


@dataclass(frozen=True, eq=False)
class NoisePrediction:
    """Makes the rows of `noise_losses`.

    Attributes:
        denoiser: that learns.
        schedule: T and betas.
        times: the time steps to draw from.
        label_drop: share of labels that become the null label; None leaves them as they are.
    """

    denoiser: Denoiser
    schedule: Schedule
    times: range
    label_drop: float | None

    def rows(self, x_0: Tensor, labels: Tensor, draws: Draws) -> tuple[Tensor, ...]:
        """(x_t, t, labels, z) of images [n, c, h, w] and labels [n], with fresh t and z."""
        t, z = random_steps(self.times, x_0, draws)
        if self.label_drop is not None:
            labels = drop_labels(labels, self.denoiser.null_label, self.label_drop, draws)
        return self.schedule.noisy(x_0, t, z), t, labels, z


def random_steps(times: range, x_0: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """Time steps int64 [n] and standard normal noise like x_0 [n, c, h, w], on its device."""
    t, z = draws.integers(times), draws.normal(x_0.shape[1:])
    return t.to(x_0.device), z.to(x_0.device)


def drop_labels(labels: Tensor, null_label: int, share: float, draws: Draws) -> Tensor:
    """Put the null label in place of a random share [n], so that one network learns both."""
    dropped = draws.uniform() < share
    return labels.masked_fill(dropped.to(labels.device), null_label)


def random_rows(
    public: tuple[Tensor, ...], rows: int, rng: torch.Generator, device: torch.device
) -> tuple[Tensor, ...]:
    """The same rows of public tensors, drawn with repetition, on a device."""
    shape = (rows,)
    picked = torch.randint(len(public[0]), shape, generator=rng, device=rng.device).cpu()
    return tuple(tensor[picked].to(device) for tensor in public)


def descend(optimiser: Optimizer, losses: Tensor, expected: int) -> None:
    """One step on the sum of losses over the expected number of rows."""
    optimiser.zero_grad()
    (losses.sum() / expected).backward()
    optimiser.step()


def make_optimiser(network: nn.Module, divisor: float = 1.0, *, sgd: bool = False) -> Optimizer:
    """Adam, as if gradients were divided by `divisor` first, or plain SGD; rates are set later."""
    if sgd:
        return torch.optim.SGD(network.parameters())
    # Adam does not see the scale of gradients but for its constant.
    return torch.optim.Adam(network.parameters(), eps=1e-8 * divisor)


def set_rate(optimiser: Optimizer, first: float, done: int, total: int) -> None:
    """The half cosine from `first` at step 0 to 0 after `total` steps (CosineAnnealingLR)."""
    for group in optimiser.param_groups:
        group["lr"] = first * (1 + math.cos(math.pi * done / total)) / 2


Network = TypeVar("Network", bound=nn.Module)


class Ema(AveragedModel, Generic[Network]):
    """Exponential moving average of parameters and buffers; free post-processing of private ones.

    The k-th update after a start keeps min(decay, (1 + k) / (10 + k)), so that a short run is not
    an average over its initial weights.

    Args:
        network: whose weights are followed; copied, so make this before hooks are put on it.
        decay: share that stays per update, in [0, 1).

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
