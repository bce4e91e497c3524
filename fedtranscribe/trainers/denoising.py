"""How a network learns to predict noise, and DP-SAD's discriminator."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.classifier import fixed_randomness, xavier_
from fedtranscribe.models.diffusion import Schedule
from fedtranscribe.models.unet import Denoiser
from fedtranscribe.trainers.records import Draws


def noise_losses(denoiser: Denoiser, x_t: Tensor, t: Tensor, labels: Tensor, z: Tensor) -> Tensor:
    """The squared error of the guess of z for each row [n], as a mean over pixels."""
    return (denoiser(x_t, t, labels) - z).square().flatten(1).mean(1)


@dataclass(frozen=True, eq=False)
class NoisePrediction:
    """Makes the rows of `noise_losses`."""

    denoiser: Denoiser  # that learns
    schedule: Schedule  # T and betas
    times: range  # the time steps to draw from
    # share of labels that become the null label; None leaves them as they are
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

    The network is copied, so make this before hooks are put on it.
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


_GROUPS = 8
_WIDEST = 128
# The map that is summed over at the end is no larger than this.
_LAST_SIDE = 4
_LONGEST_WAVE = 10_000


class ImageDiscriminator(nn.Module):
    """φ(x, t, y): how much more likely x is the teacher's than the student's, as a logit.

    `channels` are an image's, or twice as many for pairs; those of the levels double from `width`
    to 128. Labels are 0..classes − 1, and classes is the null label.
    """

    def __init__(
        self, channels: int, image_size: int, classes: int, seed: int = 0, width: int = 16
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("channels", channels, 1),
            ("image size", image_size, 2 * _LAST_SIDE),
            ("classes", classes, 0),
        ):
            if value < least:
                raise ConfigError(f"Expected {name}={value} >= {least} for the discriminator.")
        if width < _GROUPS or width % _GROUPS:
            raise ConfigError(f"Expected width={width} to be a positive multiple of {_GROUPS}.")
        self.null_label = classes
        self._waves = width
        widths = _widths(width, image_size)
        with fixed_randomness(seed):
            self.first = nn.Conv2d(channels, width, 3, padding=1)
            self.levels = nn.ModuleList(
                nn.Conv2d(a, b, 3, stride=2, padding=1)
                for a, b in zip([width, *widths], widths, strict=False)
            )
            self.norms = nn.ModuleList(nn.GroupNorm(_GROUPS, w) for w in widths)
            self.step = nn.Linear(2 * width, widths[-1])
            self.label = nn.Embedding(classes + 1, widths[-1])
            self.biases = nn.ModuleList(nn.Linear(widths[-1], w) for w in widths)
            self.verdict = nn.Linear(widths[-1], 1)
            xavier_(self)

    def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        """Logits [n], above 0 for the teacher, of x [n, c, h, w] predicted from steps t [n]."""
        known = F.silu(self.step(_waves(t, self._waves)) + self.label(labels))
        h = self.first(x)
        for level, norm, bias in zip(self.levels, self.norms, self.biases, strict=True):
            h = F.leaky_relu(norm(level(h)) + bias(known)[..., None, None], 0.2)
        h = h.mean((-2, -1))
        return self.verdict(h).squeeze(-1) + (h * known).sum(-1) / math.sqrt(h.shape[-1])


def _widths(width: int, side: int) -> list[int]:
    """Channels after each halving, until the side is small enough."""
    found: list[int] = []
    while side > _LAST_SIDE:
        side = math.ceil(side / 2)
        width = min(2 * width, _WIDEST)
        found.append(width)
    return found


def _waves(t: Tensor, count: int) -> Tensor:
    """Sines and cosines of a time step at `count` wavelengths, float [n, 2 count]."""
    rates = torch.exp(torch.arange(count, device=t.device) * (-math.log(_LONGEST_WAVE) / count))
    angles = t[..., None].float() * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)
