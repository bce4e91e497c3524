"""Drawing images from a diffusion model: DDIM with guidance (dp-promise, Algorithm 2).

Written out rather than left to diffusers' DDIMScheduler: that one steps to t − ⌊T/T'⌋ whatever
the next step of its list is, so it is exact only where T' divides T. There both agree.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from fedtranscribe.errors import ConfigError
from fedtranscribe.models.schedule import MOST_STEPS, Schedule
from fedtranscribe.models.unet import Denoiser

# (x_t, t) -> noise in x_t
Predict = Callable[[Tensor, int], Tensor]
Progress = Callable[[int, int], None]


MOST_GUIDANCE = 1_000.0
"""Far beyond what gives images; an infinite weight would give numbers that are none."""


class Spacing(StrEnum):
    """Which T' of the steps 1..T are visited; both begin at T, which Phase I trains."""

    TRAILING = "trailing"  # T, T − T/T', …, T/T'
    LINSPACE = "linspace"  # evenly from T down to 1


@dataclass(frozen=True)
class Sampling:
    """How samples are drawn; public, and free of privacy cost.

    Attributes:
        steps: T', how many steps of 1..T are visited.
        eta: ρ, 0 for the deterministic sampler, 1 for ancestral sampling.
        guidance: w of (1 + w) conditional − w unconditional; diffusers' guidance_scale is 1 + w.
        spacing: which steps.
        clip: keep each guess of x_0 in [-1, 1], where images are. Algorithm 2 does not.

    Raises:
        ConfigError: a number out of range.
    """

    steps: int = 200
    eta: float = 1.0
    guidance: float = 0.0
    spacing: Spacing = Spacing.TRAILING
    clip: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be sampled."""
        if not 1 <= self.steps <= MOST_STEPS:
            raise ConfigError(f"Expected 1 <= sampling steps={self.steps} <= {MOST_STEPS}.")
        if not 0 <= self.eta <= 1:
            raise ConfigError(f"Expected eta={self.eta} in [0, 1].")
        if not 0 <= self.guidance <= MOST_GUIDANCE:
            raise ConfigError(f"Expected 0 <= guidance={self.guidance} <= {MOST_GUIDANCE:g}.")

    def expect_within(self, schedule: Schedule) -> None:
        """Refuse to visit more steps than a schedule has.

        Raises:
            ConfigError: more sampling steps than there are.
        """
        if self.steps > schedule.steps:
            raise ConfigError(
                f"Expected sampling steps={self.steps} <= T={schedule.steps}; lower them."
            )


def visited(schedule: Schedule, sampling: Sampling) -> list[int]:
    """The time steps τ, from T downwards.

    Raises:
        ConfigError: more sampling steps than there are.
    """
    sampling.expect_within(schedule)
    last, count = schedule.steps, sampling.steps
    if sampling.spacing is Spacing.TRAILING:
        return [round(last * i / count) for i in range(count, 0, -1)]
    if count == 1:
        return [last]
    return [round(1 + (last - 1) * i / (count - 1)) for i in range(count - 1, -1, -1)]


def guided_noise(denoiser: Denoiser, x: Tensor, t: Tensor, labels: Tensor, w: float) -> Tensor:
    """Classifier-free guidance: (1 + w) z_θ(x, t, y) − w z_θ(x, t).

    Args:
        denoiser: the network.
        x: float [n, c, h, w].
        t: int64 [n], each in 1..T.
        labels: int64 [n], each in 0..null_label.
        w: the weight; without it the unconditional half is not computed.
    """
    conditional = denoiser(x, t, labels)
    if w == 0:
        return conditional
    null = torch.full_like(labels, denoiser.null_label)
    return (1 + w) * conditional - w * denoiser(x, t, null)


@torch.no_grad()
def ddim(
    predict: Predict, x: Tensor, schedule: Schedule, sampling: Sampling, rng: torch.Generator
) -> Tensor:
    """Walk from x_T to x_0 (dp-promise Eq. 7 on the visited steps).

    The noise between τ and the next step τ' has DDIM's variance
    ρ² (1 − ᾱ_τ') / (1 − ᾱ_τ) (1 − ᾱ_τ / ᾱ_τ'), which is Eq. 5's for neighbouring steps.

    Args:
        predict: guesses the noise.
        x: standard normal [n, channels, side, side].
        schedule: that the network was trained with.
        sampling: which steps, and how.
        rng: source of ξ.
    """
    steps = visited(schedule, sampling)
    for t, following in zip(steps, [*steps[1:], 0], strict=True):
        now, then = float(schedule.alpha_bar[t]), float(schedule.alpha_bar[following])
        z = predict(x, t)
        x_0 = (x - (1 - now) ** 0.5 * z) / now**0.5
        if sampling.clip:
            x_0 = x_0.clamp(-1, 1)
            z = (x - now**0.5 * x_0) / (1 - now) ** 0.5
        variance = sampling.eta**2 * (1 - then) / (1 - now) * (1 - now / then)
        x = then**0.5 * x_0 + max(1 - then - variance, 0.0) ** 0.5 * z
        if variance > 0:
            x = x + variance**0.5 * _normal(x.shape, x.device, rng)
    return x


def sample(
    denoiser: Denoiser,
    schedule: Schedule,
    labels: Tensor,
    sampling: Sampling,
    rng: torch.Generator,
    *,
    batch: int = 256,
    progress: Progress = lambda done, total: None,
) -> Tensor:
    """One image per label.

    Args:
        denoiser: averaged weights, in evaluation mode.
        schedule: that it was trained with.
        labels: int64 [n], each in 0..null_label; the null label asks for any class.
        sampling: how.
        rng: source of x_T and ξ.
        batch: images at a time; other batches give other images.
        progress: called with (images done, images in all).

    Returns:
        float32 [n, channels, size, size] in [-1, 1], on the CPU.

    Raises:
        ConfigError: a label that the network does not know, or too many steps.
    """
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) <= denoiser.null_label:
        raise ConfigError(
            f"Expected labels in 0..{denoiser.null_label}, got {int(labels.min())} to "
            f"{int(labels.max())}; {denoiser.null_label} asks for any class."
        )
    device = next(denoiser.parameters()).device
    shape = (denoiser.channels, denoiser.size, denoiser.size)
    images: list[Tensor] = [torch.empty(0, *shape)]
    done = 0
    for part in labels.split(batch) if len(labels) else ():
        start = _normal((len(part), *shape), device, rng)
        predict = _predictor(denoiser, part.to(device), sampling.guidance)
        images.append(ddim(predict, start, schedule, sampling, rng).clamp(-1, 1).cpu())
        done += len(part)
        progress(done, len(labels))
    return torch.cat(images)


def _predictor(denoiser: Denoiser, labels: Tensor, w: float) -> Predict:
    return lambda x, t: guided_noise(denoiser, x, torch.full_like(labels, t), labels, w)


def _normal(shape: tuple[int, ...], device: torch.device, rng: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device).to(device)
