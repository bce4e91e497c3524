"""Diffusion models: noise schedule, drawing from one, and its file."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from fedtranscribe.config.run import MOST_CLASSES
from fedtranscribe.errors import ConfigError
from fedtranscribe.models.unet import Denoiser, UNetSize, make_unet, require_diffusers
from fedtranscribe.models.weights import (
    ENTRY,
    Header,
    _Channels,
    _Side,
    expect_fit,
    load_state,
    read_header,
    restore,
    save,
    unusable,
)

MOST_STEPS = 10_000
"""Ten times what papers use: time and memory of a model grow with its steps."""


@dataclass(frozen=True)
class Schedule:
    """Linear β_1..β_T and what follows from them."""

    steps: int = 1000  # T
    first: float = 1e-4  # β_1
    last: float = 2e-2  # β_T. The defaults are dp-promise's; DP-SAD has T = 500, β_T = 0.028.

    def __post_init__(self) -> None:
        """Refuse what is no schedule."""
        if not 1 <= self.steps <= MOST_STEPS:
            raise ConfigError(f"Expected 1 <= diffusion steps T={self.steps} <= {MOST_STEPS}.")
        if not 0 < self.first <= self.last < 1:
            raise ConfigError(
                f"Expected 0 < first={self.first} <= last={self.last} < 1 for the noise schedule."
            )

    @property
    def times(self) -> range:
        """1..T."""
        return range(1, self.steps + 1)

    @cached_property
    def betas(self) -> Tensor:
        """β_1..β_T, float64 [T]."""
        return torch.linspace(self.first, self.last, self.steps, dtype=torch.float64)

    @cached_property
    def alpha_bar(self) -> Tensor:
        """ᾱ_0..ᾱ_T = Π (1 − β), float64 [T + 1]; the papers' α_t is alpha_bar[t]."""
        return torch.cat([torch.ones(1, dtype=torch.float64), (1 - self.betas).cumprod(0)])

    def noisy(self, x_0: Tensor, t: Tensor, z: Tensor) -> Tensor:
        """x_t = √ᾱ_t x_0 + √(1 − ᾱ_t) z (dp-promise Eq. 4).

        Args:
            x_0: images [..., channels, side, side] in [-1, 1].
            t: int64 [...], each in 0..T.
            z: standard normal, shaped like x_t; x_0 may broadcast against it.
        """
        return self._mix(x_0, self.alpha_bar[t.cpu()], z)

    def noisier(self, x_s: Tensor, s: int, t: Tensor, z: Tensor) -> Tensor:
        """x_t from x_s alone, for t >= s: √(ᾱ_t/ᾱ_s) x_s + √(1 − ᾱ_t/ᾱ_s) z.

        Distributed as `noisy(x_0, t, …)` where x_s was drawn by `noisy(x_0, s, …)`.

        Args:
            x_s: noisy images [..., channels, side, side] of step s.
            s: the step they are of.
            t: int64 [...], each in s..T.
            z: standard normal like x_s, and fresh.
        """
        return self._mix(x_s, self.alpha_bar[t.cpu()] / self.alpha_bar[s], z)

    def posterior(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """1/√α_t and β_t/√(α_t (1 − ᾱ_t)) of steps t [n], for `posterior_mean`; float64 [n]."""
        t = t.cpu()
        beta, signal = self.betas[t - 1], self.alpha_bar[t]
        keep = (1 - beta).rsqrt()
        return keep, keep * beta * (1 - signal).rsqrt()

    @staticmethod
    def _mix(x: Tensor, signal: Tensor, z: Tensor) -> Tensor:
        return spread(signal.sqrt(), z) * x + spread((1 - signal).sqrt(), z) * z


def posterior_mean(x_t: Tensor, noise: Tensor, keep: Tensor, step: Tensor) -> Tensor:
    """x_{t−1} [n, c, h, w] as predicted from x_t and the noise in it, predicted or true."""
    return spread(keep, x_t) * x_t - spread(step, x_t) * noise


def spread(per_row: Tensor, like: Tensor) -> Tensor:
    """Numbers [...] per row -> the dtype and device of rows [..., c, h, w], ready to multiply."""
    per_row = per_row.to(like.device, like.dtype)
    return per_row.reshape(*per_row.shape, *[1] * (like.dim() - per_row.dim()))


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
    """How samples are drawn; public, and free of privacy cost."""

    steps: int = 200  # T', how many steps of 1..T are visited
    eta: float = 1.0  # ρ, 0 for the deterministic sampler, 1 for ancestral sampling
    # w of (1 + w) conditional − w unconditional; diffusers' guidance_scale is 1 + w
    guidance: float = 0.0
    spacing: Spacing = Spacing.TRAILING  # which steps
    clip: bool = True  # keep each guess of x_0 in [-1, 1], where images are. Algorithm 2 does not.

    def __post_init__(self) -> None:
        """Refuse what cannot be sampled."""
        if not 1 <= self.steps <= MOST_STEPS:
            raise ConfigError(f"Expected 1 <= sampling steps={self.steps} <= {MOST_STEPS}.")
        if not 0 <= self.eta <= 1:
            raise ConfigError(f"Expected eta={self.eta} in [0, 1].")
        if not 0 <= self.guidance <= MOST_GUIDANCE:
            raise ConfigError(f"Expected 0 <= guidance={self.guidance} <= {MOST_GUIDANCE:g}.")

    def expect_within(self, schedule: Schedule) -> None:
        """Refuse to visit more steps than a schedule has."""
        if self.steps > schedule.steps:
            raise ConfigError(
                f"Expected sampling steps={self.steps} <= T={schedule.steps}; lower them."
            )


def visited(schedule: Schedule, sampling: Sampling) -> list[int]:
    """The time steps τ, from T downwards."""
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


class _Schedule(Header):
    steps: int
    first: float
    last: float


class _Sampling(Header):
    steps: int
    eta: float
    guidance: float
    spacing: Spacing
    clip: bool


class DenoiserHeader(Header):
    """Of `denoiser.safetensors`."""

    kind: Literal["denoiser"]
    unet: UNetSize
    channels: _Channels
    size: _Side
    classes: Annotated[int, Field(ge=0, le=MOST_CLASSES)]
    conditional: bool
    schedule: _Schedule
    sampling: _Sampling

    def diffusion(self) -> tuple[Schedule, Sampling]:
        """How the network was trained and how it is drawn from."""
        schedule = Schedule(**self.schedule.model_dump())
        sampling = Sampling(**self.sampling.model_dump())
        sampling.expect_within(schedule)
        return schedule, sampling


_HEADER: TypeAdapter[DenoiserHeader] = TypeAdapter(DenoiserHeader)


@dataclass(frozen=True, eq=False)
class Synthesizer:
    """A trained network and how to draw from it: free post-processing, as often as wanted."""

    denoiser: Denoiser  # averaged weights, in evaluation mode
    schedule: Schedule  # that it was trained with
    sampling: Sampling  # how, unless set otherwise
    conditional: bool  # whether its images come by label

    @property
    def classes(self) -> int:
        """Labels that can be asked for; 0 where images come without."""
        return self.denoiser.classes if self.conditional else 0

    def to(self, device: torch.device) -> Self:
        """The same, its network moved to a device."""
        self.denoiser.to(device)
        return self

    def draw(
        self, labels: Tensor, seed: int, progress: Progress = lambda done, total: None
    ) -> Tensor:
        """One image per label, uint8 [n, channels, size, size].

        Args:
            labels: int64 [n] below `classes`; a network without labels takes no notice.
            seed: public randomness, never that of the training.
            progress: called with (images done, images in all).
        """
        if not self.conditional:
            labels = torch.full_like(labels, self.denoiser.null_label)
        rng = torch.Generator().manual_seed(seed)
        images = sample(self.denoiser, self.schedule, labels, self.sampling, rng, progress=progress)
        return to_pixels(images)

    def with_sampling(self, steps: int | None, guidance: float | None) -> Self:
        """The same with other T' or w."""
        changes: dict[str, Any] = {"steps": steps, "guidance": guidance}
        chosen = {name: value for name, value in changes.items() if value is not None}
        sampling = replace(self.sampling, **chosen)
        sampling.expect_within(self.schedule)
        return replace(self, sampling=sampling)


def to_signed(images: Tensor) -> Tensor:
    """Pixels uint8 -> float32 in [-1, 1], by constants (dp-promise, Remark 1)."""
    return images.float() / 127.5 - 1


def to_pixels(images: Tensor) -> Tensor:
    """Floats in [-1, 1] -> the nearest uint8 pixels; values outside are clamped."""
    return ((images.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def save_synthesizer(model: Synthesizer, path: Path) -> None:
    """Write weights, and in the file's header what `load_synthesizer` needs."""
    denoiser = model.denoiser
    facts = {
        "kind": "denoiser",
        "unet": denoiser.size_name.value,
        "channels": denoiser.channels,
        "size": denoiser.size,
        "classes": denoiser.classes,
        "conditional": model.conditional,
        "schedule": asdict(model.schedule),
        "sampling": asdict(model.sampling),
    }
    save(denoiser, path, {ENTRY: json.dumps(facts, sort_keys=True)})


def load_synthesizer(path: Path) -> Synthesizer:
    """The model in a file of `save_synthesizer`, on the CPU, in evaluation mode."""
    header = read_header(path, _HEADER)
    try:
        schedule, sampling = header.diffusion()
    except ConfigError as error:
        raise unusable(path, str(error)) from None
    require_diffusers()
    state = load_state(path)
    make = partial(make_unet, header.unet, header.channels, header.size, header.classes)
    expect_fit(make, state, path)
    denoiser = make()
    restore(denoiser, state, path)
    return Synthesizer(denoiser.eval(), schedule, sampling, header.conditional)
